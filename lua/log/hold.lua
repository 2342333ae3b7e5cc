-- hold: writes notes of pending entries for their next reader; the entries stay pending.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] held HASH notes of pending entries by source and id
-- ARGV[1] mode 'lease', or 'consumer': then only entries pending under its name are changed
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log' or 'retry'
-- ARGV[5] notes... id, due, words and line of each, at most 100: due is '+' and microseconds from now, or a time in
-- milliseconds; words are 'attempt suspicions by bytes error', then the history; line is the last line of the
-- history, without the time, or empty
-- include clock, fence, due
-- returns {applied, stale, done}, or the error FENCED, or NOGROUP of the owner's log
local fence, stream, held = KEYS[1], KEYS[2], KEYS[3]
local mode, who, group, source = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not may_change(fence, mode, who) then
  return fenced()
end
local now_us, _, now_text = clock()
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
-- It also detects a key of the wrong type before anything is changed.
redis.call('HDEL', held, '')

local applied, stale, whose = 0, 0, { mode == 'consumer' and who or nil }
for at = 5, #ARGV, 4 do
  local id, due, words, line = unpack(ARGV, at, at + 3)
  local note = source .. ':' .. id
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, unpack(whose))
  if pending.err and (source == 'log' and mode ~= 'consumer' or not string.find(pending.err, 'NOGROUP', 1, true)) then
    return pending
  end
  if #pending > 0 then
    local text = (due == '+0' and '0' or string.format('%.0f', due_at(due, now_us))) .. ' ' .. words
    if line ~= '' then
      text = text .. now_text .. ' ' .. line
    end
    redis.call('HSET', held, note, text)
    applied = applied + 1
  else
    if #whose == 0 then
      redis.call('HDEL', held, note)
    end
    stale = stale + 1
  end
end
-- Notes are small, so the call always completes all of them.
return { applied, stale, applied + stale }
