-- renew_permits: extends the right of a holder of permits, or lets it join, and ends holders that were not renewed.
-- KEYS[1] holders HASH 'till ttl number' by holder: expiry and ttl in milliseconds, number of its last exchange
-- KEYS[2] ended SET holders that were ended and still have something
-- KEYS[3] calls STREAM what holders have to know
-- ARGV[1] holder who asks
-- ARGV[2] ttl_ms validity from now on
-- ARGV[3] continuity answers to the caller: 'ttl since until server' in milliseconds, or '*'
-- ARGV[4] joining '1' to join
-- include clock, identity, continuity
-- returns {now_ms, server, next_ms or -1, 1 if calls may be lost or 0, where the calls of who joins begin, {ended...}},
--   or the error FENCED if it was ended and does not join
local holders, ended, calls = KEYS[1], KEYS[2], KEYS[3]
local holder, ttl_ms, continuity, joining = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MAX_ENDED = 100

local _, now_ms, now = clock()
-- Every key is read before the first is written: one of the wrong type is detected before anything is changed.
local all = redis.call('HGETALL', holders)
local is_new = redis.call('XLEN', calls) == 0
redis.call('SCARD', ended)
local answered = continuity_of(continuity, ttl_ms, now_ms)
local server = identify(answered)
local judges_ms, mine, dead, next_ms = judges_in(answered, now_ms), nil, {}, -1
for n = 1, #all, 2 do
  local id, till, its_ttl, number = all[n], string.match(all[n + 1], '^(%d+) (%d+) (%d+)$')
  if id == holder then
    mine = number
  else
    -- What is no record was written by another program. An expiry later than any ttl: the clock went back.
    till, its_ttl = tonumber(till or 0), tonumber(its_ttl or 0)
    local over_ms = math.min(till - now_ms, its_ttl)
    -- The longer one of both ttls: one that is renewed more rarely takes longer to come back.
    local wait_ms = math.max(over_ms, judges_ms > 0 and judges_ms + math.max(its_ttl - tonumber(ttl_ms), 0) or 0, 0)
    if wait_ms == 0 and #dead < MAX_ENDED then
      dead[#dead + 1] = id
    else
      next_ms = next_ms < 0 and wait_ms or math.min(next_ms, wait_ms)
    end
  end
end
if not mine and joining ~= '1' then
  return redis.error_reply('FENCED the holder was ended')
end
-- What frees memory comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', holders, '', unpack(dead))
local record = string.format('%.0f %s %s', now_ms + ttl_ms, ttl_ms, mine or '0')
redis.call('HSET', holders, holder, record)
if #dead > 0 then
  redis.call('SADD', ended, unpack(dead))
end
local seen = '0-0'
if is_new or joining == '1' then
  seen = redis.call('XADD', calls, 'MAXLEN', '~', 10000, '*', 'joined', holder)
end
local look_again = is_new and joining ~= '1' and 1 or 0
local first = redis.call('SRANDMEMBER', ended, MAX_ENDED)
return { now, server, string.format('%.0f', next_ms), look_again, seen, first }
