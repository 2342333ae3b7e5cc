-- trim_dead: drops the oldest dead letters of a group by age and number, but not those that are claimed.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] dlq STREAM the group's dead letters
-- KEYS[3] dead_claims HASH 'until hold by' by id, in milliseconds; by is '-' if it was left for later
-- ARGV[1] mode 'lease'; 'operator', who needs none; or 'count' for an operator: then nothing is dropped
-- ARGV[2] token of the lease, or ''
-- ARGV[3] age_ms up to which they stay, or ''
-- ARGV[4] length how many stay, or ''
-- ARGV[5] after id of the last letter that an earlier call has examined, or ''
-- ARGV[6] passed number of letters up to that one that stay
-- include clock, dead_claim, fence, size
-- returns {aged, excess, claimed, 1 if there is more or 0, after, passed}, or the error FENCED: numbers of letters
-- that were too old, that had too many newer ones, and that stay since they are claimed; the arguments of the next call
local fence, dlq, dead_claims = KEYS[1], KEYS[2], KEYS[3]
local mode, token, age_ms, length, after, passed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- BUDGET: cost of what a call drops by nodes, and reads for it: 1 per entry and 2 per KiB. STEP: most entries for which
-- one is the estimate. PAGE and MAX_BYTES: most letters that a call examines one by one, and about the most bytes.
local BUDGET, STEP, PAGE, MAX_BYTES = 20000, 100, 200, 1048576
passed = tonumber(passed)

if mode ~= 'operator' and mode ~= 'count' and not is_owner(fence, token) then
  return fenced()
end
-- Both are read before anything is changed: a key of the wrong type is found here.
local len, known = redis.call('XLEN', dlq), redis.call('HLEN', dead_claims) > 0
local _, now = clock()
local oldest = age_ms == '' and 0 or math.max(now - tonumber(age_ms), 0)
local most = length == '' and math.huge or tonumber(length)
local aged, excess, claimed, spent = 0, 0, 0, 0

-- Milliseconds suffice: an age has no more digits.
local function is_old(entry)
  return tonumber(string.match(entry[1], '^%d+')) < oldest
end

-- Without claims whole nodes of the stream go at once, unread but for the first entry.
local whole = not known and mode ~= 'count' and after == ''
for _ = 1, whole and BUDGET or 0 do
  local first = redis.call('XRANGE', dlq, '-', '+', 'COUNT', 1)[1]
  if not first or not is_old(first) and len <= most or spent >= BUDGET then
    break
  end
  local cost, gone = 1 + size(first) / 512, 0
  local step = math.max(math.min(math.floor(BUDGET / cost), STEP), 1)
  if is_old(first) then
    local stays = string.format('%.0f-0', oldest)
    gone = redis.call('XTRIM', dlq, 'MINID', '~', stays, 'LIMIT', step)
    aged = aged + gone
  else
    local stay = string.format('%.0f', math.max(most, len - step))
    gone = redis.call('XTRIM', dlq, 'MAXLEN', '=', stay)
    excess = excess + gone
  end
  if gone == 0 then
    break
  end
  len, spent = len - gone, spent + (gone + 1) * cost
end
if spent >= BUDGET then
  return { aged, excess, claimed, 1, '', 0 }
end

-- The rest one by one, in the order of age: after the first that stays unclaimed all others stay.
local looked, bytes, largest = 0, 0, 0
for _ = 1, PAGE do
  if looked >= PAGE or bytes >= MAX_BYTES then
    break
  end
  local count = looked == 0 and 1 or math.max(math.floor((MAX_BYTES - bytes) / (largest + 1)), 1)
  count = math.min(count, PAGE - looked, 4 * looked + 1)
  local from = after == '' and '-' or '(' .. after
  local page = redis.call('XRANGE', dlq, from, '+', 'COUNT', count)
  for _, entry in ipairs(page) do
    local id, old = entry[1], is_old(entry)
    if not old and len - passed <= most then
      return { aged, excess, claimed, 0, '', 0 }
    end
    local claim = known and redis.call('HGET', dead_claims, id) or false
    local holds, whose = dead_claim(claim, now)
    looked, bytes, largest, after = looked + 1, bytes + size(entry), math.max(largest, size(entry)), id
    if holds and whose ~= '-' then
      claimed, passed = claimed + 1, passed + 1
    else
      aged, excess = aged + (old and 1 or 0), excess + (old and 0 or 1)
      if mode == 'count' then
        passed = passed + 1
      else
        redis.call('XDEL', dlq, id)
        len = len - 1
        if claim then
          redis.call('HDEL', dead_claims, id)
        end
      end
    end
  end
  if #page < count then
    return { aged, excess, claimed, 0, '', 0 }
  end
end
-- Where none stays, the next call begins with whole nodes again.
return { aged, excess, claimed, 1, passed > 0 and after or '', passed }
