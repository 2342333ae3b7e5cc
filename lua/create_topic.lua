-- create_topic: stores a topic's settings unless it has some.
-- KEYS[1] meta HASH the topic's settings
-- KEYS[2] deleted STRING there while it is remembered that the topic was deleted
-- ARGV[1] mode 'create', or 'restore': then not one that was deleted
-- ARGV[2] partitions how many
-- ARGV[3] format of keys and fields
-- ARGV[4] retention when entries leave the log
-- ARGV[5] max_length of a partition's log, or 0 for no bound
-- returns {partitionCount, format, retention, maxLength or nil, nil}; or the error NOTOPIC while it is being deleted,
--   DELETED where it is to be restored and is being deleted or was
local meta, deleted = KEYS[1], KEYS[2]
local mode, partitions, format, retention, max_length = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local deleting = redis.call('HEXISTS', meta, 'deleting') == 1
if mode == 'restore' and redis.call('HEXISTS', meta, 'partitionCount') == 0 then
  if deleting or redis.call('EXISTS', deleted) == 1 then
    return redis.error_reply('DELETED the topic was deleted')
  end
end
if deleting then
  return redis.error_reply('NOTOPIC the topic is being deleted')
end
if redis.call('HSETNX', meta, 'partitionCount', partitions) == 1 then
  redis.call('HSETNX', meta, 'format', format)
  redis.call('HSETNX', meta, 'retention', retention)
  if max_length ~= '0' then
    redis.call('HSETNX', meta, 'maxLength', max_length)
  end
end
-- Last: whoever is refused has changed nothing.
redis.call('DEL', deleted)
return redis.call('HMGET', meta, 'partitionCount', 'format', 'retention', 'maxLength', 'deleting')
