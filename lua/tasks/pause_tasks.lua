-- pause_tasks: pauses or resumes a shard of a delay queue.
-- KEYS[1] watcher HASH since when the shard is paused, beside who watches the next due time
-- KEYS[2] wake LIST of at most one element: wakes one waiting worker
-- ARGV[1] paused '1' or '0'
-- include clock
-- returns 1 if that changed anything, else 0
local watcher, wake = KEYS[1], KEYS[2]
local paused = ARGV[1]

local before = redis.call('HEXISTS', watcher, 'paused') == 1 and '1' or '0'
if paused == before then
  return 0
end
local called = redis.call('LLEN', wake) > 0
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', watcher, 'paused')
if paused == '1' then
  local _, _, now_ms = clock()
  redis.call('HSET', watcher, 'paused', now_ms)
elseif not called then
  -- This worker claims what has become due, and calls the next one if that is more than it takes.
  redis.call('LPUSH', wake, '1')
end
return 1
