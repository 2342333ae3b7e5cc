-- trim: drops entries of the log that every group has settled; none that is unread or pending in any.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- ARGV[1] token of the lease
-- ARGV[2] limit about how many to drop at most
-- returns how many were dropped, or the error FENCED
local fence, log = KEYS[1], KEYS[2]
local token, limit = ARGV[1], ARGV[2]

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
if redis.call('EXISTS', log) == 0 then
  return 0
end

-- Ids are compared as text: Lua's numbers would lose their last digits.
local function below(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end
local function before(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)%-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)%-(%d+)$')
  if a_ms ~= b_ms then
    return below(a_ms, b_ms)
  end
  return below(a_seq, b_seq)
end
-- The id after `id`; for a sequence that Lua cannot count, `id` itself: then one entry more is kept.
local function after(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return #seq < 15 and ms .. '-' .. string.format('%.0f', tonumber(seq) + 1) or id
end

local watermark
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local info = {}
  for i = 1, #flat, 2 do
    info[flat[i]] = flat[i + 1]
  end
  local oldest = info.pending > 0 and redis.call('XPENDING', log, info.name)[2] or after(info['last-delivered-id'])
  watermark = watermark and before(watermark, oldest) and watermark or oldest
end
if not watermark then
  return 0
end
-- Whole nodes first and only so many of them, so that a long log does not block the server; then what is left of
-- the node at the border.
local dropped = redis.call('XTRIM', log, 'MINID', '~', watermark, 'LIMIT', limit)
if dropped < tonumber(limit) then
  dropped = dropped + redis.call('XTRIM', log, 'MINID', '=', watermark)
end
return dropped
