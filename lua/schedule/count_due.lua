-- count_due: counts the items of a list by time.
-- KEYS[1] list ZSET delayed messages by due time, or members by the expiry of their heartbeat, in milliseconds
-- include clock
-- returns {all of them, those whose time has come, the first time or nil}
local list = KEYS[1]

local _, _, now = clock()
local head = redis.call('ZRANGE', list, 0, 0, 'WITHSCORES')
return { redis.call('ZCARD', list), redis.call('ZCOUNT', list, '-inf', now), head[2] or false }
