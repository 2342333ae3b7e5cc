-- release: releases a lease; from then on its token is invalid.
-- KEYS[1] lease STRING the token while the lease is valid
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- ARGV[1] token of the grant
-- ARGV[2] ends epochs of previous owners that never released it, for the next owner; or ''
-- include fence
-- returns 1, or the error FENCED
local lease, fence = KEYS[1], KEYS[2]
local token, ends = ARGV[1], ARGV[2]

if not is_owner(fence, token) then
  return fenced()
end
-- DEL first, so that a server that is out of memory accepts HSET too. The epoch stays: it must never repeat.
redis.call('DEL', lease)
redis.call('HSET', fence, 'token', '', 'ends', ends)
return 1
