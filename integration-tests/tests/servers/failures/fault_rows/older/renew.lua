-- renew: lets a lease live for another ttl; one that merely ran out is revived as long as nobody took it.
-- KEYS[1] lease STRING the token while the lease lives
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- ARGV[1] token of the grant
-- ARGV[2] ttl_ms how long the lease lives from now
-- returns 1, or the error FENCED
local lease, fence = KEYS[1], KEYS[2]
local token, ttl_ms = ARGV[1], ARGV[2]

-- The common path touches the lease only: a write to the fence would abort the owner's own reads.
local held = redis.call('GET', lease)
if held == token then
  redis.call('PEXPIRE', lease, ttl_ms)
  return 1
end
if not held and redis.call('HGET', fence, 'token') == token then
  -- A write that is never refused comes first: then SET passes too when the server is out of memory.
  redis.call('DEL', lease)
  redis.call('SET', lease, token, 'PX', ttl_ms)
  return 1
end
return redis.error_reply('FENCED lease is lost')
