-- create_group: registers a group of a topic.
-- KEYS[1] groups SET the names of the topic's groups
-- KEYS[2] state HASH 'paused', 'deleting', 'deleted' of the group, each with a time in milliseconds; 'starts'
-- ARGV[1] mode 'create', or 'restore': then not one that was deleted
-- ARGV[2] group its name
-- ARGV[3] start the position at which a new one starts, kept as 'starts' until it is on all partitions; or ''
-- returns {1 if it was not registered, else 0, the position if it is not on all partitions yet, or nil}; or the error
--   DELETED while it is being deleted, or if it was deleted and the mode is 'restore'
local groups, state = KEYS[1], KEYS[2]
local mode, group, start = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', state, 'deleting', 'deleted', 'starts')
if known[1] then
  return redis.error_reply('DELETED the group is being deleted')
elseif known[2] and mode == 'restore' then
  return redis.error_reply('DELETED the group was deleted')
end
-- A group that exists needs no write: so consumers can start even if the server refuses writes.
if not known[2] and redis.call('SISMEMBER', groups, group) == 1 then
  return { 0, known[3] }
end
-- A write that is never refused comes first: a server that is out of memory then accepts the others too. The
-- record of a deletion has an expiry time, and no other field is beside it.
redis.call('HDEL', state, known[2] and 'deleted' or '')
local new = redis.call('SADD', groups, group)
if new == 0 or start == '' then
  return { new, known[3] }
end
redis.call('HSET', state, 'starts', start)
return { new, start }
