-- claim_dead: claims dead letters for one client for a limited time.
-- KEYS[1] dlq STREAM the group's dead letters
-- KEYS[2] dead_claims HASH 'until hold by' by id, in milliseconds; by is '-' if it was left for later
-- ARGV[1] by name of the claiming client, without spaces
-- ARGV[2] hold_ms for how long
-- ARGV[3] left '1' to claim also letters that were left for later
-- ARGV[4] ids... of the dead letters, at most 100
-- include clock, dead_claim, ids, size
-- returns {done, ids}: those that were claimed; it stops when bodies reach 1 MiB; the caller repeats those after the
-- first `done`
local dlq, dead_claims = KEYS[1], KEYS[2]
local by, hold_ms, left = ARGV[1], ARGV[2], ARGV[3]
local MAX_BYTES = 1048576
-- Number of randomly chosen claims that each call checks, and removes if they are no longer needed.
local SWEEP = 100

local _, now = clock()
local known = redis.call('HLEN', dead_claims) > 0
-- A claim is removed with its letter. But other programs may delete letters (`XTRIM`), and the hash does not expire
-- while new claims arrive. So expired claims, and those of letters below the first one, are removed here.
local first = known and redis.call('XRANGE', dlq, '-', '+', 'COUNT', 1)[1]
local function is_gone(id)
  return not first or not wide(id) or wide(id) < wide(first[1])
end
local some = known and redis.call('HRANDFIELD', dead_claims, SWEEP, 'WITHVALUES') or {}
for i = 1, #some, 2 do
  local _, _, ends = dead_claim(some[i + 1], now)
  if is_gone(some[i]) or ends and ends <= now then
    redis.call('HDEL', dead_claims, some[i])
  end
end
local claim = string.format('%.0f %s %s', now + tonumber(hold_ms), hold_ms, by)
local done, bytes, ids = 0, 0, {}
for i = 4, #ARGV do
  if bytes >= MAX_BYTES then
    break
  end
  local id = ARGV[i]
  done = done + 1
  local holds, whose = dead_claim(known and redis.call('HGET', dead_claims, id), now)
  if not holds or whose == by or whose == '-' and left == '1' then
    local entry = redis.call('XRANGE', dlq, id, id)[1]
    if entry then
      bytes = bytes + size(entry)
      redis.call('HSET', dead_claims, id, claim)
      ids[#ids + 1] = id
    end
  end
end
-- The hash expires with its last claim, so abandoned claims need no further cleanup.
if #ids > 0 and redis.call('PTTL', dead_claims) < tonumber(hold_ms) then
  redis.call('PEXPIRE', dead_claims, hold_ms)
end
return { done, ids }
