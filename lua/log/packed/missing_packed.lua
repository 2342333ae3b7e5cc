-- missing_packed: counts messages of packs that were deleted between others, which the numbers in packs still have.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- ARGV[1] positions... ids: what is above each of them is counted
-- returns {1 if all are counted or 0, id of the log's first entry or nil, messages beyond one an entry above the first
--   position, the same of the next, ...}
local log, packs = KEYS[1], KEYS[2]
-- Whether a pack exists is only known from its body: the number of packs, and the bytes that are copied for that.
local MAX_PACKS, MAX_BYTES = 500, 1048576

local reply = { 1, false }
for at = 1, #ARGV do
  reply[at + 2] = 0
end
if redis.call('EXISTS', log) == 0 then
  return reply
end
local info, flat = {}, redis.call('XINFO', 'STREAM', log)
for at = 1, #flat, 2 do
  info[flat[at]] = flat[at + 1]
end
-- Ids padded to one length, so that text comparison is correct: Lua numbers would lose their last digits.
local function wide(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.rep('0', 20 - #ms) .. ms .. '-' .. string.rep('0', 20 - #seq) .. seq
end
local first, deleted = info['first-entry'], info['max-deleted-entry-id']
reply[2] = first and first[1]
-- Entries that are trimmed, or deleted at the beginning, are below the first one: `packs` counts them rightly.
if not first or wide(deleted) < wide(first[1]) then
  return reply
end
local lowest = ARGV[1]
for at = 2, #ARGV do
  lowest = wide(ARGV[at]) < wide(lowest) and ARGV[at] or lowest
end
local from = wide(lowest) < wide(first[1]) and first[1] or '(' .. lowest
local bytes, known = 0, redis.pcall('XRANGE', packs, from, deleted, 'COUNT', MAX_PACKS + 1)
for n, pack in ipairs(known.err and {} or known) do
  if n > MAX_PACKS or bytes >= MAX_BYTES then
    reply[1] = 0
    break
  end
  local id, count = pack[1], tonumber(pack[2][2])
  local entry = redis.call('XRANGE', log, id, id)[1]
  bytes = bytes + (entry and #table.concat(entry[2]) or 0)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  for at = 1, entry and 0 or #ARGV do
    if wide(ARGV[at]) < wide(id) then
      -- Of a pack that holds the position, only what is behind that counts.
      local at_ms, at_seq = string.match(ARGV[at], '^(%d+)%-(%d+)$')
      local above = at_ms == ms and math.min(seq - at_seq, count) or count
      reply[at + 2] = reply[at + 2] + above - 1
    end
  end
end
return reply
