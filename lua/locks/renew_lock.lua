-- renew_lock: extends a lock by another ttl; one that merely expired is revived unless another client was granted it.
-- KEYS[1] lock HASH owner, token, epoch, ttl and expiry ('till') of the grant; with a ttl
-- KEYS[2] index ZSET names of the locks of the shard by the time in milliseconds at which their record ends
-- ARGV[1] token of the grant
-- ARGV[2] ttl_ms validity of the lock from now on
-- ARGV[3] name of the lock, for the index
-- include clock, fence
-- returns 1, or the error FENCED
local lock, index = KEYS[1], KEYS[2]
local token, ttl_ms, name = ARGV[1], ARGV[2], ARGV[3]
local KEPT_MS = 86400000

if not is_owner(lock, token) then
  return fenced('lock')
end
-- A key of the wrong type is detected before anything is changed.
redis.call('ZSCORE', index, name)
local _, now_ms = clock()
local till = now_ms + ttl_ms
-- A write that is never refused comes first: a server that is out of memory then accepts HSET too.
redis.call('PEXPIRE', lock, ttl_ms + KEPT_MS)
redis.call('HSET', lock, 'ttl', ttl_ms, 'till', string.format('%.0f', till))
redis.call('ZADD', index, string.format('%.0f', till + KEPT_MS), name)
return 1
