-- schedule: lets messages wait until they are due.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id; at a shard also of tasks that are worked on
-- KEYS[3] states HASH what is known of a shard's tasks, by id; at a partition delay_items again, and not used
-- KEYS[4] claims ZSET a shard's tasks that are worked on; at a partition delay again, and not used
-- KEYS[5] recur ZSET what recurs, by when it is due next
-- KEYS[6] wake STREAM of one entry at a partition; at a shard a LIST of at most one element
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] messages... id, due, conflict and item of each, at most 100
-- A due time is in milliseconds since 1970, or '+' and microseconds from now.
-- A conflict is 'keep', 'replace' or 'reject'.
-- returns for each 1 (waits), 2 (waits in place of another), 0 (that one was kept) or -1 (it was to be rejected)
local delay, delay_items, states, claims, recur, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local place = ARGV[1]
local FAR_MS = 36500 * 24 * 3600 * 1000

local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local latest = math.floor(now_us / 1000) + FAR_MS
local ids, free, waits, works = {}, {}, {}, {}
for at = 2, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at]
end
for i, score in ipairs(redis.call('ZMSCORE', delay, unpack(ids))) do
  waits[ids[i]] = score
  free[#free + 1] = not score and ids[i] or nil
end
if place == 'shard' and #free > 0 then
  -- A body alone says nothing: it may be left of a task whose due time is gone, and must not be in the way for ever.
  for i, score in ipairs(redis.call('ZMSCORE', claims, unpack(free))) do
    works[free[i]] = score
  end
end

local results, items, dues, anew, first = {}, {}, {}, {}, math.huge
for at = 2, #ARGV, 4 do
  local id, due, conflict, item = unpack(ARGV, at, at + 3)
  if works[id] or waits[id] and conflict ~= 'replace' then
    results[#results + 1] = conflict == 'reject' and -1 or 0
  else
    local due_ms = tonumber(due)
    if string.byte(due) == 43 then
      due_ms = math.ceil((now_us + due_ms) / 1000)
    else
      due_ms = math.min(due_ms, latest)
    end
    items[#items + 1] = id
    items[#items + 1] = item
    dues[#dues + 1] = due_ms
    dues[#dues + 1] = id
    anew[#anew + 1] = id
    results[#results + 1] = waits[id] and 2 or 1
    waits[id], first = true, math.min(first, due_ms)
  end
end
if #items == 0 then
  return results
end

-- Every key has been read before the first is written: one of a foreign type is met before anything was changed. No
-- write comes first that is never refused: a server that is out of memory shall refuse this.
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
local wakes = first < math.min(tonumber(head[2] or math.huge), tonumber(recurs[2] or math.huge))
local called = wakes and redis.call(place == 'shard' and 'LLEN' or 'XLEN', wake)
local forget = place == 'shard' and redis.call('HLEN', states) > 0
-- The item before its due time: stopped in between, it is scheduled again.
redis.call('HSET', delay_items, unpack(items))
redis.call('ZADD', delay, unpack(dues))
if forget then
  redis.call('HDEL', states, unpack(anew))
end
if wakes and place ~= 'shard' then
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', first)
elseif called == 0 then
  redis.call('LPUSH', wake, first)
end
return results
