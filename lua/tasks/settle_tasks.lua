-- settle_tasks: settles tasks of a worker: completed, to be tried again, or dead.
-- KEYS[1] delay ZSET waiting tasks by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id, of waiting and claimed tasks
-- KEYS[3] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[4] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[5] watcher HASH worker, at, until; deputy, visit: who watches the next due time, and who takes its place
-- KEYS[6] wake LIST of at most one element: wakes one waiting worker
-- KEYS[7] dead_tasks STREAM the shard's dead tasks
-- KEYS[8] recur ZSET ids of recurring rules by next due time
-- KEYS[9] finished ZSET completed tasks by when their ids are free, in milliseconds
-- KEYS[10] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[11] steps HASH steps of tasks, by id
-- KEYS[12] result... STRING what became of the first task that asks for its result; then that of each further one
-- ARGV[1] queue for dead tasks
-- ARGV[2] shard for dead tasks
-- ARGV[3] count of the tasks, at most 100
-- ARGV[4] tasks... of each: id, token, word and the values of the word
-- Words are 'complete'; 'finish' (completed, and its id stays in use) with a window in milliseconds; 'retry' with due,
-- attempt, error, history, failure and wait; 'dead' with reason, attempts, error, history and failure. Before any but
-- 'retry' there may be 'result', with keep and the result. A wait is empty, or 's name' or '- name' of one that ends
-- when the task is due, with a signal or without.
-- A due time is in milliseconds since 1970, or '+' and microseconds from now.
-- include clock, due, body, result, steps
-- returns {applied, stale, done}: it stops when dead bodies reach 1 MiB; the caller repeats those after `done`
local delay, delay_items, claims, task_states, watcher, wake, dead_tasks, recur, finished, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local queue, shard, count = ARGV[1], ARGV[2], ARGV[3]
local GRACE_US, MAX_BYTES, OLD = 250000, 1048576, 200

local now_us, now_ms, now_text = clock()
local stamp = now_text .. ' '
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- With the reads they detect a key of the wrong type before anything is changed.
redis.call('ZREM', delay, '')
redis.call('HDEL', delay_items, '')
redis.call('XDEL', dead_tasks, '0-0')
redis.call('HDEL', steps, '')
local look = redis.call('HMGET', watcher, 'at', 'until', 'visit')
local called = redis.call('LLEN', wake) > 0
local head = math.huge
for _, first in ipairs({
  redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES'), redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES') }) do
  head = first[2] and math.min(head, tonumber(first[2])) or head
end
local tokens, words, ids, at, finishes = {}, {}, {}, 4, false
local keys, asked, results = KEYS, 11, {}
for i = 1, tonumber(count) do
  ids[i], tokens[i], at = ARGV[at], ARGV[at + 1], at + 2
  if ARGV[at] == 'result' then
    asked = asked + 1
    results[i], at = { keys[asked], ARGV[at + 1], ARGV[at + 2] }, at + 3
  end
  local word = ARGV[at]
  words[i], finishes = at, finishes or word == 'finish'
  at = at + (word == 'complete' and 1 or word == 'finish' and 2 or word == 'retry' and 7 or 6)
end
if asked > 11 then
  -- As above: never refused, and it detects a key of the wrong type.
  redis.call('XDEL', notes, '0-0')
end
if finishes then
  -- As above: never refused, and it detects a key of the wrong type.
  redis.call('ZREM', finished, '')
end
local claimed = redis.call('ZMSCORE', claims, unpack(ids))
local known = redis.call('HMGET', task_states, unpack(ids))
local gone, earliest, applied, settled, done, bytes = {}, math.huge, 0, {}, 0, 0
local free, longest = {}, 0

for i, id in ipairs(ids) do
  if bytes >= MAX_BYTES then
    break
  end
  done = i
  local number, crashes, begun, held_by, told = string.match(known[i] or '', '^%d+ (%d+) (%d+) ([01]) %d+ (%S+) ()')
  local verdict, first, attempt, error_text, history, failure, wait = unpack(ARGV, words[i], words[i] + 6)
  if claimed[i] and held_by == tokens[i] and not settled[id] then
    applied, settled[id] = applied + 1, true
    if verdict == 'retry' then
      local due = due_at(first, now_us)
      if wait ~= '' then
        due = wait_until(steps, id, wait, due, now_ms)
      end
      local due_text = string.format('%.0f', due)
      local rest = error_text .. '\n' .. history .. stamp .. number .. ' ' .. failure
      local crashed = '0'
      if wait ~= '' then
        -- What is behind a wait has attempts of its own.
        rest = '\n'
      elseif error_text == '' and attempt == number then
        rest = string.sub(known[i], told)
        -- A task that is returned before a handler began keeps its crashes.
        crashed = begun == '0' and crashes or '0'
      end
      local state = due_text .. ' ' .. attempt .. ' ' .. crashed .. ' 0 0 - ' .. rest
      redis.call('HSET', task_states, id, state)
      redis.call('ZADD', delay, due_text, id)
      redis.call('ZREM', claims, id)
      earliest = math.min(earliest, due)
    else
      -- Before the dead task: a failure here must not store it again each time.
      if results[i] then
        local key, keep, result = unpack(results[i])
        store_result(key, keep, result, notes)
      end
      if verdict == 'dead' then
        local body, size = task_body(redis.call('HGET', delay_items, id))
        local moved
        body, moved = with_steps(steps, id, body)
        bytes = bytes + moved
        local told_of = failure == '' and history or history .. stamp .. failure
        redis.call('XADD', dead_tasks, '*', 'reason', first, 'attempts', attempt, 'error', error_text,
          'history', told_of, 'task', id, 'queue', queue, 'shard', shard, unpack(body))
        bytes = bytes + size
      end
      if verdict == 'finish' then
        free[#free + 1], free[#free + 2] = string.format('%.0f', now_ms + first), id
        longest = math.max(longest, tonumber(first))
      end
      gone[#gone + 1] = id
    end
  end
end
if #free > 0 then
  -- More are removed than are added, so those whose window is over do not pile up.
  local old = redis.call('ZRANGE', finished, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, OLD)
  if #old > 0 then
    redis.call('ZREM', finished, unpack(old))
  end
  redis.call('ZADD', finished, unpack(free))
  if redis.call('PTTL', finished) < longest then
    redis.call('PEXPIRE', finished, longest)
  end
end
-- Put before remove: a failure in between leaves a second copy, never a loss.
if #gone > 0 then
  redis.call('ZREM', claims, unpack(gone))
  redis.call('HDEL', delay_items, unpack(gone))
  redis.call('HDEL', task_states, unpack(gone))
  redis.call('HDEL', steps, unpack(gone))
end
-- Wakes a worker for a new head, unless the watcher or deputy calls in time anyway.
local comes = math.huge
if (tonumber(look[2]) or 0) > now_us then
  comes = tonumber(look[1])
end
if (tonumber(look[3]) or 0) + GRACE_US > now_us then
  comes = math.min(comes, tonumber(look[3]))
end
if earliest < head and not called and (comes > earliest * 1000 or earliest <= now_ms) then
  redis.call('LPUSH', wake, '1')
end
return { applied, done - applied, done }
