-- report_task_progress: stores what a handler says of its work on a task, for whoever waits for its result.
-- KEYS[1] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[2] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[3] progress HASH changes, lines; done, line:0 to line:99: 'number ms attempt done text'
-- ARGV[1] task its id
-- ARGV[2] token of the claim
-- ARGV[3] keep_ms how long the lines are kept, from now on
-- ARGV[4] attempt its number
-- ARGV[5] lines... done (a fraction, or '-') and text of each, at most 100
-- include clock, fence, result
-- returns 1, or the error FENCED
local claims, task_states, progress = KEYS[1], KEYS[2], KEYS[3]
local task, token, keep_ms, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local state = redis.call('HGET', task_states, task) or ''
local held_by = string.match(state, '^%d+ %d+ %d+ [01] %d+ (%S+) ')
if held_by ~= token or not redis.call('ZSCORE', claims, task) then
  return fenced('claim')
end
local _, _, now_text = clock()
add_lines(progress, keep_ms, attempt, now_text, { unpack(ARGV, 5) })
return 1
