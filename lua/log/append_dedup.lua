-- append_dedup: appends entries to a log, except those whose dedup id was appended within the window.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] dedup HASH ids of entries by dedup id, the newest; '' has 'begin window' in milliseconds
-- KEYS[3] dedup_old HASH ids of entries by dedup id that were stored before 'begin'
-- ARGV[1] window_ms for how long a dedup id counts
-- ARGV[2] count number of entries, at most 250
-- ARGV[3] entries... the short form of each dedup id, then for each entry the number of its values and the values
-- include clock
-- returns {ids, duplicates}: the id of each entry, and the numbers, from 1, of those that were stored before
local log, dedup, dedup_old = KEYS[1], KEYS[2], KEYS[3]
local window_ms, count = ARGV[1], ARGV[2]
window_ms, count = tonumber(window_ms), tonumber(count)
-- Globals cost a look into a table each time.
local args, unpack = ARGV, unpack

local _, now_ms = clock()
local recent = redis.call('HMGET', dedup, '', unpack(args, 3, count + 2))
local begin, longest = string.match(recent[1] or '', '^(%d+) (%d+)$')
-- A clock that was set back: else no hash would be replaced until it is there again.
begin, longest = math.min(tonumber(begin or now_ms), now_ms), tonumber(longest or 0)
-- All in the other hash was stored before 'begin'. It is of no use after the longest window that was used with it: half
-- of the time there is one hash to look into, not two. While this hash has shorter windows alone, it has to stay.
local kept = tonumber(string.match(redis.call('HGET', dedup_old, '') or '', ' (%d+)$'))
local over = not kept or begin + math.max(longest, kept) <= now_ms
local before = over and {} or redis.call('HMGET', dedup_old, unpack(args, 3, count + 2))

-- The id of an entry has the time at which it was stored, so the window is exact.
local function within(id)
  local ms = id and tonumber(string.match(id, '^(%d+)%-%d+$'))
  return ms and ms + window_ms > now_ms and id
end

local ids, duplicates, added, sets, last = {}, {}, {}, {}, 0
local at = count + 3
for n = 1, count do
  local id, to = args[n + 2], at + args[at]
  local found, old = recent[n + 1], before[n]
  local known = added[id] or found and within(found) or old and within(old)
  if known then
    duplicates[#duplicates + 1] = n
  else
    -- The first write: a server that is out of memory refuses it, and nothing was done.
    known = redis.call('XADD', log, '*', unpack(args, at + 1, to))
    added[id] = known
    sets[last + 1], sets[last + 2], last = id, known, last + 2
  end
  ids[n], at = known, to + 1
end
if last > 0 then
  -- The longest window of all callers decides when ids are dropped.
  longest = math.max(longest, window_ms)
  local state = string.format('%.0f %.0f', begin, longest)
  redis.call('HSET', dedup, '', state, unpack(sets))
  redis.call('PEXPIRE', dedup, string.format('%.0f', 2 * longest))
  if over and begin + 2 * longest <= now_ms then
    redis.call('RENAME', dedup, dedup_old)
  elseif over and kept then
    redis.call('UNLINK', dedup_old)
  end
end
return { ids, duplicates }
