-- end_cancelled_task: removes a task that was cancelled, and says so in its mark.
-- KEYS[1] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[2] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[3] delay_items HASH bodies by id, of waiting and claimed tasks
-- KEYS[4] cancels HASH changes; mark:<id>: 'word ms claim'
-- KEYS[5] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[6] steps HASH steps of tasks, by id
-- KEYS[7] result... STRING what becomes of the task, if it asks for its result
-- ARGV[1] task its id
-- ARGV[2] token of the claim
-- ARGV[3] word 'cancelled', 'withdrawn' or 'stopped'
-- ARGV[4] asked... keep and result, if it asks for something
-- include clock, fence, ids, result, cancels
-- returns the word, nil if the claim has no mark that asks, or the error FENCED
local claims, task_states, delay_items, cancels, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local task, token, word = ARGV[1], ARGV[2], ARGV[3]

-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- They also detect a key of the wrong type before anything is changed.
redis.call('ZREM', claims, '')
redis.call('HDEL', delay_items, '')
redis.call('XDEL', notes, '0-0')
local state = redis.call('HGET', task_states, task) or ''
local held_by = string.match(state, '^%d+ %d+ %d+ [01] %d+ (%S+) ')
if held_by ~= token or not redis.call('ZSCORE', claims, task) then
  return fenced('claim')
end
local known, of_claim = mark_of(cancels, task)
if not may_replace(word, known) or of_claim ~= token then
  return nil
end
local _, _, now_text = clock()
set_mark(cancels, task, word, token, now_text)
-- Put before remove: a failure in between leaves a task that comes back, never one without its result.
if #ARGV > 3 then
  local keys, keep, result = KEYS, ARGV[4], ARGV[5]
  store_result(keys[7], keep, result, notes)
end
redis.call('ZREM', claims, task)
redis.call('HDEL', delay_items, task)
redis.call('HDEL', task_states, task)
redis.call('HDEL', steps, task)
return word
