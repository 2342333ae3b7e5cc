-- acquire: grants a lease unless another owner holds it; a request with the same nonce returns the same grant.
-- KEYS[1] lease STRING the token while the lease is valid
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant; ends: epochs of owners that never released it
-- ARGV[1] owner name of the caller, for people to read
-- ARGV[2] nonce unique to this request
-- ARGV[3] ttl_ms validity of the lease
-- ARGV[4] continuity answers to the caller: 'ttl since until server' in milliseconds, or '*'
-- returns {1, epoch, ends} if granted, {0, owner, epoch, pttl} if it is held
local lease, fence = KEYS[1], KEYS[2]
local owner, nonce, ttl_ms, continuity = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MAX_ENDS = 32

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
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

-- Milliseconds until the caller may treat the silence of others as their end: 0 if this server has answered the
-- caller for one ttl without a gap of half a ttl. Only then has every client that survived an outage had time to
-- reconnect. A restarted process, or a replica that became primary, is another server.
local function judges_in()
  local ttl, since, till, server = string.match(continuity, '^(%d+) (%d+) (%d+) (.+)$')
  if not ttl then
    return continuity == '*' and 0 or tonumber(ttl_ms)
  end
  local process, history = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
  local run = type(process) == 'string' and string.match(process, 'run_id:(%x+)')
  local replica = type(history) == 'string' and string.match(history, 'master_replid:(%x+)')
  local gap = now_ms - till
  if server ~= (run and replica and run .. '.' .. replica or '-') or gap < 0 or gap >= ttl / 2 then
    return tonumber(ttl)
  end
  return math.max(since + ttl - now_ms, 0)
end

-- A token that is still stored was never released: its owner has ended, or may reconnect.
if last_token ~= '' and not same then
  local left_ms = judges_in()
  if left_ms > 0 then
    return { 0, last[1] or '', last_epoch, left_ms }
  end
  ends = ends == '' and last_epoch or ends .. ' ' .. last_epoch
  local _, count = string.gsub(ends, '%d+', '')
  if count > MAX_ENDS then
    ends = string.match(ends, ' (.*)$')
  end
end
-- The clock makes the epoch grow even if a fail-over lost the newest grants; the stored epoch, if the clock went back.
local epoch = string.format('%.0f', math.max((tonumber(last_epoch) or 0) + 1, now_ms))
local token = epoch .. ':' .. nonce
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('DEL', lease)
redis.call('HSET', fence, 'owner', owner, 'token', token, 'epoch', epoch, 'ttl', ttl_ms, 'ends', ends)
redis.call('SET', lease, token, 'PX', ttl_ms)
return { 1, epoch, ends }
