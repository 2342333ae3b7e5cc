-- repair_place: repairs one fault that audit_place has found, if it still exists.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id; at a shard also of claimed tasks
-- KEYS[3] claims ZSET claimed tasks by the expiry time of their claim in milliseconds; at a partition not used
-- KEYS[4] task_states HASH state by id, of tasks that were ever claimed; at a partition not used
-- KEYS[5] recur ZSET ids of recurring rules by next due time
-- KEYS[6] recur_items HASH rule, pause, next time and body of recurring rules, by id
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] fault as audit_place reported it
-- ARGV[3] id of the message, task or rule
-- include clock
-- returns 1 if it did something, else 0
local delay, delay_items, claims, task_states, recur, recur_items = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local place, fault, id = ARGV[1], ARGV[2], ARGV[3]
local shard = place == 'shard'
local _, _, now_ms = clock()

if fault == 'rule_lost' then
  return redis.call('HEXISTS', recur_items, id) == 0 and redis.call('ZREM', recur, id) or 0
elseif fault == 'rule_stranded' then
  local readable, rule = pcall(cmsgpack.unpack, redis.call('HGET', recur_items, id))
  local next = readable and type(rule) == 'table' and #rule >= 5 and rule[2] == '0' and rule[3]
  -- A write that is never refused comes first: a server that is out of memory then accepts the other too.
  redis.call('ZREM', recur, '')
  return type(next) == 'string' and string.find(next, '^%d+$') and redis.call('ZADD', recur, 'NX', next, id) or 0
end
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('ZREM', delay, '')
local waits, body = redis.call('ZSCORE', delay, id), redis.call('HEXISTS', delay_items, id) == 1
local claimed = shard and redis.call('ZSCORE', claims, id)
if fault == 'body_lost' and not body and (waits or claimed) then
  redis.call('ZREM', delay, id)
  if shard then
    redis.call('ZREM', claims, id)
    redis.call('HDEL', task_states, id)
  end
  return 1
elseif fault == 'body_stranded' and body and not waits and not claimed then
  redis.call('ZADD', delay, now_ms, id)
  return 1
elseif fault == 'task_twice' and waits and claimed then
  return redis.call('ZREM', delay, id)
elseif fault == 'state_stray' and shard and not waits and not claimed and not body then
  return redis.call('HDEL', task_states, id)
end
return 0
