-- create_group: registers a group of a topic.
-- KEYS[1] groups SET the names of the topic's groups
-- KEYS[2] state HASH 'paused', 'deleting', 'deleted' of the group, each with a time in milliseconds
-- ARGV[1] mode 'create', or 'restore': then not one that was deleted
-- ARGV[2] group its name
-- returns 1 if it was not registered, else 0; or the error DELETED while it is being deleted, and where it is to be
--   restored and was
local groups, state = KEYS[1], KEYS[2]
local mode, group = ARGV[1], ARGV[2]

local known = redis.call('HMGET', state, 'deleting', 'deleted')
if known[1] then
  return redis.error_reply('DELETED the group is being deleted')
elseif known[2] and mode == 'restore' then
  return redis.error_reply('DELETED the group was deleted')
end
-- A write that is never refused comes first: then the other passes too when the server is out of memory. What is
-- remembered of a deletion has a time to live, and nothing else stands beside it.
redis.call('HDEL', state, known[2] and 'deleted' or '')
return redis.call('SADD', groups, group)
