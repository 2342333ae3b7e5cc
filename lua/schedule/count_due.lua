-- count_due: counts the items of a list by time.
-- KEYS[1] list ZSET delayed messages by due time, or members by the expiry of their heartbeat, in milliseconds
-- returns {all of them, those whose time has come}
local list = KEYS[1]

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return { redis.call('ZCARD', list), redis.call('ZCOUNT', list, '-inf', now) }
