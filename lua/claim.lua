-- claim: takes over what consumers that are not alive have left, and removes those that have nothing.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] retry_log STREAM the group's redeliveries
-- KEYS[4] held HASH notes of pending entries by source and id
-- ARGV[1] mode 'lease', or 'consumer': then the fence is not asked
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that reads
-- ARGV[4] idle_ms for how long nobody must have touched an entry, nor heard of a consumer that is removed
-- ARGV[5] limit the most entries, at most 100
-- ARGV[6] heard since when the claimer was answered without a gap: 'ttl since until server' in milliseconds, or '*'
-- ARGV[7] names... of consumers: first whom the entries are for, then those that are alive
-- returns {next_ms, removed, now_ms, entries, ghosts}: milliseconds until more may be there, or -1; entries as
-- {source, id, deliveries, idle_ms, note or ''}, without their bodies; ghosts as {source, id, idle_ms}; the source is
-- 'log' or 'retry'; or the errors FENCED or NOGROUP
local fence, log, retry_log, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mode, who, group, idle_ms, limit, heard = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local GIVEN_BACK_MS = 2 ^ 35

-- Whatever is not the one word is judged by the fence, which no empty token passes.
if mode ~= 'consumer' and (who == '' or redis.call('HGET', fence, 'token') ~= who) then
  return redis.error_reply('FENCED lease is lost')
end
-- Read first: a key of a foreign type, or a group that is not there, is found before anything was changed.
redis.call('HLEN', held)
redis.call('XPENDING', log, group)
redis.call('XPENDING', retry_log, group)
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local name, alive = ARGV[7], {}
for at = 7, #ARGV do
  alive[ARGV[at]] = true
end

-- In how many milliseconds the claimer may count against others that they touched nothing: 0 if this server has
-- answered it for one ttl without a gap of half of it, as for a lease. Asked once, and only if there is a reason.
local known_in_ms
local function judges_in()
  local ttl, since, till, server = string.match(heard, '^(%d+) (%d+) (%d+) (.+)$')
  if not ttl then
    return heard == '*' and 0 or tonumber(idle_ms)
  end
  local process, history = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
  local run = type(process) == 'string' and string.match(process, 'run_id:(%x+)')
  local replica = type(history) == 'string' and string.match(history, 'master_replid:(%x+)')
  local gap = now_ms - till
  if server ~= (run and replica and run .. '.' .. replica or '-') or gap < 0 or gap >= ttl / 2 then
    return tonumber(ttl)
  end
  return math.max(since + ttl - now_ms, 0)
end

local idle, left, next_ms, removed, entries, ghosts = tonumber(idle_ms), tonumber(limit), -1, 0, {}, {}
-- In these two `log` is either of them.
local function take(source, log, rows)
  -- With JUSTID no body is copied: each would pass through Lua twice, and a hundred of 1 MiB would block the server for
  -- half a second. But then XCLAIM does not count the delivery. RETRYCOUNT sets the count, one for all ids of a call:
  -- so there is a call for each count there is, which is one nearly always.
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
      -- Deleted: XCLAIM has taken it off the pending list.
      redis.call('HDEL', held, note)
      ghosts[#ghosts + 1] = { source, id, row[3] }
    end
  end
  left = left - #rows
end

local function look(source, log, info)
  local of = {}
  for at = 1, #info, 2 do
    of[info[at]] = info[at + 1]
  end
  if not alive[of.name] then
    known_in_ms = known_in_ms or judges_in()
    -- Who does not judge takes what was given back, and that alone: nobody can have touched it for so long.
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
      -- In one step with the look: nothing can be handed to it in between.
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
