-- recur_pause: pauses or resumes a recurring rule.
-- KEYS[1] recur ZSET ids of recurring rules by next due time
-- KEYS[2] recur_items HASH rule, pause, next time and body of recurring rules, by id
-- KEYS[3] delay ZSET ids by due time in milliseconds
-- KEYS[4] wake STREAM of one entry at a partition; at a shard a LIST of at most one element
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] id of the recurring rule
-- ARGV[3] next time in milliseconds since 1970; '' to pause
-- returns 1 if it exists, else 0
local recur, recur_items, delay, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local place, id, next = ARGV[1], ARGV[2], ARGV[3]

local item = redis.call('HGET', recur_items, id)
local readable, parts = pcall(cmsgpack.unpack, item)
if not item or not readable or type(parts) ~= 'table' or #parts < 5 then
  return 0
end
parts[2] = next == '' and '1' or '0'
parts[3] = next ~= '' and next or parts[3]
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
local first = next ~= '' and tonumber(next) or math.huge
local wakes = first < math.min(tonumber(head[2] or math.huge), tonumber(recurs[2] or math.huge))
local called = wakes and redis.call(place == 'shard' and 'LLEN' or 'XLEN', wake)
-- A write that is never refused comes first: a server that is out of memory then accepts the others too. All keys
-- have been read: one of the wrong type was detected before anything was changed.
redis.call('ZREM', recur, id)
redis.call('HSET', recur_items, id, cmsgpack.pack(parts))
if next ~= '' then
  redis.call('ZADD', recur, next, id)
end
if wakes and place ~= 'shard' then
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', next)
elseif called == 0 then
  redis.call('LPUSH', wake, next)
end
return 1
