-- schedule: schedules messages until they are due.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id; at a shard also of claimed tasks
-- KEYS[3] states HASH state of a shard's tasks, by id; at a partition delay_items again, and not used
-- KEYS[4] claims ZSET claimed tasks of a shard; at a partition delay again, and not used
-- KEYS[5] recur ZSET ids of recurring rules by next due time
-- KEYS[6] wake STREAM of one entry at a partition; at a shard a LIST of at most one element
-- KEYS[7] finished ZSET completed tasks of a shard by when their ids are free; at a partition delay again, and not used
-- KEYS[8] steps HASH steps of a shard's tasks, by id; at a partition delay_items again, and not used
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] terms 'count due conflict' for each run of `count` messages, separated by spaces
-- ARGV[3] messages... id and item of each, at most 100
-- A due time is in milliseconds since 1970, or '+' and microseconds from now.
-- A conflict is 'keep', 'replace', 'reject', 'debounce' (replaced, and due at the later of both times) or 'last'
-- (replaced, and due when the first was). The last two reject an id that is worked on: the message would be lost.
-- include clock, due
-- returns 1 if all are new and wait; else for each 1 (waits), 2 (waits in place of another), 0 (that one was kept),
-- 3 (completed, and its id is not free) or -1 (it was to be rejected)
local delay, delay_items, states, claims, recur, wake, finished, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local place, terms = ARGV[1], ARGV[2]

local now_us = clock()
local n, ids, dues, conflicts, first = 0, {}, {}, {}, math.huge
for count, due, conflict in string.gmatch(terms, '(%d+) (%S+) (%a+)') do
  local due_ms = due_at(due, now_us)
  local score = string.format('%.0f', due_ms)
  first = math.min(first, due_ms)
  for _ = 1, tonumber(count) do
    local id = ARGV[2 * n + 3]
    n = n + 1
    ids[n], dues[2 * n - 1], dues[2 * n], conflicts[n] = id, score, id, conflict
  end
end
if n == 0 or 2 * n ~= #ARGV - 2 then
  return redis.error_reply('ERR the terms are not of these messages')
end

local waits, works, is_done, taken = {}, {}, {}, false
for i, score in ipairs(redis.call('ZMSCORE', delay, unpack(ids))) do
  local id = ids[i]
  -- An id that is twice in one call conflicts with itself: the second finds the first.
  taken = taken or score or waits[id] ~= nil
  waits[id] = score
end
if place == 'shard' and redis.call('EXISTS', claims) == 1 then
  -- A body alone proves nothing: it may be the rest of a task whose due time is lost, and must not block the id.
  for i, score in ipairs(redis.call('ZMSCORE', claims, unpack(ids))) do
    -- A task that waits and is claimed counts as waiting: a claim was stopped half-way.
    works[ids[i]] = not waits[ids[i]] and score
    taken = taken or score
  end
end
if place == 'shard' and redis.call('EXISTS', finished) == 1 then
  for i, free_ms in ipairs(redis.call('ZMSCORE', finished, unpack(ids))) do
    is_done[ids[i]] = free_ms and tonumber(free_ms) * 1000 > now_us
    taken = taken or is_done[ids[i]]
  end
end
local results, items = 1, nil
if taken then
  local left, times = {}, dues
  results, items, dues, first = {}, {}, {}, math.huge
  for i = 1, n do
    local id, score, conflict = ids[i], times[2 * i - 1], conflicts[i]
    local before = waits[id]
    if works[id] then
      results[i] = (conflict == 'keep' or conflict == 'replace') and 0 or -1
    elseif not before and is_done[id] then
      results[i] = conflict == 'reject' and -1 or 3
    elseif before and (conflict == 'keep' or conflict == 'reject') then
      results[i] = conflict == 'reject' and -1 or 0
    else
      if before and (conflict == 'last' or conflict == 'debounce' and tonumber(before) > tonumber(score)) then
        score = before
      end
      local m = #left + 1
      left[m], items[2 * m - 1], items[2 * m], dues[2 * m - 1], dues[2 * m] = id, id, ARGV[2 * i + 2], score, id
      results[i] = before and 2 or 1
      waits[id], first = score, math.min(first, tonumber(score))
    end
  end
  ids = left
end
if #ids == 0 then
  return results
end

-- Every key has been read before the first is written: one of the wrong type is detected before anything is changed. No
-- write that is never refused comes first: a server that is out of memory must refuse this.
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
local wakes = first < math.min(tonumber(head[2] or math.huge), tonumber(recurs[2] or math.huge))
local called = wakes and redis.call(place == 'shard' and 'LLEN' or 'XLEN', wake)
local forget = place == 'shard' and redis.call('HLEN', states) > 0
-- The item before its due time: stopped in between, the caller schedules it again.
if items then
  redis.call('HSET', delay_items, unpack(items))
else
  redis.call('HSET', delay_items, unpack(ARGV, 3))
end
redis.call('ZADD', delay, unpack(dues))
if forget then
  redis.call('HDEL', states, unpack(ids))
  redis.call('HDEL', steps, unpack(ids))
end
if wakes and place ~= 'shard' then
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', first)
elseif called == 0 then
  redis.call('LPUSH', wake, first)
end
return results
