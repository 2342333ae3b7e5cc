-- forget_group: marks a group as being deleted, or remembers for a while that it was.
-- KEYS[1] groups SET the names of the topic's groups
-- KEYS[2] state HASH 'paused', 'deleting', 'deleted' of the group, each with a time in milliseconds
-- KEYS[3] changes STREAM the newest change of its members alone
-- ARGV[1] stage 'begin'; 'end', or 'never' at the end if it turned out that there was no such group
-- ARGV[2] group its name
-- ARGV[3] remember_ms for how long it is remembered
-- returns 1 if the group was registered, or a deletion of it had begun, else 0
local groups, state, changes = KEYS[1], KEYS[2], KEYS[3]
local stage, group, remember_ms = ARGV[1], ARGV[2], ARGV[3]

local registered = redis.call('SMISMEMBER', groups, group)[1]
local known = redis.call('HMGET', state, 'deleting', 'deleted')
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
redis.call('XLEN', changes)
-- A write that is never refused comes first: then the others pass too when the server is out of memory.
redis.call('HDEL', state, '')
if stage == 'begin' then
  if known[2] then
    -- With its time to live: what is being deleted has none. That it was deleted before is kept until the end.
    redis.call('DEL', state)
    redis.call('HSET', state, 'deleted', known[2])
  end
  redis.call('HSET', state, 'deleting', now_ms)
  if redis.call('EXISTS', changes) == 1 then
    -- Who lives and waits for changes is woken, and hears of it.
    redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'deleting', now_ms)
  end
  return (registered == 1 or known[1]) and 1 or 0
end
redis.call('SREM', groups, group)
local remembered = stage == 'end' and now_ms or known[2]
redis.call('DEL', state)
if remembered then
  redis.call('HSET', state, 'deleted', remembered)
  redis.call('PEXPIRE', state, remember_ms)
end
return registered
