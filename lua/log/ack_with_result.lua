-- ack_with_result: stores the results of handled entries, and removes these from the pending list.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] held HASH notes of pending entries by source and id
-- KEYS[4] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[5] steps HASH steps of messages, by the id of their entry in the log
-- KEYS[6] result... STRING what became of the first entry; then that of each further one
-- ARGV[1] mode 'lease', or 'consumer': then only entries pending under its name are changed
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log', or 'retry': then they are deleted too, since only this group reads them
-- ARGV[5] entries... id, keep, result and origin of each, at most 100: the steps of the origin are dropped, if there is
-- one
-- include fence, result
-- returns how many were pending, or the error FENCED
local fence, stream, held, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local mode, who, group, source = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not may_change(fence, mode, who) then
  return fenced()
end
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
-- It also detects a key of the wrong type before anything is changed.
redis.call('HDEL', held, '')
redis.call('XDEL', notes, '0-0')
redis.call('HDEL', steps, '')

-- Notes are rare.
local noted = redis.call('HLEN', held) > 0
local keys, ids, forgotten, ended, whose = KEYS, {}, {}, {}, { mode == 'consumer' and who or nil }
for at = 5, #ARGV, 4 do
  local id, keep, result, origin = unpack(ARGV, at, at + 3)
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, unpack(whose))
  if pending.err and not string.find(pending.err, 'NOGROUP', 1, true) then
    return pending
  end
  if #pending > 0 then
    local key = keys[6 + (at - 5) / 4]
    store_result(key, keep, result, notes)
    ids[#ids + 1], forgotten[#forgotten + 1] = id, source .. ':' .. id
    ended[#ended + 1] = origin ~= '' and origin or nil
  end
end
if #ids == 0 then
  return 0
end
-- Put before remove: a failure in between leaves messages that are handled again, never one without its result.
local acked = redis.call('XACK', stream, group, unpack(ids))
if source == 'retry' then
  redis.call('XDEL', stream, unpack(ids))
end
if noted then
  redis.call('HDEL', held, unpack(forgotten))
end
if #ended > 0 then
  redis.call('HDEL', steps, unpack(ended))
end
return acked
