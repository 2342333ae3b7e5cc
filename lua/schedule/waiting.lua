-- waiting: counts waiting messages.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- returns {all of them, those that are due}
local delay = KEYS[1]

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return { redis.call('ZCARD', delay), redis.call('ZCOUNT', delay, '-inf', now) }
