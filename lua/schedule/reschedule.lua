-- reschedule: changes the due time of messages that still wait.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] recur ZSET ids of recurring rules by next due time
-- KEYS[3] wake STREAM of one entry at a partition; at a shard a LIST of at most one element
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] due in milliseconds since 1970, or '+' and microseconds from now
-- ARGV[3] ids... of the messages, at most 200
-- include clock, due
-- returns for each 1 if it waited, else 0
local delay, recur, wake = KEYS[1], KEYS[2], KEYS[3]
local place, due = ARGV[1], ARGV[2]

local due_ms = due_at(due, clock())
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
local results, dues = {}, {}
for i, score in ipairs(redis.call('ZMSCORE', delay, unpack(ARGV, 3))) do
  results[i] = score and 1 or 0
  if score then
    dues[#dues + 1] = due_ms
    dues[#dues + 1] = ARGV[i + 2]
  end
end
if #dues == 0 then
  return results
end
local wakes = due_ms < math.min(tonumber(head[2]), tonumber(recurs[2] or math.huge))
local called = wakes and redis.call(place == 'shard' and 'LLEN' or 'XLEN', wake)
-- A write that is never refused comes first: a server that is out of memory then accepts the others too. All keys
-- have been read: one of the wrong type was detected before anything was changed.
redis.call('ZREM', delay, '')
redis.call('ZADD', delay, 'XX', unpack(dues))
if wakes and place ~= 'shard' then
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', due_ms)
elseif called == 0 then
  redis.call('LPUSH', wake, due_ms)
end
return results
