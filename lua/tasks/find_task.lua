-- find_task: reads one task that waits, is claimed, or was completed and whose id is still in use.
-- KEYS[1] delay ZSET waiting tasks by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id, of waiting and claimed tasks
-- KEYS[3] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[4] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[5] finished ZSET completed tasks by when their ids are free, in milliseconds
-- ARGV[1] id of the task
-- include clock
-- returns {state, time, stored state or nil, item or nil}, state being 'waiting', 'claimed' or 'finished', or nil
local delay, delay_items, claims, task_states, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id = ARGV[1]

local _, now_ms = clock()
local due, till, free =
  redis.call('ZSCORE', delay, id), redis.call('ZSCORE', claims, id), redis.call('ZSCORE', finished, id)
if not due and not till then
  return free and tonumber(free) > now_ms and { 'finished', free } or nil
end
local stored, item = redis.call('HGET', task_states, id), redis.call('HGET', delay_items, id)
return { till and 'claimed' or 'waiting', till or due, stored, item }
