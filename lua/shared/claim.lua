-- claim: takes over entries of consumers that are not alive, and removes such consumers without entries.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] retry_log STREAM the group's redeliveries
-- KEYS[4] held HASH notes of pending entries by source and id
-- ARGV[1] mode 'lease', or 'consumer': then the fence is not checked
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that reads
-- ARGV[4] idle_ms the idle time that an entry, or a consumer that is removed, must have at least
-- ARGV[5] limit maximum number of entries, up to 100
-- ARGV[6] continuity answers to the caller: 'ttl since until server' in milliseconds, or '*'
-- ARGV[7] names... of consumers: first the one that gets the entries, then those that are alive
-- include clock, fence, identity, continuity, ids
-- returns {next_ms, removed, now_ms, entries, ghosts}: milliseconds until more may be free, or -1; entries as
-- {source, id, deliveries, idle_ms, note or ''}, without their bodies; ghosts as {source, id, idle_ms}; the source is
-- 'log' or 'retry'; or the errors FENCED or NOGROUP
local fence, log, retry_log, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mode, who, group, idle_ms, limit, continuity = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local GIVEN_BACK_MS = 2 ^ 35

if not may_change(fence, mode, who) then
  return fenced()
end
-- Read first: a key of the wrong type, or a missing group, is detected before anything is changed.
redis.call('HLEN', held)
redis.call('XPENDING', log, group)
redis.call('XPENDING', retry_log, group)
local _, now, now_ms = clock()
local name, alive = ARGV[7], {}
for at = 7, #ARGV do
  alive[ARGV[at]] = true
end

-- Milliseconds until the caller may treat the silence of others as their end. Computed once, and only if needed, since
-- INFO is expensive.
local known_in_ms
local function known_in()
  local answered = continuity_of(continuity, idle_ms, now)
  if answered.unbroken then
    identify(answered)
  end
  return judges_in(answered, now)
end

local idle, left, next_ms, removed, entries, ghosts = tonumber(idle_ms), tonumber(limit), -1, 0, {}, {}
-- In this function and the next, `log` is the log or the retry log.
local function take(source, log, rows)
  -- With JUSTID no body is copied: each would pass through Lua twice, and 100 bodies of 1 MiB would block the server
  -- for half a second. But then XCLAIM does not count the delivery. RETRYCOUNT sets one count for all ids of a call,
  -- so there is one call per distinct count; nearly always there is only one.
  local counts, by_count, whole = {}, {}, {}
  for _, row in ipairs(rows) do
    local deliveries = row[4] + 1
    if not by_count[deliveries] then
      by_count[deliveries] = {}
      counts[#counts + 1] = deliveries
    end
    table.insert(by_count[deliveries], row[1])
  end
  for _, deliveries in ipairs(counts) do
    local ids = by_count[deliveries]
    ids[#ids + 1], ids[#ids + 2], ids[#ids + 3] = 'RETRYCOUNT', deliveries, 'JUSTID'
    for _, id in ipairs(redis.call('XCLAIM', log, group, name, 0, unpack(ids))) do
      whole[id] = true
    end
  end
  for _, row in ipairs(rows) do
    local id, note = row[1], source .. ':' .. row[1]
    if whole[id] then
      entries[#entries + 1] = { source, id, row[4] + 1, row[3], redis.call('HGET', held, note) or '' }
    else
      -- Deleted from the stream: XCLAIM has removed it from the pending list.
      redis.call('HDEL', held, note)
      ghosts[#ghosts + 1] = { source, id, row[3] }
    end
  end
  left = left - #rows
end

local function look(source, log, info)
  local of = map(info)
  if not alive[of.name] then
    known_in_ms = known_in_ms or known_in()
    -- Without continuity only released entries are taken: only a release sets an idle time this large.
    local least_ms = known_in_ms == 0 and idle_ms or string.format('%.0f', math.max(idle, GIVEN_BACK_MS))
    local rows = {}
    if left > 0 and of.pending > 0 then
      rows = redis.call('XPENDING', log, group, 'IDLE', least_ms, '-', '+', left, of.name)
    end
    if #rows > 0 then
      take(source, log, rows)
    end
    if of.pending > #rows then
      for _, row in ipairs(redis.call('XPENDING', log, group, '-', '+', 10, of.name)) do
        local wait_ms = math.max(idle - row[3], row[3] < GIVEN_BACK_MS and known_in_ms or 0, 0)
        next_ms = next_ms < 0 and wait_ms or math.min(next_ms, wait_ms)
      end
    elseif of.idle >= idle and known_in_ms == 0 then
      -- Check and removal are one step: the consumer cannot receive an entry in between.
      redis.call('XGROUP', 'DELCONSUMER', log, group, of.name)
      removed = removed + 1
    end
  end
end
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', log, group)) do
  look('log', log, info)
end
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', retry_log, group)) do
  look('retry', retry_log, info)
end
return { next_ms, removed, now_ms, entries, ghosts }
