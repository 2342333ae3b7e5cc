-- create_batch: creates a batch, unless it exists.
-- KEYS[1] batch HASH next, sealed, done, dead, left, ended, succeeded, keep, parent, every, told, died, touched,
--   created; block:<from>: 'to token state target'; on:<event>: the message for it
-- KEYS[2] batches ZSET batches of the partition by the time in milliseconds at which they expire
-- ARGV[1] id of the batch
-- ARGV[2] keep for how many milliseconds it is kept after its end
-- ARGV[3] parent 'id number' of its place in another batch, or empty
-- ARGV[4] every percent after which a progress is sent; 0 for none
-- ARGV[5] events... word and message of each
-- include clock
-- returns 1, or 0 if it exists
local batch, batches = KEYS[1], KEYS[2]
local id, keep, parent, every = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local UNENDED_MS, OLD = 7776000000, 100

local _, now_ms, now_text = clock()
-- Writes that are never refused come first: a server that is out of memory then refuses the first of the others.
-- They also detect a key of the wrong type before anything is changed.
redis.call('HDEL', batch, '')
local old = redis.call('ZRANGE', batches, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, OLD)
if #old > 0 then
  redis.call('ZREM', batches, unpack(old))
end
local name = string.sub(id, -32)
if redis.call('ZSCORE', batches, name) and redis.call('HEXISTS', batch, 'next') == 1 then
  return 0
end
local values = { 'created', now_text, 'touched', now_text, 'next', '0', 'keep', keep, 'parent', parent }
values[#values + 1], values[#values + 2] = 'every', every
for at = 5, #ARGV, 2 do
  values[#values + 1], values[#values + 2] = 'on:' .. ARGV[at], ARGV[at + 1]
end
redis.call('HSET', batch, unpack(values))
redis.call('PEXPIRE', batch, UNENDED_MS)
local expires = string.format('%.0f', now_ms + UNENDED_MS)
redis.call('ZADD', batches, expires, name)
return 1
