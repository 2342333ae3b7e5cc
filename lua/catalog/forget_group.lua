-- forget_group: marks a group as being deleted, or remembers its deletion for a limited time; removes its members last.
-- KEYS[1] groups SET the names of the topic's groups
-- KEYS[2] state HASH 'paused', 'deleting', 'deleted' of the group, each with a time in milliseconds; 'deletion'
-- KEYS[3] changes STREAM the newest change of its members alone
-- KEYS[4] members ZSET ids by the expiry time of their heartbeat, in milliseconds
-- KEYS[5] member HASH description of each member, by id
-- KEYS[6] assignment HASH partitions by id
-- KEYS[7] meta HASH the topic's settings
-- ARGV[1] stage 'begin'; 'end', or 'never' at the end if there was no such group; 'topic' if it is deleted with its
--   topic
-- ARGV[2] deletion a unique name for it; at the end the name that the beginning has returned, or the topic's
-- ARGV[3] group its name
-- ARGV[4] remember_ms for how long the deletion is remembered
-- include clock
-- returns at the beginning {deletion, known}: which one is under way, if one was already, and 1 if the group was
--   registered or its deletion had begun, else 0; then {deletion, 0} of what was under way, or {nil, 0}
local groups, state, changes, members, member, assignment, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local stage, deletion, group, remember_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if stage == 'topic' then
  local of_topic = redis.call('HGET', meta, 'deletion')
  if of_topic == deletion then
    redis.call('UNLINK', members, member, assignment, changes, state)
  end
  return { of_topic, 0 }
end
local registered = redis.call('SMISMEMBER', groups, group)[1]
local known = redis.call('HMGET', state, 'deleting', 'deleted', 'deletion')
local _, _, now_ms = clock()
redis.call('XLEN', changes)
if stage ~= 'begin' and known[3] ~= deletion then
  -- Another client has ended this deletion, and the group may have been created since: the new one must not change.
  return { known[3], 0 }
end
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', state, '')
if stage == 'begin' then
  if known[2] then
    -- Also removes the expiry time, which a group that is being deleted must not have. 'deleted' is kept until the end.
    redis.call('DEL', state)
    redis.call('HSET', state, 'deleted', known[2])
  end
  redis.call('HSET', state, 'deleting', now_ms, 'deletion', known[3] or deletion)
  if redis.call('EXISTS', changes) == 1 then
    -- Wakes the members that wait for changes: they read that the group is being deleted.
    redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'deleting', now_ms)
  end
  return { known[3] or deletion, (registered == 1 or known[1]) and 1 or 0 }
end
redis.call('UNLINK', members, member, assignment, changes)
redis.call('SREM', groups, group)
local remembered = stage == 'end' and now_ms or known[2]
redis.call('DEL', state)
if remembered then
  redis.call('HSET', state, 'deleted', remembered)
  redis.call('PEXPIRE', state, remember_ms)
end
return { known[3], 0 }
