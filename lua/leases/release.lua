-- release: releases a lease; from then on its token is invalid.
-- KEYS[1] lease STRING the token while the lease is valid
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[3] gate STREAM of the last reader
-- ARGV[1] token of the grant
-- ARGV[2] ends epochs of previous owners that never released it, for the next owner; or ''
-- ARGV[3] reader the word of the last reader, or ''
-- include fence
-- returns 1, {'READER', word of the last reader} if it is another one, or the error FENCED
local lease, fence, gate = KEYS[1], KEYS[2], KEYS[3]
local token, ends, reader = ARGV[1], ARGV[2], ARGV[3]

if not is_owner(fence, token) then
  return fenced()
end
local other = other_reader(fence, reader)
if other then
  return other
end
-- DEL first, so that a server that is out of memory accepts HSET too. The epoch stays: it must never repeat.
redis.call('DEL', lease, gate)
redis.call('HSET', fence, 'token', '', 'ends', ends, 'reader', '')
return 1
