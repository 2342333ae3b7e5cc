-- store_task_steps: adds to what the handler of a task has done.
-- KEYS[1] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[2] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[3] steps HASH steps of tasks, by id
-- ARGV[1] task its id
-- ARGV[2] token of the claim
-- ARGV[3] records what is added
-- include fence, steps
-- returns 1, 0 if there would be too much, or the error FENCED
local claims, task_states, steps = KEYS[1], KEYS[2], KEYS[3]
local task, token, records = ARGV[1], ARGV[2], ARGV[3]

local state = redis.call('HGET', task_states, task) or ''
local held_by = string.match(state, '^%d+ %d+ %d+ [01] %d+ (%S+) ')
if held_by ~= token or not redis.call('ZSCORE', claims, task) then
  return fenced('claim')
end
return add_steps(steps, task, redis.call('HGET', steps, task) or '', records) and 1 or 0
