-- pause_group: pauses or resumes a group as a whole.
-- KEYS[1] groups SET the names of the topic's groups
-- KEYS[2] state HASH 'paused', 'deleting', 'deleted' of the group, each with a time in milliseconds
-- KEYS[3] changes STREAM the newest change of its members alone
-- ARGV[1] group its name
-- ARGV[2] paused '1' or '0'
-- include clock
-- returns 1 if that changed anything, else 0; nil if there is no such group; or the error DELETED while it is being
--   deleted
local groups, state, changes = KEYS[1], KEYS[2], KEYS[3]
local group, paused = ARGV[1], ARGV[2]

local known = redis.call('HMGET', state, 'deleting', 'paused')
if known[1] then
  return redis.error_reply('DELETED the group is being deleted')
elseif redis.call('SMISMEMBER', groups, group)[1] == 0 then
  return nil
end
local before = known[2] and '1' or '0'
if paused == before then
  return 0
end
local _, _, now_ms = clock()
redis.call('XLEN', changes)
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', state, 'paused')
if paused == '1' then
  redis.call('HSET', state, 'paused', now_ms)
end
if redis.call('EXISTS', changes) == 1 then
  -- Wakes the members that wait for changes: they read the new state.
  redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'paused', paused)
end
return 1
