-- expand: increases the number of partitions of a topic; it never decreases.
-- KEYS[1] meta HASH the topic's settings
-- ARGV[1] partitions that it should have
-- returns 1, or the error NOTOPIC
local meta = KEYS[1]
local partitions = ARGV[1]

local stored = redis.call('HGET', meta, 'partitionCount')
if not stored then
  return redis.error_reply('NOTOPIC the topic is not there')
end
if (tonumber(stored) or 0) < tonumber(partitions) then
  redis.call('HSET', meta, 'partitionCount', partitions)
end
return 1
