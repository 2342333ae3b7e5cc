-- settle_dead: replays, purges or leaves dead letters unless another client has or had claimed them; each at most once.
-- KEYS[1] dlq STREAM the group's dead letters
-- KEYS[2] retry_log STREAM the group's redeliveries
-- KEYS[3] dead_claims HASH 'until hold by' by id, in milliseconds; by is '-' if it was left for later
-- KEYS[4] unique HASH 'id send' of the newest entry by unique id
-- KEYS[5] unique_retry HASH ids of redeliveries of such entries, by origin
-- ARGV[1] by client that has claimed them: skips letters that another client has claimed or left for later; or '' for a
--   client without claims: skips claimed letters, but not those that were left for later
-- ARGV[2] letters... id, word, and how many values follow, at most 100: 'replay', with the names and values of another
-- body or none; 'purge'; 'leave', with the milliseconds for which it is left
-- include clock, dead_claim, body, redelivery
-- returns {done, ids}: those to which it was done; it stops when bodies reach 1 MiB; the caller repeats those after the
-- first `done`
local dlq, retry_log, dead_claims, unique, unique_retry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local by = ARGV[1]
local LEAD = { 'reason', 'attempts', 'error', 'origin', 'topic', 'partition', 'group', 'history' }
local MAX_BYTES = 1048576

local _, now = clock()
local known = redis.call('HLEN', dead_claims) > 0
local done, bytes, ids, at, longest = 0, 0, {}, 2, 0

local function replay(id, first, count)
  local entry = redis.call('XRANGE', dlq, id, id)[1]
  if not entry then
    return 0
  end
  local fields, body, origin, ours = entry[2], {}, id, true
  for i, name in ipairs(LEAD) do
    ours = ours and fields[2 * i - 1] == name
  end
  if ours and string.match(fields[8], '^%d+%-%d+$') then
    origin = fields[8]
  end
  for i = ours and 2 * #LEAD + 1 or 1, #fields do
    body[#body + 1], bytes = fields[i], bytes + #fields[i]
  end
  body = count > 0 and { unpack(ARGV, first, first + count - 1) } or bounded(body)
  -- Put before remove: a failure in between leaves a second copy, never a loss.
  local put = redis.call('XADD', retry_log, '*', 'attempt', '1', 'origin', origin, 'error', '', 'history', '',
    unpack(body))
  note_redelivery(unique, unique_retry, origin, put, body[1], body[2])
  return redis.call('XDEL', dlq, id)
end

for _ = 1, #ARGV do
  if at > #ARGV or bytes >= MAX_BYTES then
    break
  end
  local id, word, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local first, applied = at + 3, 0
  at, done = first + count, done + 1
  local holds, whose = dead_claim(known and redis.call('HGET', dead_claims, id), now)
  -- A client that shows a claim and finds the letter left has lost it to another client, which decided otherwise.
  if not holds or whose == by or whose == '-' and by == '' then
    if word == 'replay' then
      applied = replay(id, first, count)
    elseif word == 'purge' then
      applied = redis.call('XDEL', dlq, id)
    elseif word == 'leave' then
      applied = whose == by and 1 or 0
    end
    if whose then
      redis.call('HDEL', dead_claims, id)
    end
  end
  if applied == 1 then
    ids[#ids + 1] = id
    local left = word == 'leave' and tonumber(ARGV[first]) or 0
    if left > 0 then
      redis.call('HSET', dead_claims, id, string.format('%.0f %.0f -', now + left, left))
      longest = math.max(longest, left)
    end
  end
end
if longest > 0 and redis.call('PTTL', dead_claims) < longest then
  redis.call('PEXPIRE', dead_claims, string.format('%.0f', longest))
end
return { done, ids }
