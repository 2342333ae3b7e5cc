-- acquire: grants a lease unless somebody else holds it; asked again with the same nonce it gives the same grant.
-- KEYS[1] lease STRING the token while the lease lives
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant; abandoned: '1' if the one before was not released
-- ARGV[1] owner who asks, for people to read
-- ARGV[2] nonce unique to this request
-- ARGV[3] ttl_ms how long the lease lives
-- returns {1, epoch, abandoned} if granted, {0, owner, epoch, pttl} if somebody holds it
local lease, fence = KEYS[1], KEYS[2]
local owner, nonce, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local last = redis.call('HMGET', fence, 'owner', 'token', 'epoch', 'ttl', 'abandoned')
local last_token, last_epoch, last_ttl = last[2] or '', last[3] or '0', tonumber(last[4] or '0') or 0
local same = string.match(last_token, '^%d+:(.*)$') == nonce
local held = redis.call('GET', lease)
local pttl = redis.call('PTTL', lease)

-- A lease that lives longer than it was ever given comes from a clock that went back, one without an end from
-- somebody else's hand. Neither may lock everybody out, so both count as free.
local lives = held and pttl > 0 and pttl <= 2 * last_ttl
if lives then
  if held == last_token and same then
    redis.call('PEXPIRE', lease, ttl_ms)
    return { 1, last_epoch, last[5] or '0' }
  end
  return { 0, last[1] or '', last_epoch, pttl }
end

-- A token that is still there was never released; one that was released says itself what is to be told. What the same
-- request was told before it is told again.
local abandoned = (same or last_token == '') and (last[5] or '0') or '1'
-- The clock makes the epoch grow even if a fail-over lost the newest grants; the stored one if the clock went back.
local epoch = string.format('%.0f', math.max((tonumber(last_epoch) or 0) + 1, now_ms))
local token = epoch .. ':' .. nonce
-- A write that is never refused comes first: then the others pass too when the server is out of memory.
redis.call('DEL', lease)
redis.call('HSET', fence, 'owner', owner, 'token', token, 'epoch', epoch, 'ttl', ttl_ms, 'abandoned', abandoned)
redis.call('SET', lease, token, 'PX', ttl_ms)
return { 1, epoch, abandoned }
