-- hold: notes something of pending entries, for whoever reads them next; they stay pending.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] held HASH notes of pending entries by source and id
-- ARGV[1] mode 'lease', or 'consumer': then only what stands under its name is touched
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log' or 'retry'
-- ARGV[5] notes... id, after_ms and 'attempt suspicions by error' of each, at most 100
-- returns {applied, stale}, or the error FENCED, or NOGROUP of the owner's log
local fence, stream, held = KEYS[1], KEYS[2], KEYS[3]
local mode, who, group, source = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- Whatever is not the one word is judged by the fence, which no empty token passes.
if mode ~= 'consumer' and (who == '' or redis.call('HGET', fence, 'token') ~= who) then
  return redis.error_reply('FENCED lease is lost')
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.ceil(tonumber(time[2]) / 1000)
-- A write that is never refused comes first: then the others pass too when the server is out of memory.
-- It also finds a key of a foreign type before anything was changed.
redis.call('HDEL', held, '')

local applied, stale, whose = 0, 0, { mode == 'consumer' and who or nil }
for at = 5, #ARGV, 3 do
  local id, after_ms, words = unpack(ARGV, at, at + 2)
  local note = source .. ':' .. id
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, unpack(whose))
  if pending.err and (source == 'log' and mode ~= 'consumer' or not string.find(pending.err, 'NOGROUP', 1, true)) then
    return pending
  end
  if #pending > 0 then
    local due_ms = after_ms == '0' and '0' or string.format('%.0f', now_ms + tonumber(after_ms))
    local text = due_ms .. ' ' .. words
    redis.call('HSET', held, note, text)
    applied = applied + 1
  else
    if #whose == 0 then
      redis.call('HDEL', held, note)
    end
    stale = stale + 1
  end
end
return { applied, stale }
