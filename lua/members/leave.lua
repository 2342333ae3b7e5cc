-- leave: removes a member from its group, unless another instance has its id by now.
-- KEYS[1] members ZSET ids by the expiry time of their heartbeat, in milliseconds
-- KEYS[2] member HASH 'incarnation ttl_ms max pins' by id; ':version', ':partitions' of the membership
-- KEYS[3] changes STREAM the newest change alone
-- ARGV[1] id of the member
-- ARGV[2] incarnation of it
-- include clock
-- returns 1 if it was in the group, else 0
local members, member, changes = KEYS[1], KEYS[2], KEYS[3]
local id, incarnation = ARGV[1], ARGV[2]
local MAX_WHOLE = 2 ^ 53

local known = redis.call('HMGET', member, id, ':version')
if not known[1] or string.match(known[1], '^%S*') ~= incarnation then
  return 0
end
redis.call('XLEN', changes)
local _, now_ms = clock()
-- A write that is never refused comes first: a server that is out of memory then accepts the others too. All keys
-- have been read: one of the wrong type was detected. The version is written before the change, as in heartbeat.
redis.call('ZREM', members, '')
local last = tonumber(string.match(known[2] or '', '^%d+$') or '0')
local version = string.format('%.0f', math.max(last < MAX_WHOLE and last + 1 or 0, now_ms))
redis.call('HSET', member, ':version', version)
redis.call('ZREM', members, id)
redis.call('HDEL', member, id)
redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'version', version)
return 1
