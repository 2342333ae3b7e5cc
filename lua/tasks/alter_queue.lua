-- alter_queue: changes settings of a delay queue.
-- KEYS[1] meta HASH the queue's settings
-- ARGV[1] dead_letter_retention when dead tasks are dropped, 'keep', or '' to leave it
-- returns {shards, format, deadLetterRetention or nil}, or the error NOQUEUE
local meta = KEYS[1]
local dead_letter_retention = ARGV[1]

if redis.call('HEXISTS', meta, 'shards') == 0 then
  return redis.error_reply('NOQUEUE the queue is not there')
end
if dead_letter_retention == 'keep' then
  redis.call('HDEL', meta, 'deadLetterRetention')
elseif dead_letter_retention ~= '' then
  redis.call('HSET', meta, 'deadLetterRetention', dead_letter_retention)
end
return redis.call('HMGET', meta, 'shards', 'format', 'deadLetterRetention')
