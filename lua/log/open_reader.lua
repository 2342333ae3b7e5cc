-- open_reader: begins a new reader of a lease: from then on reads of its earlier readers fail.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] gate STREAM of the last reader
-- KEYS[3] next STREAM the gate of the new reader
-- ARGV[1] token of the lease
-- ARGV[2] last the word of the last reader, or ''
-- ARGV[3] reader a word that differs with every call
-- ARGV[4] group that reads
-- include fence
-- returns 1, {'READER', word of the last reader} if it is another one, or the error FENCED
local fence, gate, next = KEYS[1], KEYS[2], KEYS[3]
local token, last, reader, group = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not is_owner(fence, token) then
  return fenced()
end
local other = other_reader(fence, last)
if other then
  return other
end
-- After a connection was cut, the server may still have its blocked request, which would read the next entry and lose
-- the reply. The read in it names the gate, and fails without it.
-- DEL first, so that a server that is out of memory accepts the others too.
redis.call('DEL', gate)
redis.call('XGROUP', 'CREATE', next, group, '$', 'MKSTREAM')
redis.call('HSET', fence, 'reader', reader)
return 1
