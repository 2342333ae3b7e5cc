-- create_topic: stores a topic's settings unless it has some.
-- KEYS[1] meta HASH the topic's settings
-- KEYS[2] deleted STRING when the topic was deleted, in milliseconds, while that is remembered
-- ARGV[1] mode 'create', or 'restore': then not one that was deleted, nor in the place of one
-- ARGV[2] partitions number of partitions
-- ARGV[3] format of keys and fields
-- ARGV[4] retention when entries leave the log
-- ARGV[5] max_length of a partition's log, or 0 for no bound
-- ARGV[6] reborn generation of the topic to restore: its 'reborn', or 0
-- ARGV[7] dead_letter_retention when dead letters are dropped, or 'keep'
-- ARGV[8] packing how producers pack messages, or 'none'
-- include clock
-- returns {partitionCount, format, retention, maxLength or nil, nil, reborn or nil, deadLetterRetention or nil,
--   earlier or nil, packing or nil, dictionary or nil}; or the error NOTOPIC while it is being deleted; in the mode
--   'restore' DELETED if it was or is being deleted, or another topic has its name by now
local meta, deleted = KEYS[1], KEYS[2]
local mode, partitions, format, retention, max_length, reborn, dead_letter_retention, packing = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local known = redis.call('HMGET', meta, 'partitionCount', 'deleting', 'reborn')
local when = redis.call('GET', deleted)
if mode == 'restore' then
  if not known[1] and (known[2] or when) then
    return redis.error_reply('DELETED the topic was deleted')
  elseif known[1] and (tonumber(known[3] or '0') or 0) > tonumber(reborn) then
    return redis.error_reply('DELETED the topic was deleted and created again')
  end
end
if known[2] then
  return redis.error_reply('NOTOPIC the topic is being deleted')
end
-- A topic that exists needs no write: its consumers can start while the server is out of memory.
if not known[1] then
  redis.call('HSETNX', meta, 'partitionCount', partitions)
  redis.call('HSETNX', meta, 'format', format)
  redis.call('HSETNX', meta, 'retention', retention)
  if max_length ~= '0' then
    redis.call('HSETNX', meta, 'maxLength', max_length)
  end
  if dead_letter_retention ~= 'keep' then
    redis.call('HSETNX', meta, 'deadLetterRetention', dead_letter_retention)
  end
  if packing ~= 'none' then
    redis.call('HSETNX', meta, 'packing', packing)
  end
  if when then
    -- Clients of the previous topic must detect that this is another one, even if the clock went back.
    local _, now_ms = clock()
    redis.call('HSET', meta, 'reborn', string.format('%.0f', math.max(now_ms, (tonumber(when) or 0) + 1)))
  end
end
-- Last: a refused call must not have changed anything.
if when then
  redis.call('DEL', deleted)
end
return redis.call('HMGET', meta, 'partitionCount', 'format', 'retention', 'maxLength', 'deleting', 'reborn',
  'deadLetterRetention', 'earlier', 'packing', 'dictionary')
