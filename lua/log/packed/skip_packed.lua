-- skip_packed: notes as settled what a pack holds up to the position at which a new group begins.
-- KEYS[1] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[2] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- ARGV[1] position above which the group reads: an id
-- returns 1
local packs, settled = KEYS[1], KEYS[2]
local position = ARGV[1]

-- A pack that holds the position is read again as a whole: what it holds up to the position is noted as settled.
local above = '(' .. position
local pack = position ~= '0' and position ~= '$' and redis.pcall('XRANGE', packs, above, '+', 'COUNT', 1)[1]
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
