-- signal_task: stores a signal for a task, and makes it due if it waits for that.
-- KEYS[1] steps HASH steps of tasks, by id
-- KEYS[2] delay ZSET waiting tasks by due time in milliseconds
-- KEYS[3] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[4] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[5] wake LIST of at most one element: wakes one waiting worker
-- ARGV[1] task its id
-- ARGV[2] name of the signal
-- ARGV[3] value what it says
-- include clock, steps
-- returns 'woken', 'stored', 'known', 'late', 'gone', or 'large' if there would be too much
local steps, delay, claims, task_states, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local task, name, value = ARGV[1], ARGV[2], ARGV[3]

local _, now_ms, now_text = clock()
local waits = redis.call('ZSCORE', delay, task)
if not waits and not redis.call('ZSCORE', claims, task) then
  return 'gone'
end
local known = redis.call('HGET', steps, task) or ''
local ends, by = step_at(known, 'w', name)
if step_at(known, 's', name) then
  return 'known'
elseif ends and ends <= now_ms then
  return 'late'
end
local called = redis.call('LLEN', wake) > 0
if waits then
  -- Whoever removes or replaces the task drops its steps with its state.
  local state = string.format('%.0f', waits) .. ' 1 0 0 0 - \n'
  redis.call('HSETNX', task_states, task, state)
end
-- Put before it is woken: a failure in between leaves a task that finds it when its wait ends.
if not add_signal(steps, task, known, now_text, name, value) then
  return 'large'
end
if by ~= 's' or not waits then
  return 'stored'
end
redis.call('ZADD', delay, 'XX', now_text, task)
if not called then
  redis.call('LPUSH', wake, now_text)
end
return 'woken'
