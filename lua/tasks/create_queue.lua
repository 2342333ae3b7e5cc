-- create_queue: stores the settings of a delay queue unless it exists.
-- KEYS[1] meta HASH the queue's settings
-- ARGV[1] shards number of them
-- ARGV[2] format of the data
-- ARGV[3] dead_letter_retention when dead tasks are dropped, or 'keep'
-- returns {shards, format, deadLetterRetention or nil}
local meta = KEYS[1]
local shards, format, dead_letter_retention = ARGV[1], ARGV[2], ARGV[3]

-- A queue that exists keeps all dead tasks if it has no such field.
local is_new = redis.call('HLEN', meta) == 0
redis.call('HSETNX', meta, 'shards', shards)
redis.call('HSETNX', meta, 'format', format)
if is_new and dead_letter_retention ~= 'keep' then
  redis.call('HSETNX', meta, 'deadLetterRetention', dead_letter_retention)
end
return redis.call('HMGET', meta, 'shards', 'format', 'deadLetterRetention')
