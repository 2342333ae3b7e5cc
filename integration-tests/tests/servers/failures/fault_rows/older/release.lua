-- release: gives a lease back; from then on its token is good for nothing.
-- KEYS[1] lease STRING the token while the lease lives
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- ARGV[1] token of the grant
-- ARGV[2] abandoned '1' if the next owner is to be told that an owner before never released it, else '0'
-- returns 1, or the error FENCED
local lease, fence = KEYS[1], KEYS[2]
local token, abandoned = ARGV[1], ARGV[2]

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
-- DEL first, so that HSET passes too when the server is out of memory. The epoch stays: it must never repeat.
redis.call('DEL', lease)
redis.call('HSET', fence, 'token', '', 'abandoned', abandoned)
return 1
