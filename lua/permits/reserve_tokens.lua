-- reserve_tokens: reserves, charges and gives back tokens of rates, closes keys, and drops records that say nothing
--   any more.
-- KEYS[1] rates HASH 'at ahead interval closed' by limit and key: the time in milliseconds at which it was written;
--   and the microseconds from then on until all reserved tokens are free, between two of them, and for which the key
--   is closed
-- KEYS[2] rules HASH what operators allow by pattern, and ':version'
-- KEYS[3] calls STREAM what holders have to know
-- KEYS[4] breakers HASH 'since until reason' by limit and key, in milliseconds: those that are not closed
-- ARGV[1] version of the rules that the rates follow
-- ARGV[2] horizon_us how far ahead of now tokens are reserved
-- ARGV[3] steps... of six each: what, key, amount, and of the rate: tokens, milliseconds and burst. 'w' or 'n'
--   reserves the amount of tokens, and waits for them or not; 'c' charges it; 'x' closes the key for so many
--   microseconds, or opens it; 'b' and a reason does so for a breaker
-- include clock
-- returns {version, {lead...}}: the microseconds until the first token of each reservation may be spent, or with '~'
--   before them until it is free, if it is not reserved since that is too late, or '' if the rate has none;
--   {version, {field, value, ...} of the rules} without a reservation if the version is another one; without steps
--   {version, {number of records, number dropped of 200}}
local rates, rules, calls, breakers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local version, horizon_us = ARGV[1], ARGV[2]
-- Longest time of a record, in microseconds: what somebody else wrote must not make numbers that others cannot read.
local MOST_US = 9e15
local DAY_MS = 86400000

local now_us, now_ms = clock()
-- What is no number was written by another program.
local current = string.match(redis.call('HGET', rules, ':version') or '', '^[1-9]%d*$') or '0'
-- A key of the wrong type is detected before anything is changed.
redis.call('XLEN', calls)
redis.call('HLEN', breakers)
local base_us, records = now_us - now_ms * 1000, {}
local function read(text)
  local at, ahead, interval, closed = string.match(text or '', '^(%d+) (%d+) ([%d.e+-]+) ?(%d*)$')
  return {
    at = tonumber(at or 0), ahead = tonumber(ahead or 0), interval = tonumber(interval or 0) or 0,
    closed = tonumber(closed or 0) or 0,
  }
end
-- Counts from now on, at this distance of tokens. A clock that goes back makes nobody wait for the difference.
local function count_from(it, interval)
  local passed = math.max(now_ms - it.at, 0) * 1000
  -- Of a rate that has become faster the same tokens are free sooner. One that has become slower begins anew.
  if interval < it.interval then
    it.ahead = (it.ahead - passed - base_us) * interval / it.interval + passed + base_us
  end
  it.at = now_ms
  it.ahead = math.min(math.max(it.ahead - passed, base_us), MOST_US)
  it.closed = math.min(math.max(it.closed - passed, 0), MOST_US)
  -- While tokens are out at two distances, the shorter one: or each change to and fro would shorten them again.
  local idle = it.ahead <= base_us or it.interval <= 0
  it.interval = idle and interval or math.min(it.interval, interval)
end
local function is_idle(it)
  return it.at * 1000 + math.max(it.ahead, it.closed) <= now_us
end

local keys, seen = {}, {}
for at = 3, #ARGV, 6 do
  local key = ARGV[at + 1]
  if not seen[key] then
    seen[key], keys[#keys + 1] = true, key
  end
end
if #keys > 0 then
  for n, text in ipairs(redis.call('HMGET', rates, unpack(keys))) do
    records[keys[n]] = read(text)
  end
end
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', rates, '')
local leads = {}
for at = 3, #ARGV, 6 do
  local what, it, amount = ARGV[at], records[ARGV[at + 1]], tonumber(ARGV[at + 2])
  local tokens, per_ms, burst = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  -- As records have it.
  local interval = tokens > 0 and tonumber(string.format('%.6g', per_ms * 1000 / tokens)) or it.interval
  local saved = (burst - 1) * interval
  local breaks = string.sub(what, 1, 1) == 'b'
  if what == 'x' or breaks then
    count_from(it, interval)
    local till, changes = amount > 0 and base_us + amount or 0, false
    if breaks and amount > 0 then
      local since = string.match(redis.call('HGET', breakers, ARGV[at + 1]) or '', '^(%d+) %d+ ')
      since = since or string.format('%.0f', now_ms)
      local record = string.format('%s %.0f %s', since, now_ms + math.ceil(amount / 1000), string.sub(what, 2))
      changes = redis.call('HSET', breakers, ARGV[at + 1], record) == 1
    elseif breaks then
      changes = redis.call('HDEL', breakers, ARGV[at + 1]) == 1
    end
    if amount > 0 and till > it.closed or amount == 0 and it.closed > 0 then
      it.closed, it.ahead, changes = till, math.min(it.ahead, base_us + saved), true
    end
    if changes then
      local call = string.format('%.0f %s', amount, ARGV[at + 1])
      redis.call('XADD', calls, 'MAXLEN', '~', 10000, '*', 'closed', call)
    end
  elseif what == 'c' then
    if tokens > 0 then
      count_from(it, interval)
      it.ahead = math.min(math.max(it.ahead + amount * interval, base_us), MOST_US)
    end
  elseif current == version then
    if tokens > 0 then
      count_from(it, interval)
      -- Tokens behind the time for which the key is closed come one after the other too.
      local ahead = math.max(it.ahead, it.closed > base_us and it.closed + saved or 0)
      local lead = ahead - saved - base_us
      -- Who does not wait needs all of them now, or as many as can be saved up.
      local needed = (math.max(math.min(amount, burst), 1) - 1) * interval
      if what == 'w' and lead > tonumber(horizon_us) or what == 'n' and math.floor(lead + needed) > 0 then
        -- Added to 0, since the text of -0.4, rounded up, is '-0'.
        leads[#leads + 1] = string.format('~%.0f', math.max(math.ceil(lead), 0) + 0)
      else
        it.ahead = math.min(ahead + amount * interval, MOST_US)
        leads[#leads + 1] = string.format('%.0f', math.ceil(lead))
      end
    else
      leads[#leads + 1] = ''
    end
  end
end
local kept, gone = {}, {}
for _, key in ipairs(keys) do
  local it = records[key]
  if is_idle(it) then
    gone[#gone + 1] = key
  else
    local closed = it.closed > 0 and string.format(' %.0f', it.closed) or ''
    kept[#kept + 1] = key
    kept[#kept + 1] = string.format('%.0f %.0f %.6g%s', it.at, it.ahead, it.interval, closed)
  end
end
if #gone > 0 then
  redis.call('HDEL', rates, unpack(gone))
end
if #kept > 0 then
  redis.call('HSET', rates, unpack(kept))
end
-- Any records, so that nobody has to remember where a walk is.
local looks = #ARGV == 2 and 200 or 4
local some, idle = redis.call('HRANDFIELD', rates, looks, 'WITHVALUES'), {}
for n = 1, #some, 2 do
  if is_idle(read(some[n + 1])) then
    idle[#idle + 1] = some[n]
  end
end
if #idle > 0 then
  redis.call('HDEL', rates, unpack(idle))
end
if #ARGV == 2 then
  -- Breakers that nobody has tried for a day.
  local open, old = redis.call('HRANDFIELD', breakers, 20, 'WITHVALUES'), { '' }
  for n = 1, #open, 2 do
    if tonumber(string.match(open[n + 1], '^%d+ (%d+) ') or 0) + DAY_MS <= now_ms then
      old[#old + 1] = open[n]
    end
  end
  redis.call('HDEL', breakers, unpack(old))
  return { current, { redis.call('HLEN', rates), #idle } }
elseif current == version then
  return { current, leads }
end
return { current, redis.call('HGETALL', rules) }
