-- alter_topic: changes settings of a topic.
-- KEYS[1] meta HASH the topic's settings
-- ARGV[1] retention when entries leave the log, or '' to leave it
-- ARGV[2] max_length of a partition's log, '0' for no bound, or '' to leave it
-- ARGV[3] dead_letter_retention when dead letters are dropped, 'keep', or '' to leave it
-- ARGV[4] packing how producers pack messages, or '' to leave it; only of a topic that has one
-- returns 1, or the error NOTOPIC
local meta = KEYS[1]
local retention, max_length, dead_letter_retention, packing = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HEXISTS', meta, 'partitionCount') == 0 then
  return redis.error_reply('NOTOPIC the topic is not there')
end
-- Clients that do not know packs may be at work on a topic without them.
if packing ~= '' and redis.call('HEXISTS', meta, 'packing') == 0 then
  return redis.error_reply('NOTOPIC the topic is not packed any more')
end
if max_length == '0' then
  redis.call('HDEL', meta, 'maxLength')
elseif max_length ~= '' then
  redis.call('HSET', meta, 'maxLength', max_length)
end
if dead_letter_retention == 'keep' then
  redis.call('HDEL', meta, 'deadLetterRetention')
elseif dead_letter_retention ~= '' then
  redis.call('HSET', meta, 'deadLetterRetention', dead_letter_retention)
end
if retention ~= '' then
  redis.call('HSET', meta, 'retention', retention)
end
if packing ~= '' then
  redis.call('HSET', meta, 'packing', packing)
end
return 1
