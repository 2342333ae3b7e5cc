-- read: reads a stream as the holder of its lease, without a connection that watches the fence.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant, and the word of its reader
-- KEYS[2] stream STREAM the log or retry log
-- ARGV[1] token of the lease
-- ARGV[2] group that reads
-- ARGV[3] consumer always 'owner'
-- ARGV[4] count maximum number of entries
-- ARGV[5] after '>' for new entries, or an id for entries above it that were handed out
-- ARGV[6] reader the word with which the reader was begun
-- returns {the reply of XREADGROUP, the reply of XPENDING for the same range}, or the errors FENCED or READER
local fence, stream = KEYS[1], KEYS[2]
local token, group, consumer, count, after, reader = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

-- A server that is out of memory refuses every command inside MULTI, but no script whose commands free memory or move
-- entries.
local holder = redis.call('HMGET', fence, 'token', 'reader')
if token == '' or holder[1] ~= token then
  return redis.error_reply('FENCED lease is lost')
end
-- A call that arrives late, after its caller has given it up and begun anew: what it reads now would be lost to that
-- one, which has read the pending list already.
if holder[2] ~= reader then
  return redis.error_reply('READER another reader of the lease has begun')
end
local entries = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, after)
if after == '>' then
  return { entries, {} }
end
local above = '(' .. after
return { entries, redis.call('XPENDING', stream, group, above, '+', count, consumer) }
