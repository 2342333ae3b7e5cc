-- open_reader: begins a new reader of a lease, and aborts requests of its earlier readers that are still under way.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- ARGV[1] token of the lease
-- ARGV[2] reader a word that differs with every call
-- include fence
-- returns 1, or the error FENCED
local fence = KEYS[1]
local token, reader = ARGV[1], ARGV[2]

if not is_owner(fence, token) then
  return fenced()
end
-- After a connection was cut, the server may still have its blocked request, which would read the next entry and lose
-- the reply. The request watches the fence: changing any field of it aborts the request.
-- HDEL first, so that a server that is out of memory accepts HSET too.
redis.call('HDEL', fence, 'reader')
redis.call('HSET', fence, 'reader', reader)
return 1
