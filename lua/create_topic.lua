-- create_topic: stores a topic's settings unless it has some.
-- KEYS[1] meta HASH the topic's settings
-- ARGV[1] partitions how many
-- ARGV[2] format of keys and fields
-- ARGV[3] retention when entries leave the log
-- ARGV[4] max_length of a partition's log, or 0 for no bound
-- returns {partitionCount, format, retention, maxLength or nil, nil}, or the error NOTOPIC while it is being deleted
local meta = KEYS[1]
local partitions, format, retention, max_length = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HEXISTS', meta, 'deleting') == 1 then
  return redis.error_reply('NOTOPIC the topic is being deleted')
end
if redis.call('HSETNX', meta, 'partitionCount', partitions) == 1 then
  redis.call('HSETNX', meta, 'format', format)
  redis.call('HSETNX', meta, 'retention', retention)
  if max_length ~= '0' then
    redis.call('HSETNX', meta, 'maxLength', max_length)
  end
end
return redis.call('HMGET', meta, 'partitionCount', 'format', 'retention', 'maxLength', 'deleting')
