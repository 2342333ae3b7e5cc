-- end_permits: ends a holder of permits, frees a part of what it has, and calls who waits for that.
-- KEYS[1] holders HASH 'till ttl number' by holder
-- KEYS[2] units HASH records by limit and key, as the part `permits` has them
-- KEYS[3] ended SET holders that were ended and still have something
-- KEYS[4] of SET limits and keys of which the holder has units, or for which it waits
-- KEYS[5] calls STREAM what holders have to know
-- ARGV[1] holder that ends
-- ARGV[2] limit most keys that are freed
-- include permits
-- returns 1 if there is more, 0 if nothing is left
local holders, units, ended, of, calls = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, limit = ARGV[1], ARGV[2]

-- Keys of the wrong type are detected before anything is changed.
redis.call('SISMEMBER', ended, holder)
redis.call('XLEN', calls)
redis.call('HLEN', units)
local keys = redis.call('SRANDMEMBER', of, limit)
redis.call('HDEL', holders, holder)
-- What it has counts no more from here on; the records are written anew without it, and who waits is called.
local it = book(units, holders, calls)
it.read(keys)
if #keys > 0 then
  redis.call('SREM', of, unpack(keys))
end
it.write()
if redis.call('SCARD', of) > 0 then
  redis.call('SADD', ended, holder)
  return 1
end
redis.call('SREM', ended, holder)
redis.call('DEL', of)
return 0
