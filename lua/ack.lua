-- ack: takes handled entries off the pending list, and out of the retry log if they were read there.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] held HASH notes of pending entries by source and id
-- ARGV[1] token of the lease
-- ARGV[2] group that read them
-- ARGV[3] source 'log', or 'retry': then they are deleted too, since only this group reads them
-- ARGV[4] ids... of the entries, at most 1,000
-- returns how many were pending, or the error FENCED
local fence, stream, held = KEYS[1], KEYS[2], KEYS[3]
local token, group, source = ARGV[1], ARGV[2], ARGV[3]

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
local noted = redis.call('HLEN', held) > 0
local acked = redis.call('XACK', stream, group, unpack(ARGV, 4))
if source == 'retry' then
  redis.call('XDEL', stream, unpack(ARGV, 4))
end
if noted then
  local notes = {}
  for at = 4, #ARGV do
    notes[#notes + 1] = source .. ':' .. ARGV[at]
  end
  redis.call('HDEL', held, unpack(notes))
end
return acked
