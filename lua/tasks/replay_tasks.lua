-- replay_tasks: schedules dead tasks again, due at once, as a first attempt; each at most once.
-- KEYS[1] dead_tasks STREAM the shard's dead tasks
-- KEYS[2] delay ZSET waiting tasks by due time in milliseconds
-- KEYS[3] delay_items HASH bodies by id, of waiting and claimed tasks
-- KEYS[4] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[5] wake LIST of at most one element: wakes one waiting worker
-- ARGV[1] ids... of the dead tasks, at most 100
-- include clock
-- returns {moved, done}: it stops when bodies reach 1 MiB; the caller repeats those after the first `done`
local dead_tasks, delay, delay_items, claims, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LEAD, MAX_BYTES = { 'reason', 'attempts', 'error', 'history', 'task', 'queue', 'shard' }, 1048576

local now_us = clock()
local due = string.format('%.0f', math.ceil(now_us / 1000))
local called, moved, done, bytes = redis.call('LLEN', wake) > 0, 0, 0, 0
for i, id in ipairs(ARGV) do
  if bytes >= MAX_BYTES then
    break
  end
  done = i
  local entry = redis.call('XRANGE', dead_tasks, id, id)[1]
  local fields, body, task = entry and entry[2] or {}, {}, id
  local ours = #fields >= 2 * #LEAD
  for i, name in ipairs(LEAD) do
    ours = ours and fields[2 * i - 1] == name
  end
  for i = ours and 2 * #LEAD + 1 or 1, #fields do
    body[#body + 1], bytes = fields[i], bytes + #fields[i]
  end
  task = ours and fields[10] or id
  -- A body alone proves nothing: it may be the rest of a task whose due time is lost.
  local used = entry and (redis.call('ZSCORE', delay, task) or redis.call('ZSCORE', claims, task))
  if entry and not used then
    -- An unreadable item is restored unchanged. A lost body is not invented.
    local item = #body == 2 and body[1] == 'packed' and body[2] or cmsgpack.pack(body)
    if #body > 0 then
      redis.call('HSET', delay_items, task, item)
    else
      redis.call('HDEL', delay_items, task)
    end
    -- Put before remove: a failure in between leaves a second copy, never a loss.
    redis.call('ZADD', delay, due, task)
    redis.call('XDEL', dead_tasks, id)
    moved = moved + 1
  end
end
if moved > 0 and not called then
  redis.call('LPUSH', wake, '1')
end
return { moved, done }
