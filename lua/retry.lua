-- retry: parks pending entries until they are due again, and takes them off the pending list.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] retry_due ZSET origins by due time in milliseconds
-- KEYS[4] retry_items HASH bodies by origin
-- KEYS[5] held HASH notes of pending entries by source and id
-- ARGV[1] mode 'lease', or 'consumer': then only what stands under its name is touched
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log', or 'retry': then they are deleted there too
-- ARGV[5] messages... id, after_ms, attempt, origin, error of each, at most 100
-- returns {applied, stale}, or the error FENCED, or NOGROUP of the owner's log
local fence, stream, retry_due, retry_items, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local mode, who, group, source = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MAX_BODY_VALUES = 6000

-- Whatever is not the one word is judged by the fence, which no empty token passes.
if mode ~= 'consumer' and (who == '' or redis.call('HGET', fence, 'token') ~= who) then
  return redis.error_reply('FENCED lease is lost')
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.ceil(tonumber(time[2]) / 1000)
-- Writes that are never refused come first: then the others pass too when the server is out of memory.
-- They also find a key of a foreign type before anything was changed.
redis.call('ZREM', retry_due, '')
redis.call('HDEL', retry_items, '')
local noted = redis.call('HLEN', held) > 0

local applied, stale, whose = 0, 0, { mode == 'consumer' and who or nil }
for at = 5, #ARGV, 5 do
  local id, after_ms, attempt, origin, error_text = unpack(ARGV, at, at + 4)
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, unpack(whose))
  if pending.err and (source == 'log' and mode ~= 'consumer' or not string.find(pending.err, 'NOGROUP', 1, true)) then
    return pending
  end
  local entry = #pending > 0 and redis.call('XRANGE', stream, id, id)[1]
  if entry then
    local fields, body = entry[2], {}
    local ours = source == 'retry' and fields[1] == 'attempt' and fields[3] == 'origin' and fields[5] == 'error'
    for i = ours and 7 or 1, #fields do
      body[#body + 1] = fields[i]
    end
    if #body > MAX_BODY_VALUES then
      body = { 'packed', cmsgpack.pack(body) }
    end
    local item = { 'attempt', attempt, 'origin', origin, 'error', error_text, unpack(body) }
    redis.call('HSET', retry_items, origin, cmsgpack.pack(item))
    redis.call('ZADD', retry_due, string.format('%.0f', now_ms + tonumber(after_ms)), origin)
    applied = applied + 1
  else
    stale = stale + 1
  end
  -- Put before remove: a failure in between leaves the same message under the same key, never a hole.
  if #pending > 0 or #whose == 0 then
    redis.call('XACK', stream, group, id)
    if entry and source == 'retry' then
      redis.call('XDEL', stream, id)
    end
    if noted then
      local note = source .. ':' .. id
      redis.call('HDEL', held, note)
    end
  end
end
return { applied, stale }
