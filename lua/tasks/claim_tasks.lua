-- claim_tasks: hands due tasks to a worker, and selects the worker that watches the next due time.
-- KEYS[1] delay ZSET waiting tasks by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id, of waiting and claimed tasks
-- KEYS[3] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[4] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- KEYS[5] watcher HASH worker, at, until, steady; deputy, visit, backs; asked, caller: who watches the next due time;
--   paused: since when the shard is paused
-- KEYS[6] wake LIST of at most one element: wakes one waiting worker
-- KEYS[7] dead_tasks STREAM the shard's dead tasks
-- KEYS[8] recur ZSET ids of recurring rules by next due time
-- KEYS[9] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[10] steps HASH steps of tasks, by id
-- ARGV[1] worker unique to one start of it, without spaces
-- ARGV[2] limit maximum number of tasks, up to 100; 0 to stop watching
-- ARGV[3] hold_us for how long the claims hold
-- ARGV[4] crash_limit how many claims of a task may expire before it is dead; 0 for any number
-- ARGV[5] longest_sleep_us upper limit of next_us
-- ARGV[6] queue for dead tasks
-- ARGV[7] shard for dead tasks
-- ARGV[8] continuity answers to the worker: 'ttl since until server' in milliseconds, or '*'
-- include clock, identity, continuity, body, result, steps
-- returns {now_ms, next_us, recurring, crashed, ids, states, items or nil, expired tokens or '', server or ''}
local delay, delay_items, claims, task_states, watcher, wake, dead_tasks, recur, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local worker, limit, hold_us, crash_limit, longest_sleep_us, queue, shard, continuity = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local STATE, GRACE_US, MAX_BYTES = '^(%d+) (%d+) (%d+) ([01]) (%d+) (%S+) (.*)$', 250000, 1048576
local now_us, now, now_ms = clock()
local hold_ms = math.ceil(hold_us / 1000)
limit, crash_limit, longest_sleep_us = tonumber(limit), tonumber(crash_limit), tonumber(longest_sleep_us)
local deadline = string.format('%.0f', math.ceil((now_us + hold_us) / 1000))
local hold_by = string.format(' 0 %.0f %s:%.0f:', hold_ms, worker, now_us)
-- Writes that are never refused come first: a full server then accepts all. With the reads they detect wrong types.
redis.call('ZREM', delay, '')
redis.call('HDEL', delay_items, '')
redis.call('HDEL', task_states, '')
redis.call('XDEL', dead_tasks, '0-0')
local called, recurs = redis.call('LLEN', wake) > 0, redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')[2]
local look = redis.call('HMGET', watcher,
  'worker', 'at', 'until', 'deputy', 'visit', 'steady', 'backs', 'asked', 'caller', 'paused')
if look[10] then
  -- Whoever resumes it wakes a worker. Recurring rules go on: what they add waits.
  local next_us = math.max((recurs or math.huge) * 1000 - now_us, GRACE_US)
  local recurring = recurs and tonumber(recurs) * 1000 <= now_us and 1 or 0
  return { now, math.ceil(math.min(next_us, longest_sleep_us)), recurring, 0, {}, {}, {}, {}, '' }
end
local overdue = redis.call('ZRANGEBYSCORE', claims, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, 100)
-- After the clock was set back, deadlines are too far away. They now expire after one hold: live workers extend them.
local far = string.format('(%.0f', now + hold_ms + 1000)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', claims, far, '+inf', 'LIMIT', 0, 100)) do
  local _, _, _, _, hold = string.match(redis.call('HGET', task_states, id) or '', STATE)
  redis.call('ZADD', claims, 'XX', 'LT', string.format('%.0f', now + (hold or 0) + 1000), id)
end
-- A claim may have expired because its worker died, or because no client could reach the server: only a worker that may
-- judge takes it over. INFO is as expensive as most of this script: it is read only if it decides something, and six
-- times per ttl. In between the worker keeps its record: an old identity never returns, so comparing it later detects
-- the change too.
local answered, server = continuity_of(continuity, hold_ms, now), ''
local ttl_ms, since_ms = answered.ttl_ms, answered.since_ms
local is_late = not answered.unbroken or answered.gap_ms >= ttl_ms / 6
if not answered.assured and (is_late or overdue[1] and since_ms + ttl_ms <= now) then
  server = identify(answered)
end
-- Time at which a claim may be taken over. A claim that is longer than the ttl may take longer to be extended; and a
-- record whose ttl is longer than the claim does not show gaps that are long for the claim.
local function free_at(ran_out, hold)
  local longest = math.max(ttl_ms, hold)
  return answered.assured and 0 or math.max((answered.unbroken and since_ms or now) + longest, ran_out - hold + longest)
end
local ids, states, items, sets, adds, befores, ours, crashed, bytes = {}, {}, {}, {}, {}, {}, {}, 0, 0
local head, taken = math.huge, 0
local function hand(id, due, attempt, crashes, rest, before)
  local n, item = #ids + 1, redis.call('HGET', delay_items, id)
  local state = due .. ' ' .. attempt .. ' ' .. crashes .. hold_by .. n .. ' ' .. rest
  ids[n], states[n], items[n], befores[n], ours[id], bytes = id, state, item, before or '', true, bytes + #(item or '')
  sets[2 * n - 1], sets[2 * n], adds[2 * n - 1], adds[2 * n] = id, state, deadline, id
end
local function give_up(id, attempt, crashes, rest)
  local body, size = task_body(redis.call('HGET', delay_items, id))
  local history = string.match(rest, '\n(.+)$')
  local failure = crashes .. ' claims ran out'
  history = (history and history .. '\n' or '') .. now_ms .. ' ' .. attempt .. ' ' .. failure
  note_death(notes, body, 1)
  body = with_steps(steps, id, body)
  redis.call('XADD', dead_tasks, '*', 'reason', 'crashed', 'attempts', attempt, 'error', failure, 'history', history,
    'task', id, 'queue', queue, 'shard', shard, unpack(body))
  redis.call('ZREM', claims, id)
  redis.call('HDEL', delay_items, id)
  redis.call('HDEL', task_states, id)
  redis.call('HDEL', steps, id)
  crashed, bytes = crashed + 1, bytes + size
end
-- If no claim can be free yet, states need not be read.
local first_free, mine = free_at(0, 0), worker .. ':'
local ran_out = overdue[1]
if ran_out and first_free > now then
  overdue, head = {}, first_free * 1000
end
for i = 1, #overdue, 2 do
  local id = overdue[i]
  local state = redis.call('HGET', task_states, id) or ''
  local due, attempt, crashes, begun, hold, before, rest = string.match(state, STATE)
  local free = free_at(tonumber(overdue[i + 1]), tonumber(hold or 0))
  -- An expiry counts as a crash if a handler had begun. The first one counts always, unless this worker, which lives,
  -- held the claim: then only a reply was lost. No task becomes dead by a claim under which no handler began.
  local ours_before = string.sub(before or '', 1, #mine) == mine
  local times = math.max(tonumber(crashes or 0) + tonumber(begun or 0), ours_before and 0 or 1)
  if free > now then
    head = math.min(head, free * 1000)
  elseif taken == limit or bytes >= MAX_BYTES then
    head = now_us
    break
  elseif crash_limit > 0 and begun == '1' and times >= crash_limit then
    taken = taken + 1
    give_up(id, attempt, times, rest)
  else
    taken = taken + 1
    hand(id, due or now_ms, attempt or '1', times, rest or '\n', before)
  end
end
local room, waiting = limit - taken, {}
local due = room > 0 and redis.call('ZRANGEBYSCORE', delay, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, room) or {}
for i = 1, #due, 2 do
  waiting[#waiting + 1] = due[i]
end
local known = #waiting > 0 and redis.call('HMGET', task_states, unpack(waiting))
for i, id in ipairs(waiting) do
  local _, attempt, crashes, _, _, _, rest = string.match(known[i] or '', STATE)
  if bytes < MAX_BYTES and not ours[id] then
    hand(id, string.match(due[2 * i], '^%d+$') or '0', attempt or '1', crashes or '0', rest or '\n')
  end
end
if #ids > 0 then
  redis.call('HSET', task_states, unpack(sets))
  redis.call('ZADD', claims, unpack(adds))
  redis.call('ZREM', delay, unpack(ids))
end
-- The watcher claims at the next due time (the head), and the deputy if the watcher does not. All others keep waiting.
local later, first = string.format('(%.0f', now), redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local claimed = redis.call('ZRANGEBYSCORE', claims, later, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
for _, ms in ipairs({ first[2] or '+inf', claimed[2] or '+inf', #ids > 0 and deadline or '+inf' }) do
  head = ms ~= '+inf' and math.min(head, tonumber(ms) * 1000) or head
end
head = recurs and math.min(head, math.max(tonumber(recurs) * 1000, now_us + GRACE_US)) or head
-- While claims are open, watcher and deputy call three times per hold, so that they may take over expired claims. If no
-- other worker does so, the claiming worker wakes one, once per third of a hold; it passes its own wake-up on.
local third_us, asked = hold_us / 3, tonumber(look[8]) or 0
local open = #ids > 0 or claimed[1] or ran_out
local near_us = (open or now_us < asked + third_us) and third_us or math.huge
local steady = near_us == third_us and '1' or '0'
near_us = math.min(near_us, longest_sleep_us)
local at, till_us, visit = tonumber(look[2]) or 0, tonumber(look[3]) or 0, tonumber(look[5]) or 0
local watched = look[1] and look[1] ~= worker and till_us > now_us
local backed = look[4] and look[4] ~= worker and visit + GRACE_US > now_us
local next_us = math.max(math.min(head - now_us, near_us), 0)
local full, watches = taken + #waiting >= limit or bytes >= MAX_BYTES, not watched or head < at
local alone = open and not (watched and look[6] == '1' or backed and look[7] == '1')
local asks = alone and (full or #ids > 0) and now_us >= asked + third_us
local calls = asks or alone and look[9] == worker and now_us < asked + third_us
if look[4] == worker and (full or watches) then
  redis.call('HDEL', watcher, 'deputy', 'visit', 'backs')
end
if full then
  -- No room: another worker has to watch, unless one calls in time anyway.
  if look[1] == worker then
    redis.call('HDEL', watcher, 'worker', 'at', 'until', 'steady')
  end
  local covered = head > now_us and (watched and at <= head or backed and visit <= head)
  calls = calls or head < math.huge and not covered
  next_us = limit == 0 and longest_sleep_us or next_us
elseif watches then
  local comes = now_us + next_us
  redis.call('HSET', watcher, 'worker', worker, 'at', string.format('%.0f', comes),
    'until', string.format('%.0f', comes + GRACE_US), 'steady', steady)
  -- A wake-up that no worker has received yet announced a change that this call has handled.
  redis.call('DEL', wake)
  called = false
elseif not backed or till_us < visit then
  next_us = math.min(till_us - now_us, near_us)
  redis.call('HSET', watcher, 'deputy', worker, 'visit', string.format('%.0f', now_us + next_us), 'backs', steady)
else
  next_us = longest_sleep_us
end
if calls and not called then
  redis.call('LPUSH', wake, '1')
end
if asks then
  redis.call('HSET', watcher, 'asked', string.format('%.0f', now_us), 'caller', worker)
elseif look[9] == worker then
  redis.call('HDEL', watcher, 'caller')
end
local recurring = recurs and tonumber(recurs) * 1000 <= now_us and 1 or 0
return { now, math.ceil(next_us), recurring, crashed, ids, states, items, befores, server }
