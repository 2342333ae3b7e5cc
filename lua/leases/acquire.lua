-- acquire: grants a lease unless another owner holds it; a request with the same nonce returns the same grant.
-- KEYS[1] lease STRING the token while the lease is valid
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant; ends: epochs of owners that never released it
-- KEYS[3] gate STREAM of the last reader
-- ARGV[1] owner name of the caller, for people to read
-- ARGV[2] nonce unique to this request
-- ARGV[3] ttl_ms validity of the lease
-- ARGV[4] continuity answers to the caller: 'ttl since until server' in milliseconds, or '*'
-- ARGV[5] reader the word of the last reader, or ''
-- include clock, identity, continuity, fence
-- returns {1, epoch, ends} if granted, {0, owner, epoch, pttl} if it is held, {'READER', word of the last reader} if it
--   is another one
local lease, fence, gate = KEYS[1], KEYS[2], KEYS[3]
local owner, nonce, ttl_ms, continuity, reader = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MAX_ENDS = 32

local _, now_ms = clock()
local last = redis.call('HMGET', fence, 'owner', 'token', 'epoch', 'ttl', 'ends')
local last_token, last_epoch, ends = last[2] or '', last[3] or '0', last[5] or ''
local last_ttl = tonumber(last[4] or '0') or 0
local same = string.match(last_token, '^%d+:(.*)$') == nonce
local held = redis.call('GET', lease)
local pttl = redis.call('PTTL', lease)

-- A remaining time above every granted ttl means that the clock went back; a lease without expiry was written by
-- another program. Neither may block the resource for ever, so both count as free.
local lives = held and pttl > 0 and pttl <= 2 * last_ttl
if lives then
  if held == last_token and same then
    redis.call('PEXPIRE', lease, ttl_ms)
    return { 1, last_epoch, ends }
  end
  return { 0, last[1] or '', last_epoch, pttl }
end

-- A token that is still stored was never released: its owner has ended, or may reconnect.
if last_token ~= '' and not same then
  local answered = continuity_of(continuity, ttl_ms, now_ms)
  if answered.unbroken then
    identify(answered)
  end
  local left_ms = judges_in(answered, now_ms)
  if left_ms > 0 then
    return { 0, last[1] or '', last_epoch, left_ms }
  end
  ends = ends == '' and last_epoch or ends .. ' ' .. last_epoch
  local _, count = string.gsub(ends, '%d+', '')
  if count > MAX_ENDS then
    ends = string.match(ends, ' (.*)$')
  end
end
local other = other_reader(fence, reader)
if other then
  return other
end
-- The clock makes the epoch grow even if a fail-over lost the newest grants; the stored epoch, if the clock went back.
local epoch = string.format('%.0f', math.max((tonumber(last_epoch) or 0) + 1, now_ms))
local token = epoch .. ':' .. nonce
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('DEL', lease, gate)
redis.call('HSET', fence, 'owner', owner, 'token', token, 'epoch', epoch, 'ttl', ttl_ms, 'ends', ends, 'reader', '')
redis.call('SET', lease, token, 'PX', ttl_ms)
return { 1, epoch, ends }
