-- trim_tasks: drops the oldest dead tasks of a shard by age and number.
-- KEYS[1] dead_tasks STREAM the shard's dead tasks
-- ARGV[1] mode 'worker'; 'operator'; or 'count' for an operator: then nothing is dropped
-- ARGV[2] until_ms latest time of the server at which a worker may drop, or ''
-- ARGV[3] age_ms up to which they stay, or ''
-- ARGV[4] length how many stay, or ''
-- ARGV[5] after id of the last task that an earlier call has counted, or ''
-- ARGV[6] passed number of tasks up to that one
-- include clock, size
-- returns {aged, excess, 1 if there is more or 0, after, passed}, or the error FENCED: numbers of tasks that were too
-- old, and that had too many newer ones; the arguments of the next call
local dead_tasks = KEYS[1]
local mode, until_ms, age_ms, length, after, passed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- BUDGET: cost of what a call drops, and reads for it: 1 per entry and 2 per KiB. STEP: most entries for which one is
-- the estimate; FIRST: the same of the first step, since a small one may be in front of large ones. SINGLE: cost of an
-- entry that is dropped by itself. PAGE and MAX_BYTES: what a call counts at most.
local BUDGET, STEP, FIRST, SINGLE, PAGE, MAX_BYTES = 20000, 100, 10, 100, 1000, 1048576
passed = tonumber(passed)

local _, now = clock()
if mode == 'worker' and now > tonumber(until_ms) then
  return redis.error_reply('FENCED the retention was read too long ago')
end
-- Read before anything is changed: a key of the wrong type is found here.
local len = redis.call('XLEN', dead_tasks)
local oldest = age_ms == '' and 0 or math.max(now - tonumber(age_ms), 0)
local stays = string.format('%.0f-0', oldest)
local before = '(' .. stays
local most = length == '' and math.huge or tonumber(length)
local aged, excess, spent, step = 0, 0, 0, FIRST

-- Counts by reading: the old ones are in front of all others, of which the number says how many are too many.
if mode == 'count' then
  local looked, bytes, largest = 0, 0, 0
  for _ = 1, PAGE do
    if looked >= PAGE or bytes >= MAX_BYTES then
      break
    end
    local count = looked == 0 and 1 or math.max(math.floor((MAX_BYTES - bytes) / (largest + 1)), 1)
    count = math.min(count, PAGE - looked, 4 * looked + 1)
    local from = after == '' and '-' or '(' .. after
    local page = oldest > 0 and redis.call('XRANGE', dead_tasks, from, before, 'COUNT', count) or {}
    for _, entry in ipairs(page) do
      after, largest = entry[1], math.max(largest, size(entry))
      looked, bytes = looked + 1, bytes + size(entry)
    end
    if #page < count then
      return { looked, math.max(len - passed - looked - most, 0), 0, '', 0 }
    end
  end
  return { looked, 0, 1, after, passed + looked }
end

for _ = 1, BUDGET do
  if spent >= BUDGET then
    break
  end
  local first = redis.call('XRANGE', dead_tasks, '-', '+', 'COUNT', 1)[1]
  -- Milliseconds suffice: an age has no more digits.
  local old = first and tonumber(string.match(first[1], '^%d+')) < oldest
  if not first or not old and len <= most then
    return { aged, excess, 0, '', 0 }
  end
  local cost, gone, each = 1 + size(first) / 512, 0, 0
  local count = math.max(math.min(math.floor(BUDGET / cost), step), 1)
  if old then
    -- Whole nodes of the stream go at once; of one that is too large, or has younger tasks too, each by itself.
    gone = redis.call('XTRIM', dead_tasks, 'MINID', '~', stays, 'LIMIT', count)
    if gone == 0 then
      local ids = {}
      for _, entry in ipairs(redis.call('XRANGE', dead_tasks, '-', before, 'COUNT', count)) do
        ids[#ids + 1], each = entry[1], each + SINGLE + size(entry) / 512
      end
      gone = redis.call('XDEL', dead_tasks, unpack(ids))
    end
    aged = aged + gone
  else
    local stay = string.format('%.0f', math.max(most, len - count))
    gone = redis.call('XTRIM', dead_tasks, 'MAXLEN', '=', stay)
    excess = excess + gone
  end
  len, spent, step = len - gone, spent + (gone + 1) * cost + each, STEP
end
return { aged, excess, 1, '', 0 }
