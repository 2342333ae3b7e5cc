-- sweep_packed: drops what is noted of packs that are pending no more, and acknowledges those that are settled.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[4] held HASH notes of pending entries by source and id
-- KEYS[5] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- ARGV[1] mode 'lease', or 'consumer': then the fence is not checked
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that reads
-- ARGV[4] ids... of packs to look at, at most 1,000, or '': then a sample of what is noted
-- include fence, ids
-- returns {dropped, acknowledged, 1 if there may be as much again or 0}, or the error FENCED
local fence, log, packs, held, settled = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local mode, who, group = ARGV[1], ARGV[2], ARGV[3]
local first_id = ARGV[4]
-- Number of fields of each hash that one call looks at.
local SAMPLE = 100

if not may_change(fence, mode, who) then
  return fenced()
end
local any_settled, any_held = redis.call('HLEN', settled) > 0, redis.call('HLEN', held) > 0
if not any_settled and not any_held then
  return { 0, 0, 0 }
end
-- Without them, nobody knows which messages a pack has.
local known = redis.pcall('XLEN', packs)
if known == 0 or type(known) == 'table' then
  return { 0, 0, 0 }
end
-- Without the group, nobody knows what its next position is: everything stays.
local groups, position = redis.pcall('XINFO', 'GROUPS', log), nil
if groups.err and not string.find(groups.err, 'no such key', 1, true) then
  return groups
end
for _, flat in ipairs(groups.err and {} or groups) do
  local info = map(flat)
  position = info.name == group and info['last-delivered-id'] or position
end
if not position then
  return { 0, 0, 0 }
end

local read_up_to = wide(position)
-- Returns the pack that holds a message, its number of messages, and the message's place in it, from 0.
local function pack_of(id)
  local above = redis.pcall('XRANGE', packs, id, '+', 'COUNT', 1)
  local pack = not above.err and above[1]
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  local pack_ms, pack_seq = string.match(pack and pack[1] or '', '^(%d+)%-(%d+)$')
  local count = pack and tonumber(pack[2][2])
  if pack and ms == pack_ms and pack_seq - seq < count then
    return pack[1], count, count - 1 - (pack_seq - seq)
  end
end
-- Whether an entry is pending for anybody. Text that is no id is not.
local function is_pending(id)
  local rows = redis.pcall('XPENDING', log, group, id, id, 1)
  return not rows.err and #rows > 0
end
-- Whether a pending pack that `packs` does not know, since another program has deleted it there, may hold a message: it
-- has the same milliseconds then.
local function may_be_held(id)
  local rows = redis.call('XPENDING', log, group, id, '+', 1)
  return rows[1] and string.match(rows[1][1], '^%d+') == string.match(id, '^%d+')
end
local function is_set(bits, place)
  local byte = string.byte(bits, math.floor(place / 8) + 1)
  return byte ~= nil and bit.band(byte, bit.lshift(1, place % 8)) ~= 0
end
local function all_set(bits, count)
  local whole = math.floor(count / 8)
  if string.sub(bits, 1, whole) ~= string.rep('\255', whole) then
    return false
  end
  for place = whole * 8, count - 1 do
    if not is_set(bits, place) then
      return false
    end
  end
  return true
end

-- Bits: those of a pack that is unread stay, since the group may begin inside of it.
local looked, whole, bits_gone, notes_gone = 0, {}, {}, {}
local sample = {}
if first_id ~= '' then
  for at = 4, #ARGV do
    sample[#sample + 1], sample[#sample + 2] = ARGV[at], redis.call('HGET', settled, ARGV[at]) or ''
  end
elseif any_settled then
  sample = redis.call('HRANDFIELD', settled, SAMPLE, 'WITHVALUES')
end
for at = 1, #sample, 2 do
  local id, bits = sample[at], sample[at + 1]
  local holder, count = pack_of(id)
  looked = looked + 1
  if is_pending(id) then
    if holder == id and all_set(bits, count) then
      whole[#whole + 1], bits_gone[#bits_gone + 1] = id, id
    end
  elseif not wide(id) or wide(id) <= read_up_to or holder ~= id and not redis.pcall('XRANGE', log, id, id)[1] then
    -- Read, or neither in `packs` nor in the log.
    bits_gone[#bits_gone + 1] = id
  end
end
-- Notes: those of messages that are pending stay, alone or in a pack.
for _, name in ipairs(first_id == '' and any_held and redis.call('HRANDFIELD', held, SAMPLE) or {}) do
  local id = string.match(name, '^log:(%d+%-%d+)$')
  looked = looked + 1
  if id and #id <= 41 and wide(id) <= read_up_to then
    local pack, _, place = pack_of(id)
    local settled_bits = pack and any_settled and redis.call('HGET', settled, pack) or ''
    if not is_pending(pack or id) and (pack or not may_be_held(id)) or pack and is_set(settled_bits, place) then
      notes_gone[#notes_gone + 1] = name
    end
  end
end

-- Acknowledged first: without its bits, a pack would be handled again as a whole.
if #whole > 0 then
  redis.call('XACK', log, group, unpack(whole))
end
if #bits_gone > 0 then
  redis.call('HDEL', settled, unpack(bits_gone))
end
if #notes_gone > 0 then
  redis.call('HDEL', held, unpack(notes_gone))
end
local dropped = #bits_gone + #notes_gone
return { dropped, #whole, first_id == '' and dropped * 4 > looked and 1 or 0 }
