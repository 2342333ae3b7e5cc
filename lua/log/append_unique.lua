-- append_unique: appends entries to a log, except those whose id belongs to an entry that a group has not settled.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] unique HASH 'id send' of the newest entry by unique id; '' has 'size at' of the last cleaning
-- KEYS[3] retry_due... ZSET of the first group that is named: origins by due time in milliseconds
-- KEYS[4] retry_log... STREAM of that group: its redeliveries
-- KEYS[5] unique_retry... HASH of that group: ids of its redeliveries by origin; then these three of each further group
-- ARGV[1] mode 'append'; 'look': nothing is appended; 'clean': drops records of settled entries, of some that it picks
-- ARGV[2] named number of groups whose keys are passed
-- ARGV[3] count number of entries, at most 250
-- ARGV[4] values... names of these groups; for each entry its unique id, its send, the number of its values, the values
-- include clock, ids
-- returns {ids, firsts, more, missing}: of the first entries, as many as could be decided, the id under which each is
-- stored or '', and 1 if that was this send, else 0; 1 if 'clean' has something to do, else 0; groups whose keys are
-- needed to decide the next one
local log, unique = KEYS[1], KEYS[2]
local mode, named, count = ARGV[1], ARGV[2], ARGV[3]
-- BUDGET: most looks at a group for an entry. MAX_BYTES: most bytes of entries that are read. SAMPLE: records that are
-- picked at once. KEEP_MS: age up to which a record is kept, so that its send can be repeated. LEAST: records that are
-- not worth a cleaning. EVERY_MS: time between two.
local BUDGET, MAX_BYTES, SAMPLE, KEEP_MS, LEAST, EVERY_MS = 20000, 1048576, 500, 120000, 1000, 60000

local _, now_ms = clock()
local function before(a, b)
  return wide(a) < wide(b)
end
-- In this function `log` is the log or a retry log.
local function groups_of(log)
  local groups = {}
  for n, list in ipairs(redis.call('EXISTS', log) == 1 and redis.call('XINFO', 'GROUPS', log) or {}) do
    groups[n] = map(list)
  end
  return groups
end

local keys, keys_of = KEYS, {}
for n = 1, named do
  keys_of[ARGV[3 + n]] = 3 * n
end
-- The groups of the log are read only if a record is found; `lowest` is the position of the last one.
local groups, missing, lowest, bytes = nil, nil, nil, 0
local function read_groups()
  groups, missing = groups_of(log), {}
  for _, group in ipairs(groups) do
    local position = group['last-delivered-id']
    lowest = lowest and before(lowest, position) and lowest or position
    -- A name that none of our groups can have belongs to another program: it has no retries.
    if not keys_of[group.name] and #group.name <= 128 and string.match(group.name, '^[%w._-]+$') then
      missing[#missing + 1] = group.name
    end
  end
end

-- Whether the entry is in the log, and a group has not read it or has it pending. Without any group nobody has read it.
local function waits(id, origin)
  local unread = not lowest or before(lowest, origin)
  for _, group in ipairs(unread and {} or groups) do
    unread = unread or group.pending > 0 and #redis.call('XPENDING', log, group.name, origin, origin, 1) > 0
  end
  local entry = unread and redis.call('XRANGE', log, origin, origin)[1]
  bytes = bytes + (entry and #table.concat(entry[2]) or 0)
  return entry and entry[2][1] == 'mq:unique' and entry[2][2] == id
end
-- Whether a redelivery is still to be settled. It is read, which copies it, only if `whole` is set.
local function redelivered(retry_log, name, id, origin, whole)
  local entry = whole and redis.call('XRANGE', retry_log, id, id)[1]
  if whole and not (entry and entry[2][4] == origin) then
    return false
  end
  for _, group in ipairs(groups_of(retry_log)) do
    if group.name == name then
      return before(group['last-delivered-id'], id) or #redis.call('XPENDING', retry_log, name, id, id, 1) > 0
    end
  end
  return redis.call('EXISTS', retry_log) == 1
end
-- Sets `held` of those that a group has for a retry, and `notes` of all to the keys that have a note of it.
local function look_at_retries(asked, whole)
  local origins = {}
  for n, ask in ipairs(asked) do
    origins[n], ask.notes = ask.origin, {}
  end
  for _, group in ipairs(#asked > 0 and groups or {}) do
    local at = keys_of[group.name] or 0
    local retry_due, retry_log, unique_retry = keys[at], keys[at + 1], keys[at + 2]
    if at > 0 and redis.call('EXISTS', retry_due, unique_retry) > 0 then
      local dues = redis.call('ZMSCORE', retry_due, unpack(origins))
      local notes = redis.call('HMGET', unique_retry, unpack(origins))
      for n, ask in ipairs(asked) do
        local note = notes[n]
        ask.held = ask.held or dues[n] or note and redelivered(retry_log, group.name, note, ask.origin, whole)
        ask.notes[#ask.notes + 1] = note and unique_retry or nil
      end
    end
  end
end
local function forget(ask)
  for _, unique_retry in ipairs(ask and ask.notes or {}) do
    redis.call('HDEL', unique_retry, ask.origin)
  end
end

local wanted, sends, from, to, at = {}, {}, {}, {}, 4 + named
for n = 1, count do
  wanted[n], sends[n], from[n] = ARGV[at], ARGV[at + 1], at + 3
  to[n] = at + 2 + tonumber(ARGV[at + 2])
  at = to[n] + 1
end
local known = redis.call('HMGET', unique, '', unpack(wanted))
local size, cleaned = string.match(known[1] or '0 0', '^(%d+) (%d+)$')
local is_large = redis.call('HLEN', unique) > 2 * (size or 0) + LEAST

if mode == 'clean' then
  local age = now_ms - (cleaned or 0)
  if redis.call('EXISTS', unique) == 0 or age >= 0 and age < EVERY_MS and not is_large then
    return { {}, {}, 0, {} }
  end
  read_groups()
  if #missing > 0 then
    return { {}, {}, 1, missing }
  end
  -- As for trimming, entries below what every group has settled are settled, and those below the first one are gone.
  local first, oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1], nil
  for _, group in ipairs(groups) do
    local row = group.pending > 0 and redis.call('XPENDING', log, group.name, '-', '+', 1)[1]
    oldest = row and not (oldest and before(oldest, row[1])) and row[1] or oldest
  end
  local picked, asked, gone = redis.call('HRANDFIELD', unique, SAMPLE, 'WITHVALUES'), {}, {}
  for n = 1, #picked, 2 do
    local origin, ms = string.match(picked[n + 1], '^((%d+)%-%d+) %d+$')
    local passed = origin and (not first or before(origin, first[1])
      or lowest and not before(lowest, origin) and not (oldest and not before(origin, oldest)))
    asked[#asked + 1] = passed and ms + KEEP_MS < now_ms and { id = picked[n], origin = origin } or nil
  end
  look_at_retries(asked, false)
  for _, ask in ipairs(asked) do
    if not ask.held then
      gone[#gone + 1] = ask.id
      forget(ask)
    end
  end
  redis.call('HDEL', unique, '', unpack(gone))
  -- It goes on at once while a quarter of what it picks is dropped.
  local left, more = redis.call('HLEN', unique), 8 * #gone > #picked
  if left > 0 then
    redis.call('HSET', unique, '', string.format('%.0f %.0f', left, more and 0 or now_ms))
  end
  return { {}, {}, more and 1 or 0, {} }
end

local done, asked, state = #wanted, {}, {}
for n, id in ipairs(wanted) do
  local origin, send = string.match(known[n + 1] or '', '^(%d+%-%d+) (%d+)$')
  local own = origin and send == sends[n]
  if origin and not own and not groups then
    read_groups()
  end
  local full = groups and n > 1 and (n * #groups > BUDGET or bytes > MAX_BYTES or #asked == 100)
  local held = own or origin and not full and waits(id, origin)
  if origin and not held and (full or #missing > 0) then
    done = n - 1
    break
  end
  state[n] = origin and { origin = origin, held = held, own = own }
  asked[#asked + 1] = origin and not held and state[n] or nil
end
look_at_retries(asked, true)

local ids, firsts, added, sets = {}, {}, {}, {}
for n = 1, done do
  local id, was = wanted[n], state[n]
  ids[n], firsts[n] = added[id] or was and was.held and was.origin or '', was and was.own and 1 or 0
  if ids[n] == '' and mode == 'append' then
    -- The first write: a server that is out of memory refuses it, and nothing was done.
    local new = redis.call('XADD', log, '*', unpack(ARGV, from[n], to[n]))
    ids[n], firsts[n], added[id] = new, 1, new
    sets[#sets + 1], sets[#sets + 2] = id, new .. ' ' .. sends[n]
    forget(was)
  end
end
if #sets > 0 then
  redis.call('HSET', unique, unpack(sets))
end
return { ids, firsts, is_large and 1 or 0, done < #wanted and missing or {} }
