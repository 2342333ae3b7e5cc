-- append_dedup: appends entries to a log, except those whose dedup id was appended within the window.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] dedup HASH ids of entries by dedup id, the newest; '' has 'begin window' in milliseconds
-- KEYS[3] dedup_old HASH ids of entries by dedup id that were stored before 'begin'
-- ARGV[1] window_ms for how long a dedup id counts
-- ARGV[2] count number of entries, at most 250
-- ARGV[3] entries... for each its dedup id, the number of its values, and the values
-- returns {ids, firsts}: for each entry the id under which it is stored, and 1 if that was this call, else 0
local log, dedup, dedup_old = KEYS[1], KEYS[2], KEYS[3]
local window_ms, count = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local wanted, from, to = {}, {}, {}
local at = 3
for n = 1, count do
  wanted[n], from[n] = ARGV[at], at + 2
  to[n] = at + 1 + tonumber(ARGV[at + 1])
  at = to[n] + 1
end
local recent = redis.call('HMGET', dedup, '', unpack(wanted))
local before = redis.call('HMGET', dedup_old, unpack(wanted))

-- The id of an entry has the time at which it was stored, so the window is exact.
local function within(id)
  local ms = id and tonumber(string.match(id, '^(%d+)%-%d+$'))
  return ms and ms + window_ms > now_ms and id
end

local ids, firsts, added, sets = {}, {}, {}, {}
for n, id in ipairs(wanted) do
  local known = added[id] or within(recent[n + 1]) or within(before[n])
  if not known then
    -- The first write: a server that is out of memory refuses it, and nothing was done.
    known = redis.call('XADD', log, '*', unpack(ARGV, from[n], to[n]))
    added[id] = known
    sets[#sets + 1], sets[#sets + 2] = id, known
    firsts[n] = 1
  else
    firsts[n] = 0
  end
  ids[n] = known
end
if #sets > 0 then
  -- The longest window of all callers decides when ids are dropped.
  local begin, longest = string.match(recent[1] or '', '^(%d+) (%d+)$')
  begin, longest = tonumber(begin or now_ms), math.max(tonumber(longest or 0), tonumber(window_ms))
  local state = string.format('%.0f %.0f', begin, longest)
  redis.call('HSET', dedup, '', state, unpack(sets))
  redis.call('PEXPIRE', dedup, string.format('%.0f', 2 * longest))
  if begin + longest <= now_ms then
    -- All that is older than 'begin' is older than the window.
    redis.call('UNLINK', dedup_old)
    redis.call('RENAME', dedup, dedup_old)
  end
end
return { ids, firsts }
