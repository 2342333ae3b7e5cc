-- withdraw_end: withdraws the end that is counted for an owner: it lost its lease, but is alive.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant; ends: epochs of owners that never released it
-- ARGV[1] epoch of the lease that it lost
-- returns 1 if it was counted, else 0
local fence = KEYS[1]
local epoch = ARGV[1]

-- Not fenced: the caller has lost its lease, and withdraws only its own end.
local ends = {}
local known = redis.call('HGET', fence, 'ends') or ''
for other in string.gmatch(known, '%d+') do
  if other ~= epoch then
    ends[#ends + 1] = other
  end
end
local left = table.concat(ends, ' ')
if left == known then
  return 0
end
-- HDEL first, so that a server that is out of memory accepts HSET too.
redis.call('HDEL', fence, 'ends')
redis.call('HSET', fence, 'ends', left)
return 1
