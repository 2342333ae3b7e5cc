-- create_packed: creates a group on a log with packs, and notes as settled what a pack holds up to its position.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[3] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- ARGV[1] group to create
-- ARGV[2] position above which the group reads: an id
-- returns 1, or the error BUSYGROUP if the group exists
local log, packs, settled = KEYS[1], KEYS[2], KEYS[3]
local group, position = ARGV[1], ARGV[2]

-- Read first: a key of the wrong type is detected before anything is changed.
redis.call('HLEN', settled)
local above = '(' .. position
local pack = redis.call('XRANGE', packs, above, '+', 'COUNT', 1)[1]
-- In one step with the bits: for a group that exists nothing may be noted, since it may have the pack pending.
local created = redis.pcall('XGROUP', 'CREATE', log, group, position, 'MKSTREAM')
if created.err then
  return created
end
-- A pack that holds the position is read as a whole: what it holds up to the position is noted as settled.
if pack then
  local ms, seq = string.match(position, '^(%d+)%-(%d+)$')
  local pack_ms, pack_seq = string.match(pack[1], '^(%d+)%-(%d+)$')
  local count = tonumber(pack[2][2])
  local settled_count, bytes = count - (pack_seq - seq), {}
  if pack_ms == ms and settled_count > 0 then
    for at = 1, math.ceil(count / 8) do
      local here = math.min(math.max(settled_count - 8 * (at - 1), 0), 8)
      bytes[at] = string.char(2 ^ here - 1)
    end
    local id = pack[1]
    local before = redis.call('HGET', settled, id) or ''
    for at = 1, #bytes do
      bytes[at] = string.char(bit.bor(string.byte(bytes[at]), string.byte(before, at) or 0))
    end
    local bits = table.concat(bytes)
    redis.call('HSET', settled, id, bits)
  end
end
return 1
