-- count_due: counts the items of a list by time.
-- KEYS[1] list ZSET delayed messages by due time, or members by the expiry of their heartbeat, in milliseconds
-- KEYS[2] items HASH bodies of the delayed messages by id; `list` stands in for members
-- KEYS[3] claims ZSET claimed tasks, whose bodies are among them; `list` stands in where there are none
-- include clock
-- returns {all of them, those whose time has come, the first time or nil}; a body without a time is one that is due:
--   nothing comes for it
local list, items, claims = KEYS[1], KEYS[2], KEYS[3]

local _, _, now = clock()
local head, total = redis.call('ZRANGE', list, 0, 0, 'WITHSCORES'), redis.call('ZCARD', list)
-- Another type at the others is told elsewhere.
local bodies, claimed = redis.pcall('HLEN', items), claims ~= list and redis.pcall('ZCARD', claims) or 0
local known = items ~= list and type(bodies) == 'number' and type(claimed) == 'number'
local stray = known and math.max(bodies - claimed - total, 0) or 0
return { total + stray, redis.call('ZCOUNT', list, '-inf', now) + stray, head[2] or false }
