-- recur_remove: removes a recurring rule; messages that it has scheduled stay.
-- KEYS[1] recur ZSET ids of recurring rules by next due time
-- KEYS[2] recur_items HASH rule, pause, next time and body of recurring rules, by id
-- ARGV[1] id of the recurring rule
-- returns 1 if it existed, else 0
local recur, recur_items = KEYS[1], KEYS[2]
local id = ARGV[1]

-- Read first: a key of the wrong type is detected before anything is changed.
redis.call('HLEN', recur_items)
redis.call('ZREM', recur, id)
return redis.call('HDEL', recur_items, id)
