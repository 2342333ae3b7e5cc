-- recur_fire: schedules what recurs and is due, and sets its next time, if nobody did so before.
-- KEYS[1] recur ZSET what recurs, by when it is due next
-- KEYS[2] recur_items HASH rule, pause, next time and body of what recurs, by id
-- KEYS[3] delay ZSET ids by due time in milliseconds
-- KEYS[4] delay_items HASH bodies by id; at a shard also of tasks that are worked on
-- KEYS[5] claims ZSET a shard's tasks that are worked on; at a partition delay again, and not used
-- KEYS[6] wake STREAM of one entry at a partition; at a shard a LIST of at most one element
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] id of what recurs
-- ARGV[3] expected its next time, as the caller knows it
-- ARGV[4] next time from then on, in milliseconds since 1970; '' for never
-- ARGV[5] fires times to schedule it for, in milliseconds, with spaces in between; at most 100, may be none
-- returns 1, or 2 if bodies came to 1 MiB before it was done: then it is to be asked again; or 0 if it is paused, gone,
-- or due at another time
local recur, recur_items, delay, delay_items, claims, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local place, id, expected, next, fires = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MAX_BYTES = 1048576

local due, item = redis.call('ZSCORE', recur, id), redis.call('HGET', recur_items, id)
local readable, parts = pcall(cmsgpack.unpack, item)
-- Somebody else may have set a score that is no whole time: it counts as whoever reads what is due is told.
if not due or math.max(math.ceil(tonumber(due)), 0) ~= tonumber(expected) or not item then
  return 0
end
if not readable or type(parts) ~= 'table' or #parts < 5 then
  return 0
end
local body, missing, first = {}, {}, next ~= '' and tonumber(next) or math.huge
for i = 4, #parts do
  body[#body + 1] = parts[i]
end
for at in string.gmatch(fires, '%d+') do
  local name = id .. '@' .. at
  -- It waits already, or is worked on. A body alone says nothing: it may be left of one whose due time is gone.
  local kept = redis.call('ZSCORE', delay, name) or place == 'shard' and redis.call('ZSCORE', claims, name)
  if not kept then
    missing[#missing + 1] = { name, at }
    first = math.min(first, tonumber(at))
  end
end
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
local wakes = first < math.min(tonumber(head[2] or math.huge), tonumber(recurs[2]))
local called = wakes and redis.call(place == 'shard' and 'LLEN' or 'XLEN', wake)

-- Every key has been read: one of a foreign type was met before anything was changed. No write comes first that is
-- never refused: a server that is out of memory shall refuse this. The next time is the last of all: stopped in
-- between, the same times are asked for again, and kept.
local copy, more = cmsgpack.pack(body), false
for i, one in ipairs(missing) do
  redis.call('HSET', delay_items, one[1], copy)
  redis.call('ZADD', delay, one[2], one[1])
  if i * #copy >= MAX_BYTES and i < #missing then
    -- The server has others to serve. Still due, it is asked for once more, and what is kept by then is passed over.
    more = true
    break
  end
end
parts[3] = next
if not more then
  redis.call('HSET', recur_items, id, cmsgpack.pack(parts))
end
if not more and next ~= '' then
  redis.call('ZADD', recur, next, id)
elseif not more then
  redis.call('ZREM', recur, id)
end
if wakes and place ~= 'shard' then
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', first)
elseif called == 0 then
  redis.call('LPUSH', wake, first)
end
return more and 2 or 1
