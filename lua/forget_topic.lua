-- forget_topic: marks a topic as being deleted: from then on it is not there for anybody else.
-- KEYS[1] meta HASH the topic's settings
-- returns how many partitions it has or had, or nil if there is no such topic
local meta = KEYS[1]

local partitions = redis.call('HGET', meta, 'partitionCount')
if partitions then
  redis.call('HSET', meta, 'deleting', partitions)
  redis.call('HDEL', meta, 'partitionCount')
end
return redis.call('HGET', meta, 'deleting')
