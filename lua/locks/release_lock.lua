-- release_lock: releases a lock or leaves its queue, and calls the next client in the queue if the lock is free.
-- KEYS[1] lock HASH owner, token, epoch, ttl and expiry ('till') of the grant; with a ttl
-- KEYS[2] queue ZSET nonces of waiting clients by arrival in microseconds; with a ttl
-- KEYS[3] places ZSET the same nonces by the time in milliseconds at which their place ends; with a ttl
-- KEYS[4] changes STREAM of one entry: the newest change, with the nonce that is called; with a ttl
-- KEYS[5] index ZSET names of the locks of the shard by the time in milliseconds at which their record ends
-- ARGV[1] nonce of the attempt, or '' if an operator ends a grant
-- ARGV[2] name of the lock, for the index
-- ARGV[3] ends epoch of the grant that an operator ends, or ''
-- include clock
-- returns 1 if the lock was held under this nonce or epoch, 2 if the nonce had a place in the queue, 0 if neither
local lock, queue, places, changes, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, name, ends = ARGV[1], ARGV[2], ARGV[3]
local PLACE_MS, CALL_MS = 3000, 500

local _, now = clock()
-- Every key is read before the first is written: one of the wrong type is detected before anything is changed.
local token = redis.call('HGET', lock, 'token') or ''
local listed = redis.call('ZSCORE', index, name)
local known = redis.call('XLEN', changes) > 0
local waited = redis.call('ZSCORE', queue, nonce)
local gone = redis.call('ZRANGEBYSCORE', places, '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
redis.call('ZREM', places, nonce, unpack(gone))
redis.call('ZREM', queue, nonce, unpack(gone))
local held, by = string.match(token, '^(%d+):(.*)$')
local mine = held ~= nil and (ends == '' and by == nonce or ends == held)
if mine then
  redis.call('DEL', lock)
end
local first = (mine or token == '') and redis.call('ZRANGE', queue, 0, 0)[1]
if first then
  -- It has half a second to take the lock. If it has ended, the next one is called then, and not after its whole place.
  redis.call('ZADD', places, string.format('%.0f', now + CALL_MS), first)
  redis.call('PEXPIRE', places, 2 * PLACE_MS)
  redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'next', first)
  redis.call('PEXPIRE', changes, PLACE_MS)
elseif mine and known then
  -- Deleting notifies those who wait for a change, and leaves nothing.
  redis.call('DEL', changes)
end
if listed and not first and (mine or token == '') then
  redis.call('ZREM', index, name)
end
return mine and 1 or waited and 2 or 0
