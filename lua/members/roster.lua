-- roster: returns the state of a whole group.
-- KEYS[1] members ZSET ids by the expiry time of their heartbeat, in milliseconds
-- KEYS[2] member HASH 'incarnation ttl_ms max pins' by id; ':version', ':partitions' of the membership
-- KEYS[3] assignment HASH partitions by id; ':version' that they were computed for
-- KEYS[4] changes STREAM the newest change alone
-- KEYS[5] meta HASH the topic's settings
-- include clock
-- returns {ids of all with their expiry times, member, assignment, revision, partitions or nil, now_ms}; the hashes as
--   they are stored
local members, member, assignment, changes, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- A script, since a server that is out of memory refuses a transaction.
local _, _, now_ms = clock()
local last = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
return {
  redis.call('ZRANGE', members, 0, -1, 'WITHSCORES'),
  redis.call('HGETALL', member),
  redis.call('HGETALL', assignment),
  last and last[1] or '0-0',
  redis.call('HGET', meta, 'partitionCount'),
  now_ms,
}
