-- find: reads one waiting message.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id
-- ARGV[1] id of the message
-- returns {due, item or nil}, or nil if it does not wait
local delay, delay_items = KEYS[1], KEYS[2]
local id = ARGV[1]

local due, item = redis.call('ZSCORE', delay, id), redis.call('HGET', delay_items, id)
return due and { due, item }
