-- trim: drops the oldest entries of the log by a rule; counts per group the entries dropped unread or pending.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- ARGV[1] token of the lease
-- ARGV[2] limit maximum number of entries to drop
-- ARGV[3] rule 'consumed', 'consumed-after', 'age' or 'length'
-- ARGV[4] figure of the rule: milliseconds, entries, or 0
-- returns {dropped, 1 if there is more to drop or 0, group, unread, pending, group, ...}, or the error FENCED
local fence, log = KEYS[1], KEYS[2]
local token, limit, rule, figure = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- LOSSY: most unsettled entries per call, since they are counted one by one. PAGE: entries per XRANGE. BUDGET: cost of
-- a call: 1 per entry and 1 per KiB, which take about the same time. Half of it may be estimated from one entry.
local LOSSY, PAGE, BUDGET = 1000, 200, 20000
-- STEPS: most steps per call where pending entries are lost. ROWS: most pending entries of all groups read for these.
local STEPS, ROWS = 100, 5000
-- LOOKS: bounds the ghosts that are skipped, times groups plus 100. BYTES: bounds the bytes that are read meanwhile.
local LOOKS, BYTES = 10000, 1048576
limit, figure = tonumber(limit), tonumber(figure)

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
if redis.call('EXISTS', log) == 0 then
  return { 0, 0 }
end

-- Ids padded to one length, so that text comparison is correct: Lua numbers would lose their last digits.
local function wide(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.rep('0', 20 - #ms) .. ms .. '-' .. string.rep('0', 20 - #seq) .. seq
end
-- The id after `id`; for the last id of a millisecond, `id` itself: then one more entry is kept.
local function after(id)
  local head, digit, nines = string.match(id, '^(.*)([0-8])(9*)$')
  return string.find(id, '-18446744073709551615', 1, true) and id or head .. digit + 1 .. string.rep('0', #nines)
end
local function first()
  local entry = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  return entry and wide(entry[1])
end

-- Drops at most `most` entries below `id`: whole nodes first, which is cheap, then the rest of one node.
local spent = 0
local function drop(id, most)
  local dropped, whole, under = 0, true, '(' .. id
  for _ = 0, most do
    local gone, count = 0, whole and 1 or math.min(most - dropped, PAGE)
    local page = spent < BUDGET and dropped < most and redis.call('XRANGE', log, '-', under, 'COUNT', count) or {}
    if not page[1] then
      break
    end
    if whole then
      local cost = 1 + #table.concat(page[1][2]) / 1024
      local step = math.min(math.max(math.floor(BUDGET / 2 / cost), 1), most - dropped)
      gone = redis.call('XTRIM', log, 'MINID', '~', id, 'LIMIT', step)
      spent = spent + gone * cost
    else
      local last = after(wide(page[#page][1]))
      gone = redis.call('XTRIM', log, 'MINID', '=', last)
    end
    dropped, whole = dropped + gone, whole and gone > 0
  end
  return dropped
end

-- A group needs its unread entries and its pending entries; the latter may be above its position, if that was set back.
-- A pending entry without a body is a ghost and needs nothing. A body is read (which copies it) only where it decides:
-- at the lowest need of all groups. Entries that this call does not reach are kept until the next call.
local groups, start = {}, first() or '+'
local function look(group, from)
  local row = group.pending and redis.call('XPENDING', log, group.name, from, '+', 1)[1]
  group.oldest = row and wide(row[1]) < group.read and wide(row[1])
  group.need = group.oldest or group.read
end
for i, flat in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local info = {}
  for at = 1, #flat, 2 do
    info[flat[at]] = flat[at + 1]
  end
  groups[i] = { name = info.name, pending = info.pending > 0, read = after(wide(info['last-delivered-id'])) }
  look(groups[i], start)
end
local settled, looked, sure = nil, 0, false
for _ = 1, math.ceil(LOOKS / (#groups + 100)) do
  local low = groups[1]
  for _, group in ipairs(groups) do
    low = group.need < low.need and group or low
  end
  settled = low and low.need
  local entry = low and low.oldest and redis.call('XRANGE', log, low.oldest, '+', 'COUNT', 1)
  sure = not entry or entry[1] and wide(entry[1][1]) == low.oldest
  if sure or looked >= BYTES then
    break
  end
  looked = looked + (entry[1] and #table.concat(entry[1][2]) or 0)
  look(low, entry[1] and entry[1][1] or '+')
end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local old = wide(string.format('%.0f-0', math.max(now_ms - figure, 1)))
local cut, room = settled, limit
if rule == 'consumed-after' then
  cut = settled and settled < old and settled or settled and old
elseif rule == 'age' then
  cut = old
elseif rule == 'length' then
  room = math.min(limit, math.max(redis.call('XLEN', log) - figure, 0))
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  cut = last and wide(last[1])
end
if not cut or room == 0 then
  return { 0, 0 }
end

local safe = settled and settled < cut and settled or cut
local dropped = drop(safe, room)
local reply = { 0, 0 }
local oldest = safe < cut and dropped < room and first()
if oldest and oldest < cut then
  -- Step by step, up to each position and over each pending entry: the result of the step of a pending entry shows
  -- whether it existed or is a ghost. So no body is read for that.
  room = math.min(room, dropped + LOSSY)
  local stops, bound, count = {}, cut, math.max(math.floor(ROWS / (#groups + 1)), 5)
  for _, group in ipairs(groups) do
    group.read = group.read < oldest and oldest or group.read
    stops[#stops + 1], group.ids = group.read, {}
    for i, row in ipairs(group.pending and redis.call('XPENDING', log, group.name, oldest, '+', count) or {}) do
      group.ids[i] = wide(row[1])
      stops[#stops + 1] = group.ids[i]
    end
    -- After the last row there may be more pending entries.
    local last = group.ids[count]
    bound = last and after(last) < bound and after(last) or bound
  end
  table.sort(stops)
  local passed, lost, steps = {}, {}, 0
  for _, id in ipairs(stops) do
    if not passed[id] then
      bound = steps == STEPS and id < bound and id or bound
      dropped = dropped + drop(id < bound and id or bound, room - dropped)
      if id >= bound or dropped >= room or spent >= BUDGET then
        break
      end
      passed[id], steps = dropped, steps + 1
      lost[id] = redis.call('XTRIM', log, 'MINID', '=', after(id))
      dropped = dropped + lost[id]
    end
  end
  dropped, sure = dropped + drop(bound, room - dropped), sure and bound == cut
  for _, group in ipairs(groups) do
    local unread, pending = dropped - (passed[group.read] or dropped), 0
    for _, id in ipairs(group.ids) do
      pending = pending + (lost[id] or 0)
    end
    if unread + pending > 0 then
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = group.name, unread, pending
    end
  end
end
local more = rule == 'length' and redis.call('XLEN', log) > figure
more = more or rule ~= 'length' and (dropped >= room or spent >= BUDGET or not sure and dropped > 0)
reply[1], reply[2] = dropped, more and 1 or 0
return reply
