-- cancel_task: cancels a task that waits, or asks the worker that has it.
-- KEYS[1] cancels HASH changes; mark:<id>: 'word ms claim'
-- KEYS[2] delay ZSET waiting tasks by due time in milliseconds
-- KEYS[3] delay_items HASH bodies by id, of waiting and claimed tasks
-- KEYS[4] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[5] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[6] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[7] steps HASH steps of tasks, by id
-- KEYS[8] result... STRING what becomes of the task, if it asks for its result
-- ARGV[1] task its id
-- ARGV[2] number under which it asks for its result, in 32 hexadecimal digits: of no other task with this id; or empty
-- ARGV[3] removes 1 if it was seen to wait; one that waits, and was not, stays as it is
-- ARGV[4] asked... keep and result, if it asks for something
-- include clock, ids, result, cancels
-- returns the word of its mark, nil if the task is not there, or 'full' if there are too many marks
local cancels, delay, delay_items, claims, task_states, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local task, number, removes = ARGV[1], ARGV[2], ARGV[3]

local _, now_ms, now_text = clock()
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- They also detect a key of the wrong type before anything is changed.
redis.call('ZREM', delay, '')
redis.call('HDEL', delay_items, '')
redis.call('HDEL', task_states, '')
redis.call('XDEL', notes, '0-0')
local item = redis.call('HGET', delay_items, task)
if number ~= '' and not string.find(item or '', number, 1, true) then
  return nil
end
local known, of_claim = mark_of(cancels, task)
local state = redis.call('HGET', task_states, task) or ''
local crashes, token = string.match(state, '^%d+ %d+ (%d+) [01] %d+ (%S+) ')
if redis.call('ZSCORE', delay, task) then
  -- It needs no mark, and one of an earlier claim is not its own.
  local field = 'mark:' .. task
  redis.call('HDEL', cancels, field)
  if removes == '0' then
    return 'asked'
  end
  -- Put before remove: a failure in between leaves a task that is handled, never one without its result.
  if #ARGV > 3 then
    local keys, keep, result = KEYS, ARGV[4], ARGV[5]
    store_result(keys[8], keep, result, notes)
  end
  redis.call('ZREM', delay, task)
  redis.call('HDEL', delay_items, task)
  redis.call('HDEL', task_states, task)
  redis.call('HDEL', steps, task)
  -- The worker whose claim ran out may still be at it.
  return (tonumber(crashes) or 0) > 0 and 'withdrawn' or 'cancelled'
elseif not redis.call('ZSCORE', claims, task) then
  return nil
end
-- The mark of an earlier claim is that of another attempt, or of another task with this id.
if known and of_claim == token then
  return known
end
return add_mark(cancels, task, 'asked', token or '', now_ms, now_text) or 'asked'
