-- find_dedup: returns the ids of entries that were appended with these dedup ids within the window.
-- KEYS[1] dedup HASH ids of entries by dedup id, the newest
-- KEYS[2] dedup_old HASH ids of entries by dedup id that were stored before these
-- ARGV[1] window_ms for how long a dedup id counts
-- ARGV[2] ids... the short form of each dedup id, at most 250
-- include clock
-- returns for each the id of its entry, or '' if there is none
local dedup, dedup_old = KEYS[1], KEYS[2]
local window_ms = ARGV[1]

local _, now_ms = clock()
local recent = redis.call('HMGET', dedup, unpack(ARGV, 2))
local before = redis.call('HMGET', dedup_old, unpack(ARGV, 2))

-- Records are kept for longer than the window. The id of an entry has the time at which it was stored.
local function within(id)
  local ms = id and tonumber(string.match(id, '^(%d+)%-%d+$'))
  return ms and ms + window_ms > now_ms and id
end

local found = {}
for n = 1, #ARGV - 1 do
  found[n] = within(recent[n]) or within(before[n]) or ''
end
return found
