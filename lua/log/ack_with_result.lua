-- ack_with_result: stores the results of handled entries, and removes these from the pending list.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] held HASH notes of pending entries by source and id
-- KEYS[4] result... STRING what became of the first entry; then that of each further one
-- ARGV[1] mode 'lease', or 'consumer': then only entries pending under its name are changed
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log', or 'retry': then they are deleted too, since only this group reads them
-- ARGV[5] entries... id, keep_ms and result of each, at most 100
-- include fence, result
-- returns how many were pending, or the error FENCED
local fence, stream, held = KEYS[1], KEYS[2], KEYS[3]
local mode, who, group, source = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not may_change(fence, mode, who) then
  return fenced()
end
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
-- It also detects a key of the wrong type before anything is changed.
redis.call('HDEL', held, '')

local keys, acked, whose = KEYS, 0, { mode == 'consumer' and who or nil }
for at = 5, #ARGV, 3 do
  local id, keep_ms, result = unpack(ARGV, at, at + 2)
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, unpack(whose))
  if pending.err and not string.find(pending.err, 'NOGROUP', 1, true) then
    return pending
  end
  -- Put before remove: a failure in between leaves a message that is handled again, never one without its result.
  if #pending > 0 then
    local key = keys[4 + (at - 5) / 3]
    store_result(key, keep_ms, result)
    acked = acked + redis.call('XACK', stream, group, id)
    if source == 'retry' then
      redis.call('XDEL', stream, id)
    end
    local note = source .. ':' .. id
    redis.call('HDEL', held, note)
  end
end
return acked
