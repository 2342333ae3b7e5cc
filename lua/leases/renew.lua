-- renew: extends a lease by another ttl; one that merely expired is revived as long as no other owner acquired it.
-- KEYS[1] lease STRING the token while the lease is valid
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- ARGV[1] token of the grant
-- ARGV[2] ttl_ms validity of the lease from now on
-- include fence
-- returns 1, or the error FENCED
local lease, fence = KEYS[1], KEYS[2]
local token, ttl_ms = ARGV[1], ARGV[2]

-- The common path writes the lease only: a write to the fence would abort the owner's own reads.
local held = redis.call('GET', lease)
if held == token then
  redis.call('PEXPIRE', lease, ttl_ms)
  return 1
end
if not held and is_owner(fence, token) then
  -- A write that is never refused comes first: a server that is out of memory then accepts SET too.
  redis.call('DEL', lease)
  redis.call('SET', lease, token, 'PX', ttl_ms)
  return 1
end
return fenced()
