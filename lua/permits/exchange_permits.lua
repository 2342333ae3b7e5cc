-- exchange_permits: gives back and takes units of limits for one holder, each take all or nothing, and calls who waits.
-- KEYS[1] holders HASH 'till ttl number' by holder: expiry and ttl in milliseconds, number of its last exchange
-- KEYS[2] units HASH records by limit and key, as the part `permits` has them
-- KEYS[3] rules HASH what operators allow by pattern, and ':version'
-- KEYS[4] of SET limits and keys of which the holder has units, or for which it waits
-- KEYS[5] calls STREAM what holders have to know
-- ARGV[1] holder who asks
-- ARGV[2] number of the exchange
-- ARGV[3] version of the rules that the takes follow
-- ARGV[4] steps... 'has', key, units; 'leaves', key; or 'takes', 'w' to wait or 'n', n, and n times key, units, at_most
-- include clock, permits
-- returns {version, {code...}} with a code for each take: 0 granted, -1 granted and others wait, n the n-th key is
--   short; {version, {field, value, ...} of the rules} without a take if the version is another one; or the error
--   FENCED
--   if the holder was ended, STALE if a later exchange came first
local holders, units, rules, of, calls = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, number, version = ARGV[1], ARGV[2], ARGV[3]

local till, ttl, last = string.match(redis.call('HGET', holders, holder) or '', '^(%d+) (%d+) (%d+)$')
if not till then
  return redis.error_reply('FENCED the holder was ended')
elseif tonumber(number) <= tonumber(last) then
  return redis.error_reply('STALE a later exchange came first')
end
-- What is no number was written by another program.
local current = string.match(redis.call('HGET', rules, ':version') or '', '^[1-9]%d*$') or '0'
-- A key of the wrong type is detected before anything is changed.
redis.call('SISMEMBER', of, '')
redis.call('XLEN', calls)
-- Where each step begins, and the keys of all.
local steps, keys, after = {}, {}, 4
for at = 4, #ARGV do
  if at == after then
    local what, count = ARGV[at], tonumber(ARGV[at + 2])
    steps[#steps + 1] = at
    if what == 'takes' then
      for n = 1, count do
        keys[#keys + 1] = ARGV[at + 3 * n]
      end
      after = at + 3 + 3 * count
    else
      keys[#keys + 1] = ARGV[at + 1]
      after = at + (what == 'has' and 3 or 2)
    end
  end
end
local it = book(units, holders, calls, holder)
it.read(keys)
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', holders, '')
local noted = string.format('%s %s %s', till, ttl, number)
redis.call('HSET', holders, holder, noted)

local now_us = clock()
local function take(waits, first, count)
  if count == 1 then
    -- The usual case.
    local record, cost = it.records[ARGV[first]], tonumber(ARGV[first + 1])
    record.at_most = tonumber(ARGV[first + 2])
    if #record.queue == 0 and it.fits(record, cost) then
      it.set(record, holder, (record.has[holder] or 0) + cost)
      return 0
    end
  end
  local wants, since = {}, now_us
  for n = 1, count do
    local at = first + 3 * (n - 1)
    local record = it.records[ARGV[at]]
    record.at_most = tonumber(ARGV[at + 2])
    local place = it.place(record, holder)
    since = math.min(since, place and record.queue[place].since or since)
    wants[n] = { record = record, cost = tonumber(ARGV[at + 1]) }
  end
  for n, want in ipairs(wants) do
    local front = want.record.queue[1]
    -- The oldest comes first, wherever it waits: two that are first for a key each, and need both, would turn in
    -- circles.
    local others_first = front and front.id ~= holder and front.since <= since
    if others_first or not it.fits(want.record, want.cost) then
      for _, other in ipairs(waits and wants or {}) do
        it.leaves(other.record, holder)
      end
      if waits then
        it.waits(want.record, holder, want.cost, since)
      end
      return n
    end
  end
  local contended = false
  for _, want in ipairs(wants) do
    local record = want.record
    it.leaves(record, holder)
    it.set(record, holder, (record.has[holder] or 0) + want.cost)
    contended = contended or #record.queue > 0
  end
  return contended and -1 or 0
end

local codes = {}
for _, at in ipairs(steps) do
  local what, record = ARGV[at], it.records[ARGV[at + 1]]
  if what == 'has' then
    it.set(record, holder, math.min(tonumber(ARGV[at + 2]), record.has[holder] or 0))
  elseif what == 'leaves' then
    it.leaves(record, holder)
  elseif current == version then
    codes[#codes + 1] = take(ARGV[at + 1] == 'w', at + 3, tonumber(ARGV[at + 2]))
  end
end
it.write()
local has, has_not = {}, {}
for _, record in ipairs(it.order) do
  local list = (record.has[holder] or it.place(record, holder)) and has or has_not
  list[#list + 1] = record.key
end
if #has_not > 0 then
  redis.call('SREM', of, unpack(has_not))
end
if #has > 0 then
  redis.call('SADD', of, unpack(has))
end
if current == version then
  return { current, codes }
end
return { current, redis.call('HGETALL', rules) }
