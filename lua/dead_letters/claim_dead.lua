-- claim_dead: claims dead letters for one client for a limited time.
-- KEYS[1] dlq STREAM the group's dead letters
-- KEYS[2] dead_claims HASH 'until hold by' by id, in milliseconds; by is '-' if it was left for later
-- ARGV[1] by name of the claiming client, without spaces
-- ARGV[2] hold_ms for how long
-- ARGV[3] left '1' to claim also letters that were left for later
-- ARGV[4] ids... of the dead letters, at most 100
-- returns {done, ids}: those that were claimed; it stops when bodies reach 1 MiB; the caller repeats those after the
-- first `done`
local dlq, dead_claims = KEYS[1], KEYS[2]
local by, hold_ms, left = ARGV[1], ARGV[2], ARGV[3]
local CLAIM, GRACE_MS, MAX_BYTES = '^(%d+) (%d+) (%S+)$', 1000, 1048576
-- Number of randomly chosen claims that each call checks, and removes if they are no longer needed.
local SWEEP = 100

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local known = redis.call('HLEN', dead_claims) > 0
-- A claim is removed with its letter. But other programs may delete letters (`XTRIM`), and the hash does not expire
-- while new claims arrive. So expired claims, and those of letters below the first one, are removed here.
local first = known and redis.call('XRANGE', dlq, '-', '+', 'COUNT', 1)[1]
local function below(a, b)
  return #a < #b or #a == #b and a < b
end
local function is_gone(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  local first_ms, first_seq = string.match(first and first[1] or '', '^(%d+)%-(%d+)$')
  return not first or not ms or below(ms, first_ms) or ms == first_ms and below(seq, first_seq)
end
local some = known and redis.call('HRANDFIELD', dead_claims, SWEEP, 'WITHVALUES') or {}
for i = 1, #some, 2 do
  local ends = string.match(some[i + 1], CLAIM)
  if is_gone(some[i]) or ends and tonumber(ends) <= now then
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
  local ends, hold, whose = string.match(known and redis.call('HGET', dead_claims, id) or '', CLAIM)
  -- After the clock went back a claim would hold for longer than was requested.
  local holds = ends and tonumber(ends) > now and tonumber(ends) <= now + tonumber(hold) + GRACE_MS
  if not holds or whose == by or whose == '-' and left == '1' then
    local entry = redis.call('XRANGE', dlq, id, id)[1]
    if entry then
      for _, value in ipairs(entry[2]) do
        bytes = bytes + #value
      end
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
