-- repair: repairs one fault that audit has found in a group on a partition, if it still exists.
-- KEYS[1] stream STREAM the log or retry log
-- KEYS[2] retry_due ZSET origins by due time in milliseconds
-- KEYS[3] retry_items HASH bodies by origin
-- KEYS[4] held HASH notes of pending entries by source and id
-- KEYS[5] dlq STREAM the group's dead letters
-- KEYS[6] lease STRING the token while the lease is valid
-- KEYS[7] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[8] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[9] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- ARGV[1] fault as audit reported it
-- ARGV[2] source 'log' or 'retry': which one the stream is
-- ARGV[3] group whose data is repaired
-- ARGV[4] id of the entry, origin or consumer
-- ARGV[5] owner consumer name of owners
-- ARGV[6] topic for dead letters
-- ARGV[7] partition for dead letters
-- ARGV[8] body... of 'retry_lost', if the message is in a pack: its names and values; else ''
-- include clock, body, fence, ids
-- returns how many messages it concerned, 1 if it is not about messages, or 0 if it did nothing
local stream, retry_due, retry_items, held, dlq, lease, fence, packs, settled = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local fault, source, group, id, owner, topic, partition = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local IDLE_MS = 60000

local all = redis.pcall('XPENDING', stream, group)
if all.err and not string.find(all.err, 'NOGROUP', 1, true) then
  return all
end
local _, _, now_ms = clock()
local note = source .. ':' .. id
-- Writes that are never refused come first: a full server then accepts all. With the reads they detect wrong types.
redis.call('ZREM', retry_due, '')
redis.call('HDEL', retry_items, '')
redis.call('XDEL', dlq, '0-0')
-- A message of a pack is pending while the pack is and the message is not settled. Returns the pack that holds an id,
-- and the
-- place of the message in it.
local function pack_of(id)
  local above = source == 'log' and redis.pcall('XRANGE', packs, id, '+', 'COUNT', 1)
  local pack = above and not above.err and above[1]
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  local pack_ms, pack_seq = string.match(pack and pack[1] or '', '^(%d+)%-(%d+)$')
  local count = pack and tonumber(pack[2][2])
  if pack and ms == pack_ms and pack_seq - seq < count then
    return pack[1], count - 1 - (pack_seq - seq)
  end
end
local function is_settled(pack, place)
  local bits = redis.call('HGET', settled, pack)
  local byte = bits and string.byte(bits, math.floor(place / 8) + 1)
  return byte and bit.band(byte, bit.lshift(1, place % 8)) ~= 0
end
local pack, place = pack_of(id)
local at = pack or id
local rows, entries = redis.pcall('XPENDING', stream, group, at, at, 1), redis.pcall('XRANGE', stream, at, at)
local pending, entry = not rows.err and rows[1], not entries.err and entries[1] and entries[1][2]
local in_pack = pack and entry
if in_pack and not (pending and not is_settled(pack, place)) then
  -- A script cannot read the messages of a pack: the body of one that is settled there comes with the call.
  pending, entry = nil, nil
end
local function delivered()
  for _, list in ipairs(redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'GROUPS', stream) or {}) do
    local info = map(list)
    if info.name == group then
      return info['last-delivered-id']
    end
  end
end
-- The body that begins at `from`; one field if it has too many values to be copied one by one.
local function body_of(fields, from)
  local body = {}
  for at = from, #fields do
    body[#body + 1] = fields[at]
  end
  return bounded(body)
end

local due, kept = redis.call('ZSCORE', retry_due, id), redis.call('HEXISTS', retry_items, id) == 1
if fault == 'retry_lost' and due and not kept then
  local body = #ARGV > 8 and { unpack(ARGV, 8) } or entry and body_of(entry, 1)
  if entry and pending then
    -- It will be settled where it is pending.
    redis.call('ZREM', retry_due, id)
  elseif body then
    -- As `retry` writes it: attempt, error, history, body.
    redis.call('HSET', retry_items, id, cmsgpack.pack({ '2', '', '', unpack(body) }))
  elseif in_pack then
    -- The pack has it, and could not be read.
    return 0
  else
    redis.call('XADD', dlq, '*', 'reason', 'orphan', 'attempts', '0', 'error', '', 'origin', id,
      'topic', topic, 'partition', partition, 'group', group, 'history', '')
    redis.call('ZREM', retry_due, id)
  end
  return 1
elseif fault == 'retry_stranded' and kept and not due then
  if pending and entry then
    redis.call('HDEL', retry_items, id)
  else
    redis.call('ZADD', retry_due, now_ms, id)
  end
  return 1
elseif fault == 'pending_and_parked' and pending then
  local origin = entry and (source == 'log' and id or entry[3] == 'origin' and entry[4])
  local dropped = origin and redis.call('ZREM', retry_due, origin) or 0
  redis.call('HDEL', retry_items, dropped == 1 and origin or '')
  return dropped
elseif fault == 'ghost' and pending and not entry then
  local open = 1
  if pack then
    -- Of a pack, all messages that are not settled.
    open = 0
    for at_place = 0, place do
      open = open + (is_settled(pack, at_place) and 0 or 1)
    end
  end
  redis.call('HDEL', held, note)
  redis.call('HDEL', settled, id)
  redis.call('XACK', stream, group, id)
  return math.max(open, 1)
elseif fault == 'note_stray' and not pending then
  -- As `audit` finds it: a pending pack that `packs` does not know may hold the message.
  local above = source == 'log' and not pack and redis.pcall('XPENDING', stream, group, id, '+', 1)
  local held_by = above and above[1] and string.match(above[1][1], '^%d+')
  return held_by and held_by == string.match(id, '^%d+') and 0 or redis.call('HDEL', held, note)
elseif fault == 'retry_leaked' and source == 'retry' and not pending then
  local position, again = delivered(), entry and { unpack(entry, 1, 8) }
  if position and again and wide(position) >= wide(id) then
    for _, value in ipairs(body_of(entry, 9)) do
      again[#again + 1] = value
    end
    redis.call('XADD', stream, '*', unpack(again))
    return redis.call('XDEL', stream, id)
  end
elseif fault == 'consumer_stray' and id ~= owner and not all.err and redis.call('EXISTS', lease) == 0 then
  local ids = {}
  for at, row in ipairs(redis.call('XPENDING', stream, group, 'IDLE', IDLE_MS, '-', '+', 100, id)) do
    ids[at] = row[1]
  end
  if #ids > 0 then
    -- Nothing is delivered by this: JUSTID keeps the delivery counts.
    ids[#ids + 1] = 'JUSTID'
    redis.call('XCLAIM', stream, group, owner, IDLE_MS, unpack(ids))
  end
  return #ids > 0 and 1 or 0
elseif fault == 'lease_broken' then
  local held_by = redis.call('GET', lease)
  if held_by and (redis.call('PTTL', lease) < 0 or not is_owner(fence, held_by)) then
    return redis.call('DEL', lease)
  end
elseif fault == 'position_ahead' then
  local position = delivered()
  if position and wide(map(redis.call('XINFO', 'STREAM', stream))['last-generated-id']) < wide(position) then
    redis.call('XGROUP', 'SETID', stream, group, '0')
    return 1
  end
end
return 0
