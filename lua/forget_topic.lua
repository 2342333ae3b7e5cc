-- forget_topic: marks a topic as being deleted: from then on it is not there for anybody else.
-- KEYS[1] meta HASH the topic's settings
-- KEYS[2] deleted STRING there while it is remembered that the topic was deleted
-- ARGV[1] remember_ms for how long that is
-- returns how many partitions it has or had, or nil if there is no such topic
local meta, deleted = KEYS[1], KEYS[2]
local remember_ms = ARGV[1]

local known = redis.call('HMGET', meta, 'partitionCount', 'deleting')
if not known[1] and not known[2] then
  return nil
end
-- A write that is never refused comes first: then the others pass too when the server is out of memory.
redis.call('HDEL', meta, '')
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
redis.call('SET', deleted, now_ms, 'PX', remember_ms)
if known[1] then
  redis.call('HSET', meta, 'deleting', known[1])
  redis.call('HDEL', meta, 'partitionCount')
end
return known[1] or known[2]
