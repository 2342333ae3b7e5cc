-- trim: drops the oldest entries of the log by a rule; counts per group the entries dropped unread or pending.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[4] settled... HASH what a group that is named has settled of pending packs
-- ARGV[1] token of the lease; or 'turn' or 'operator' of a client without one, whose KEYS[1] is trimmed: a STRING that
--   exists for a second after a turn
-- ARGV[2] limit maximum number of entries to drop
-- ARGV[3] rule 'consumed', 'consumed-after', 'age', 'length' or 'below'
-- ARGV[4] figure of the rule: milliseconds, messages, an id, or 0
-- ARGV[5] groups... the names of the groups of KEYS[4], or '' if there are none
-- include clock, fence, ids, packs
-- returns {dropped, 1 if there is more to drop or 0, group, unread, pending, group, ...}, in messages, without those
--   that a named group has settled; {0, 2} if another client had the turn; or the error FENCED
local fence, log, packs = KEYS[1], KEYS[2], KEYS[3]
local token, limit, rule, figure = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local keys, names = KEYS, ARGV
-- All of these bound the time for which one call blocks the server. What a call does not reach is left to the next one.
-- Dropping: an entry costs 1, and 1 more for each KiB, which takes about as long. PAGE is the COUNT of an XRANGE.
local MAX_COST, PAGE, PAGE_OF_PACKS = 20000, 200, 10
-- Skipping ghosts: one costs 1 for each group that is compared, 100 for two commands. The bytes are those of bodies.
local MAX_SKIP_COST, MAX_SKIP_BYTES = 10000, 1048576
-- Dropping unsettled entries: numbers of entries, of steps up to a pending one, and of pending ones of all groups.
local MAX_LOST, MAX_STEPS, MAX_PENDING = 1000, 100, 5000
-- How long a turn lasts.
local TURN_MS = 1000
limit = tonumber(limit)
if token == 'turn' then
  -- A server that is out of memory refuses it, and needs the trim all the more.
  if not redis.pcall('SET', fence, '1', 'PX', TURN_MS, 'NX') then
    return { 0, 2 }
  end
elseif token ~= 'operator' and not is_owner(fence, token) then
  return fenced()
end
if redis.call('XLEN', log) == 0 then
  return { 0, 0 }
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
-- The newest pack there was.
local newest = redis.call('XREVRANGE', packs, '+', '-', 'COUNT', 1)[1]
-- Messages beyond one an entry that have left the log so far.
local function more_gone()
  local oldest = newest and first()
  return newest and more_up_to(packs, oldest and '(' .. oldest or '+') or 0
end
local below = rule == 'below' and wide(figure)
if rule == 'below' and not below then
  return redis.error_reply('ERR the figure is no id')
end
figure = tonumber(figure) or 0
local _, now_ms = clock()
local old = wide(string.format('%.0f-0', math.max(now_ms - figure, 1)))
-- Most calls find nothing to drop, and then cost nothing for each group.
local is_short = rule == 'length' and not newest and redis.call('XLEN', log) <= figure
if is_short or rule == 'age' and (first() or old) >= old then
  return { 0, 0 }
end
local gone_before = more_gone()
-- Returns how many messages of a pack a group has not settled. ONES: how many bits are set in half a byte.
local ONES, settled_of = { [0] = 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4 }, {}
for at = 4, #keys do
  settled_of[names[at + 1]] = keys[at]
end
local function open_in(pack, name)
  local count, settled = tonumber(pack[2][2]), settled_of[name]
  -- Entries are gone by now: a key of another type must not hide that.
  local bits = settled and redis.pcall('HGET', settled, pack[1])
  for at = 1, type(bits) == 'string' and #bits or 0 do
    local byte = string.byte(bits, at)
    count = count - ONES[byte % 16] - ONES[math.floor(byte / 16)]
  end
  -- Somebody else may have written more bits.
  return math.max(count, 0)
end

-- Where packs were deleted between others, `packs` has those too, until the log is trimmed past them. Then entries are
-- dropped page by page only, and the messages beyond one an entry are counted pack by pack: `more_dropped`.
-- `dropped_packs`: by id.
local holes, more_dropped, dropped_packs = false, 0, {}
local function look_for_holes()
  local info, oldest = redis.call('XINFO', 'STREAM', log), first()
  for at = 1, newest and oldest and #info or 0, 2 do
    holes = holes or info[at] == 'max-deleted-entry-id' and wide(info[at + 1]) >= oldest
  end
end
local function note_dropped(id)
  local pack = redis.call('XRANGE', packs, id, id)[1]
  if pack then
    more_dropped, dropped_packs[wide(pack[1])] = more_dropped + tonumber(pack[2][2]) - 1, true
  end
end
-- Returns how many messages beyond one an entry have been dropped.
local function more_of_dropped()
  return holes and more_dropped or more_gone() - gone_before
end

-- Drops at most `most` entries below `id`. First whole nodes of the stream, which is cheap: with '~' the server stops
-- before the first node that it would have to split. Then the entries of that node, page by page.
local cost = 0
local function drop(id, most)
  local dropped, whole_nodes, below = 0, not holes, '(' .. id
  -- Each round drops an entry or more, except for the one that finds no whole node.
  for _ = 0, most do
    if dropped >= most or cost >= MAX_COST then
      break
    end
    local count, gone = whole_nodes and 1 or math.min(most - dropped, holes and PAGE_OF_PACKS or PAGE), 0
    local page = redis.call('XRANGE', log, '-', below, 'COUNT', count)
    if not page[1] then
      break
    elseif whole_nodes then
      -- All entries of this step are taken to be as large as the first one: so it may use up half of the cost only.
      local each = 1 + #table.concat(page[1][2]) / 1024
      local step = math.min(math.max(math.floor(MAX_COST / 2 / each), 1), most - dropped)
      gone = redis.call('XTRIM', log, 'MINID', '~', id, 'LIMIT', step)
      cost, whole_nodes = cost + gone * each, gone > 0
    else
      -- 0 if the page is one entry with the last id of a millisecond, which is kept.
      gone = redis.call('XTRIM', log, 'MINID', '=', after(wide(page[#page][1])))
      for at = 1, holes and gone or 0 do
        cost = cost + 1 + #table.concat(page[at][2]) / 1024
        note_dropped(page[at][1])
      end
    end
    dropped = dropped + gone
  end
  return dropped
end

-- What a group needs: its unread entries, and its pending ones, which may be above its position if that was set back.
-- `need` is the smallest id of them. A pending entry whose body was deleted is a ghost and needs nothing.
local groups = {}
-- Finds the oldest pending entry of a group, from the id `from` on. It may be a ghost.
local function find_oldest(group, from)
  local row = group.pending and redis.call('XPENDING', log, group.name, from, '+', 1)[1]
  group.oldest = row and wide(row[1]) < group.read and wide(row[1])
  group.need = group.oldest or group.read
end
local start = first() or '+'
for i, flat in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local info = map(flat)
  -- A group of one instance, `name~instance`, keeps nothing: what it loses is counted.
  local keeps, read = not string.find(info.name, '~', 1, true), after(wide(info['last-delivered-id']))
  groups[i] = { name = info.name, pending = info.pending > 0, read = read, keeps = keeps }
  find_oldest(groups[i], start)
end

-- The watermark: below it every group that keeps entries has settled everything; nil if there is none. It is the lowest
-- need of these groups. Whether a pending entry is a ghost is only known from its body, and reading copies that: so it
-- is read only where it decides, for the group with the lowest need. After a ghost, the group's next pending entry
-- counts.
-- `exact`: the watermark is no ghost. Otherwise there were too many to skip in one call, and the next one drops more.
local watermark, exact, skip_bytes = nil, false, 0
for _ = 1, math.ceil(MAX_SKIP_COST / (#groups + 100)) do
  local lowest
  for _, group in ipairs(groups) do
    lowest = group.keeps and (not lowest or group.need < lowest.need) and group or lowest
  end
  watermark = lowest and lowest.need
  if not (lowest and lowest.oldest) then
    exact = true
    break
  end
  local entry = redis.call('XRANGE', log, lowest.oldest, '+', 'COUNT', 1)[1]
  exact = entry and wide(entry[1]) == lowest.oldest
  if exact or skip_bytes >= MAX_SKIP_BYTES then
    break
  end
  skip_bytes = skip_bytes + (entry and #table.concat(entry[2]) or 0)
  -- Without an entry the range is only '+', in which nothing can be pending.
  find_oldest(lowest, entry and entry[1] or '+')
end

-- What the rule drops: the entries below `cut`, `room` of them at most.
local cut, room = below or watermark, limit
if rule == 'consumed-after' then
  cut = watermark and watermark < old and watermark or watermark and old
elseif rule == 'age' then
  cut = old
elseif rule == 'length' then
  -- In messages. Entries are dropped as long as all of their messages have that many newer ones.
  local excess = redis.call('XLEN', log) - figure
  room = math.min(limit, math.max(excess, 0))
  if newest then
    excess, room = excess + tonumber(newest[2][4]) - gone_before, 0
    local from, bytes = '-', 0
    for _ = 1, limit do
      if excess <= 0 or room >= limit or bytes >= MAX_SKIP_BYTES then
        break
      end
      local page = redis.call('XRANGE', log, from, '+', 'COUNT', 20)
      for _, entry in ipairs(page) do
        local pack = redis.call('XRANGE', packs, entry[1], entry[1])[1]
        excess = excess - (pack and tonumber(pack[2][2]) or 1)
        if excess >= 0 and room < limit then
          room = room + 1
        end
        bytes, from = bytes + #table.concat(entry[2]), '(' .. entry[1]
      end
      if #page < 20 then
        break
      end
    end
  end
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  cut = last and wide(last[1])
end
if not cut or room == 0 then
  return { 0, 0 }
end
if newest then
  look_for_holes()
end
local consumed = watermark and watermark < cut and watermark or cut
for _, group in ipairs(groups) do
  consumed = not group.keeps and group.need < consumed and group.need or consumed
end
local dropped, reply = drop(consumed, room), { 0, 0 }
local oldest = consumed < cut and dropped < room and first()
if oldest and oldest < cut then
  -- Step by step, up to each position and over each pending entry: the result of the step of a pending entry shows
  -- whether it existed or is a ghost. So no body is read for that.
  room = math.min(room, dropped + MAX_LOST)
  local stops, bound, count = {}, cut, math.max(math.floor(MAX_PENDING / (#groups + 1)), 5)
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
  -- By stop: the number of entries dropped below it, and whether its own entry was dropped (1) or was a ghost (0).
  -- Entries are messages here unless they are packs: those below a stop are added.
  local passed, lost, steps = {}, {}, 0
  for _, id in ipairs(stops) do
    if not passed[id] then
      bound = steps == MAX_STEPS and id < bound and id or bound
      dropped = dropped + drop(id < bound and id or bound, room - dropped)
      if id >= bound or dropped >= room or cost >= MAX_COST then
        break
      end
      local more_passed = holes and more_dropped or newest and more_up_to(packs, '(' .. id) - gone_before or 0
      passed[id], steps = dropped + more_passed, steps + 1
      lost[id] = redis.call('XTRIM', log, 'MINID', '=', after(id))
      if holes and lost[id] == 1 then
        note_dropped(id)
      end
      dropped = dropped + lost[id]
    end
  end
  dropped, exact = dropped + drop(bound, room - dropped), exact and bound == cut
  local messages, left = dropped + more_of_dropped(), first() or '~'
  for _, group in ipairs(groups) do
    local unread, pending = messages - (passed[group.read] or messages), 0
    for _, id in ipairs(group.ids) do
      local pack = newest and lost[id] == 1 and redis.call('XRANGE', packs, id, id)[1]
      pending = pending + (pack and open_in(pack, group.name) or lost[id] or 0)
    end
    -- Of the pack in which it would have begun to read, what is up to its position is noted as settled.
    local next_pack = newest and unread > 0 and redis.call('XRANGE', packs, group.read, '+', 'COUNT', 1)[1]
    if next_pack and wide(next_pack[1]) < left and (not holes or dropped_packs[wide(next_pack[1])]) then
      unread = unread - tonumber(next_pack[2][2]) + open_in(next_pack, group.name)
    end
    if unread + pending > 0 then
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = group.name, unread, pending
    end
  end
end
local more_messages, gone_after = more_of_dropped(), more_gone()
local more = rule == 'length' and redis.call('XLEN', log) > figure
if rule == 'length' and newest then
  local oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  local pack = oldest and redis.call('XRANGE', packs, oldest[1], oldest[1])[1]
  local length = redis.call('XLEN', log) + tonumber(newest[2][4]) - gone_after
  more = oldest and length - (pack and tonumber(pack[2][2]) or 1) >= figure
end
more = more or rule ~= 'length' and (dropped >= room or cost >= MAX_COST or not exact and dropped > 0)
if newest and dropped > 0 then
  -- What has left the log is needed no more. The newest stays: it tells how many there were.
  local keep, oldest = wide(newest[1]), first()
  if oldest and oldest < keep then
    keep = oldest
  end
  redis.call('XTRIM', packs, 'MINID', '=', keep)
end
reply[1], reply[2] = dropped + more_messages, more and 1 or 0
return reply
