-- trim: drops the oldest entries of the log, as a rule says; what was dropped unread or pending is counted per group.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- ARGV[1] token of the lease
-- ARGV[2] limit how many to drop at most
-- ARGV[3] rule 'consumed', 'consumed-after', 'age' or 'length'
-- ARGV[4] figure of the rule: milliseconds, entries, or 0
-- returns {dropped, 1 if there is more to drop or 0, group, unread, pending, group, ...}, or the error FENCED
local fence, log = KEYS[1], KEYS[2]
local token, limit, rule, figure = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- What was not settled is counted entry by entry: less of it in one call. To free an entry costs about as much as 1 KiB
-- of it does; so many KiB in one call, of which a half may be guessed from one entry. The rest waits for the next one.
local LOSSY, PAGE, BUDGET = 1000, 200, 20000
limit, figure = tonumber(limit), tonumber(figure)

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
if redis.call('EXISTS', log) == 0 then
  return { 0, 0 }
end

-- Ids are compared as text: Lua's numbers would lose their last digits.
local function below(a, b)
  return #a < #b or #a == #b and a < b
end
local function before(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)%-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)%-(%d+)$')
  return below(a_ms, b_ms) or a_ms == b_ms and below(a_seq, b_seq)
end
-- The id after `id`; for the last one of a millisecond, `id` itself: then one entry more is kept.
local function after(id)
  local head, digit, nines = string.match(id, '^(%d+%-%d*)([0-8])(9*)$')
  if string.find(id, '-18446744073709551615', 1, true) then
    return id
  elseif head then
    return head .. (digit + 1) .. string.rep('0', #nines)
  end
  local ms, seq = string.match(id, '^(%d+%-)(9+)$')
  return ms .. '1' .. string.rep('0', #seq)
end

-- Drops what is below `id`, at most `most`: whole nodes first, which is cheap, then what is left of one node.
local spent = 0
local function drop(id, most)
  local dropped, under = 0, '(' .. id
  for _ = 1, id ~= '0-0' and most or 0 do
    local oldest = redis.call('XRANGE', log, '-', under, 'COUNT', 1)[1]
    local cost = 1 + #table.concat(oldest and oldest[2] or {}) / 1024
    local step = math.max(math.floor(BUDGET / 2 / cost), 1)
    local gone = oldest and redis.call('XTRIM', log, 'MINID', '~', id, 'LIMIT', math.min(step, most - dropped)) or 0
    dropped, spent = dropped + gone, spent + gone * cost
    if gone == 0 or dropped == most or spent >= BUDGET then
      break
    end
  end
  for _ = 1, spent < BUDGET and id ~= '0-0' and math.ceil((most - dropped) / PAGE) or 0 do
    local count = math.min(most - dropped, PAGE)
    local left = redis.call('XRANGE', log, '-', under, 'COUNT', count)
    local bound = left[1] and after(left[#left][1])
    local gone = bound and redis.call('XTRIM', log, 'MINID', '=', bound) or 0
    dropped = dropped + gone
    if gone < count then
      break
    end
  end
  return dropped
end
local function first()
  local entry = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  return entry and entry[1]
end

local groups, settled = {}, nil
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local info = {}
  for i = 1, #flat, 2 do
    info[flat[i]] = flat[i + 1]
  end
  local group = { name = info.name, read = after(info['last-delivered-id']), pending = info.pending, unread = 0 }
  local oldest = info.pending > 0 and redis.call('XPENDING', log, info.name, '-', '+', 1)[1][1] or group.read
  settled = settled and before(settled, oldest) and settled or oldest
  groups[#groups + 1] = group
end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local old = string.format('%.0f-0', math.max(now_ms - figure, 0))
local cut, room = settled, limit
if rule == 'consumed-after' then
  cut = settled and (before(settled, old) and settled or old)
elseif rule == 'age' then
  cut = old
elseif rule == 'length' then
  room = math.min(limit, math.max(redis.call('XLEN', log) - figure, 0))
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  cut = last and last[1]
end
if not cut or room == 0 then
  return { 0, 0 }
end

local safe = settled and before(settled, cut) and settled or cut
local dropped = drop(safe, room)
local reply = { dropped, 0 }
local oldest = safe ~= cut and dropped < room and first()
if oldest and before(oldest, cut) then
  room = math.min(room, dropped + LOSSY)
  table.sort(groups, function(a, b) return before(a.read, b.read) end)
  for i = 1, #groups + 1 do
    local bound = groups[i] and before(groups[i].read, cut) and groups[i].read or cut
    local gone = drop(bound, room - dropped)
    dropped = dropped + gone
    for j = 1, i - 1 do
      groups[j].unread = groups[j].unread + (before(groups[j].read, bound) and gone or 0)
    end
  end
  local rest = '(' .. (first() or after(cut))
  for _, group in ipairs(groups) do
    local pending = group.pending > 0 and #redis.call('XPENDING', log, group.name, oldest, rest, LOSSY) or 0
    if group.unread + pending > 0 then
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = group.name, group.unread, pending
    end
  end
end
local more = rule == 'length' and redis.call('XLEN', log) > figure
more = more or rule ~= 'length' and (dropped >= room or spent >= BUDGET)
reply[1], reply[2] = dropped, more and 1 or 0
return reply
