-- count_due: counts the items of a list by time.
-- KEYS[1] list ZSET delayed messages by due time, or members by the expiry of their heartbeat, in milliseconds
-- include clock
-- returns {all of them, those whose time has come}
local list = KEYS[1]

local _, _, now = clock()
return { redis.call('ZCARD', list), redis.call('ZCOUNT', list, '-inf', now) }
