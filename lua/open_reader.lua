-- open_reader: lets a new reader of a lease begin, and makes what earlier readers of it left on the way fail.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- ARGV[1] token of the lease
-- ARGV[2] reader a word that differs with every call
-- returns 1, or the error FENCED
local fence = KEYS[1]
local token, reader = ARGV[1], ARGV[2]

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
-- Behind a cut connection the server may still hold a blocked request that would read as soon as an entry comes,
-- and answer nobody. It watches the fence: changing any field of it aborts that request.
-- HDEL first, so that HSET passes too when the server is out of memory.
redis.call('HDEL', fence, 'reader')
redis.call('HSET', fence, 'reader', reader)
return 1
