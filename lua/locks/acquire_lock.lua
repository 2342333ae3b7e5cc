-- acquire_lock: grants a lock to the first client in its queue once it is free, and gives the others a place there.
-- KEYS[1] lock HASH owner, token, epoch, ttl and expiry ('till') of the grant; with a ttl
-- KEYS[2] queue ZSET nonces of waiting clients by arrival in microseconds; with a ttl
-- KEYS[3] places ZSET the same nonces by the time in milliseconds at which their place ends; with a ttl
-- KEYS[4] changes STREAM of one entry: the newest change, with the nonce that is called; with a ttl
-- KEYS[5] epoch STRING the highest epoch of all locks of the shard
-- KEYS[6] index ZSET names of the locks of the shard by the time in milliseconds at which their record ends
-- ARGV[1] owner name of the caller, for people to read
-- ARGV[2] nonce unique to this attempt
-- ARGV[3] ttl_ms validity of the grant
-- ARGV[4] continuity answers to the caller: 'ttl since until server' in milliseconds, or '*'
-- ARGV[5] above the epoch is higher than this: what the guarded store has seen, or 0
-- ARGV[6] mode letters: 'q' to wait in the queue, 'a' to announce the grant; or ''
-- ARGV[7] arrived arrival in microseconds as an earlier reply returned it, or ''
-- ARGV[8] min_up_s least time since the start of the server, or ''
-- ARGV[9] name of the lock, for the index
-- include clock, identity, continuity
-- returns {1, epoch} if granted; {2, uptime_s} if the server is too young; else
-- {0, owner or '', epoch, left_ms, retry_ms, ahead, arrived, revision, server or '', now_ms}
local lock, queue, places, changes, epoch, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, nonce, ttl_ms, continuity, above, mode, arrived, min_up_s, name = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local PLACE_MS, CALL_MS, RECORD_MS, KEPT_MS, MAX_WHOLE = 3000, 500, 600000, 86400000, 2 ^ 53

local now_us, now, now_ms = clock()
ttl_ms = tonumber(ttl_ms)
if min_up_s ~= '' then
  local up_s = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  if not up_s or tonumber(up_s) < tonumber(min_up_s) then
    return { 2, tonumber(up_s or '0') }
  end
end
-- Text that is no number was written by another program, as was a number from which Lua counts no more one by one: a
-- lock must not wait for it, nor epochs stand still.
local function whole(text)
  local number = tonumber(text or '') or 0
  return number >= 0 and number < MAX_WHOLE and number or 0
end
-- Every key is read before the first is written: one of the wrong type is detected before anything is changed.
local last = redis.call('HMGET', lock, 'owner', 'token', 'epoch', 'ttl', 'till')
local last_token, last_ttl, till = last[2] or '', whole(last[4]), whole(last[5])
local last_epoch = string.format('%.0f', whole(last[3]))
local highest = whole(redis.call('GET', epoch))
local gone = redis.call('ZRANGEBYSCORE', places, '-inf', now_ms, 'LIMIT', 0, 100)
local place = redis.call('ZSCORE', queue, nonce)
local newest = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
-- Names of locks that ended by themselves.
local ended = redis.call('ZRANGEBYSCORE', index, '-inf', now_ms, 'LIMIT', 0, 10)
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('ZREM', places, '', unpack(gone))
redis.call('ZREM', queue, '', unpack(gone))
redis.call('ZREM', index, '', unpack(ended))

local function grant(number)
  local token = number .. ':' .. nonce
  redis.call('HSET', lock, 'owner', owner, 'token', token, 'epoch', number, 'ttl', ttl_ms,
    'till', string.format('%.0f', now + ttl_ms))
  -- It is kept beyond the ttl: a holder that lives through an outage, or a clock that jumps, is still known then.
  redis.call('PEXPIRE', lock, ttl_ms + KEPT_MS)
  redis.call('ZADD', index, string.format('%.0f', now + ttl_ms + KEPT_MS), name)
  redis.call('ZREM', queue, nonce)
  redis.call('ZREM', places, nonce)
  return { 1, number }
end
if string.match(last_token, '^%d+:(.*)$') == nonce then
  return grant(last_epoch)
end

-- Only a caller that may judge takes silence for an end, and only after the longer one of both ttls. Its server is read
-- only if that decides something, and six times per ttl.
local answered, server = continuity_of(continuity, ttl_ms, now), ''
-- Milliseconds until the lock is free for this caller. A remaining time above every granted ttl means the clock went
-- back: it must not block the lock for ever, so the time of the expiry does not count.
local left_ms = 0
if last_token ~= '' then
  local far = till - now > 2 * last_ttl
  left_ms = far and 0 or math.max(till - now, 0)
  -- A client that comes anew does not wait for a holder that ended long ago. One that waits already does: for it, a
  -- clock that jumped ahead is a gap.
  if left_ms == 0 and not answered.assured and not (answered.is_anew and till + RECORD_MS <= now) then
    server = identify(answered)
    local longest = math.max(answered.ttl_ms, last_ttl)
    left_ms = (answered.unbroken and answered.since_ms or now) + longest - now
    left_ms = math.max(left_ms, far and 0 or till - last_ttl + longest - now, 0)
  end
end
local retry_ms = left_ms

-- The first in the queue comes first. It was called when the lock was released; if it has ended, its place does soon.
local first = redis.call('ZRANGE', queue, 0, 0)[1]
local mine = place and tonumber(place) or math.min(tonumber(arrived) or now_us, now_us)
local before_me = first and first ~= nonce
  and (string.find(mode, 'q') == nil or tonumber(redis.call('ZSCORE', queue, first)) <= mine)
if retry_ms == 0 and not before_me then
  local number = string.format('%.0f', math.max(highest + 1, now, tonumber(above) + 1))
  redis.call('SET', epoch, number)
  local granted = grant(number)
  if string.find(mode, 'a') then
    redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'epoch', number)
    redis.call('PEXPIRE', changes, ttl_ms + RECORD_MS)
  end
  return granted
end
if retry_ms == 0 then
  -- A first one whose place was lost, or never ends, gets one that ends: else it would stay the first for ever.
  local ends = tonumber(redis.call('ZSCORE', places, first) or 'inf')
  if ends > now + CALL_MS then
    ends = now + CALL_MS
    redis.call('ZADD', places, string.format('%.0f', ends), first)
    redis.call('PEXPIRE', places, 2 * PLACE_MS)
    redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'next', first)
    redis.call('PEXPIRE', changes, PLACE_MS)
    newest = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
  end
  retry_ms = math.max(ends - now, 0) + 1
end
local ahead = 0
if string.find(mode, 'q') then
  redis.call('ZADD', queue, 'NX', string.format('%.0f', mine), nonce)
  redis.call('ZADD', places, string.format('%.0f', now + PLACE_MS), nonce)
  redis.call('PEXPIRE', queue, 2 * PLACE_MS)
  redis.call('PEXPIRE', places, 2 * PLACE_MS)
  if last_token == '' then
    redis.call('ZADD', index, 'GT', string.format('%.0f', now + 2 * PLACE_MS), name)
  end
  ahead = redis.call('ZRANK', queue, nonce)
  if server == '' and not answered.assured and (not answered.unbroken or answered.gap_ms >= answered.ttl_ms / 6) then
    server = identify(answered)
  end
end
return { 0, last[1] or '', last_epoch, left_ms, retry_ms, ahead, string.format('%.0f', mine),
  newest and newest[1] or '0-0', server, now_ms }
