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
  -- Messages with a unique id that are not settled may be where the earlier number put them.
  local earlier = redis.call('HGET', meta, 'earlier')
  earlier = earlier and earlier .. ' ' .. stored or stored
  redis.call('HSET', meta, 'partitionCount', partitions, 'earlier', earlier)
end
return 1
