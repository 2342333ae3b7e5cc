-- recur_remove: forgets something that recurs; what it has scheduled stays.
-- KEYS[1] recur ZSET what recurs, by when it is due next
-- KEYS[2] recur_items HASH rule, pause, next time and body of what recurs, by id
-- ARGV[1] id of what recurs
-- returns 1 if it was there, else 0
local recur, recur_items = KEYS[1], KEYS[2]
local id = ARGV[1]

-- Read first: a key of a foreign type is met before anything was changed.
redis.call('HLEN', recur_items)
redis.call('ZREM', recur, id)
return redis.call('HDEL', recur_items, id)
