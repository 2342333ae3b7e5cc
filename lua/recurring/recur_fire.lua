-- recur_fire: schedules the messages of a recurring rule that is due and sets its next time, once per due time.
-- KEYS[1] recur ZSET ids of recurring rules by next due time
-- KEYS[2] recur_items HASH rule, pause, next time and body of recurring rules, by id
-- KEYS[3] delay ZSET ids by due time in milliseconds
-- KEYS[4] delay_items HASH bodies by id; at a shard also of claimed tasks
-- KEYS[5] claims ZSET claimed tasks of a shard; at a partition delay again, and not used
-- KEYS[6] wake STREAM of one entry at a partition; at a shard a LIST of at most one element
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] id of the recurring rule
-- ARGV[3] expected its next time, as the caller read it
-- ARGV[4] next time from then on, in milliseconds since 1970; '' for never
-- ARGV[5] fires times to schedule it for, in milliseconds, separated by spaces; at most 100, may be none
-- returns how many of the times are done, from the first on: fewer than all if bodies reached 1 MiB. Then it is due at
-- the first that is left, and the caller goes on from there. Or -1 if it is paused, missing, or due at another time
local recur, recur_items, delay, delay_items, claims, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local place, id, expected, next, fires = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MAX_BYTES = 1048576

local due, item = redis.call('ZSCORE', recur, id), redis.call('HGET', recur_items, id)
local readable, parts = pcall(cmsgpack.unpack, item)
-- Another program may have set a score that is no integer: it is rounded as for the readers of due rules.
if not due or math.max(math.ceil(tonumber(due)), 0) ~= tonumber(expected) or not item then
  return -1
end
if not readable or type(parts) ~= 'table' or #parts < 5 then
  return -1
end
local body, times, missing, first = {}, {}, {}, next ~= '' and tonumber(next) or math.huge
for i = 4, #parts do
  body[#body + 1] = parts[i]
end
for at in string.gmatch(fires, '%d+') do
  local n, name = #times + 1, id .. '@' .. at
  -- It waits already, or is claimed. A body alone proves nothing: it may be the rest of one whose due time is lost.
  local kept = redis.call('ZSCORE', delay, name) or place == 'shard' and redis.call('ZSCORE', claims, name)
  times[n], missing[n] = at, not kept and name
  first = kept and first or math.min(first, tonumber(at))
end
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
local wakes = first < math.min(tonumber(head[2] or math.huge), tonumber(recurs[2]))
local called = wakes and redis.call(place == 'shard' and 'LLEN' or 'XLEN', wake)

-- Every key has been read: one of the wrong type was detected before anything is changed. No write that is never
-- refused comes first: a server that is out of memory must refuse this. The next time is written last: stopped in
-- between, the same times are fired again, and those that still wait are skipped.
local copy, bytes, done = cmsgpack.pack(body), 0, 0
for n, at in ipairs(times) do
  if bytes >= MAX_BYTES then
    -- Bounds the time for which the script blocks the server. It is due at this time from now on: what is stored by now
    -- may be promoted, or handled, before the next call.
    next = at
    break
  end
  if missing[n] then
    redis.call('HSET', delay_items, missing[n], copy)
    redis.call('ZADD', delay, at, missing[n])
    bytes = bytes + #copy
  end
  done = n
end
parts[3] = next
redis.call('HSET', recur_items, id, cmsgpack.pack(parts))
if next ~= '' then
  redis.call('ZADD', recur, next, id)
else
  redis.call('ZREM', recur, id)
end
if wakes and place ~= 'shard' then
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', first)
elseif called == 0 then
  redis.call('LPUSH', wake, first)
end
return done
