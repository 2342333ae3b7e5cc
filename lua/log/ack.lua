-- ack: removes handled entries from the pending list, and from the retry log if they were read there.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] held HASH notes of pending entries by source and id
-- KEYS[4] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- ARGV[1] mode 'lease', or 'consumer': then only entries pending under its name are changed
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log', or 'retry': then they are deleted too, since only this group reads them
-- ARGV[5] ids... of the entries, at most 1,000
-- include fence
-- returns how many were pending, or the error FENCED
local fence, stream, held, settled = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mode, who, group, source = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not may_change(fence, mode, who) then
  return fenced()
end
-- Both are rare, and most acknowledgements ask for nothing else.
local more = redis.call('EXISTS', held, settled) > 0
local noted = more and redis.call('HLEN', held) > 0
local first, ids = 5, ARGV
if mode == 'consumer' then
  first, ids = 1, {}
  for at = 5, #ARGV do
    local pending = redis.pcall('XPENDING', stream, group, ARGV[at], ARGV[at], 1, who)
    if pending.err and not string.find(pending.err, 'NOGROUP', 1, true) then
      return pending
    end
    if #pending > 0 then
      ids[#ids + 1] = ARGV[at]
    end
  end
  if #ids == 0 then
    return 0
  end
end
local acked = redis.call('XACK', stream, group, unpack(ids, first))
if source == 'retry' then
  redis.call('XDEL', stream, unpack(ids, first))
end
if more and source == 'log' and redis.call('HLEN', settled) > 0 then
  -- Of packs that are gone from the log.
  redis.call('HDEL', settled, unpack(ids, first))
end
if noted then
  local notes = {}
  for at = first, #ids do
    notes[#notes + 1] = source .. ':' .. ids[at]
  end
  redis.call('HDEL', held, unpack(notes))
end
return acked
