-- publish: publishes an assignment, if its version still needs one; the first one for a version wins.
-- KEYS[1] member HASH 'incarnation ttl_ms max pins' by id; ':version', ':partitions' of the membership
-- KEYS[2] assignment HASH partitions by id; ':version' that they were computed for
-- KEYS[3] changes STREAM the newest change alone
-- ARGV[1] version that it was computed for
-- ARGV[2] fields... of the new assignment: id and ranges of each member, last ':version' and the version
-- returns 1, or 0 if the version is not the newest or has an assignment
local member, assignment, changes = KEYS[1], KEYS[2], KEYS[3]
local version = ARGV[1]
local MAX_VALUES = 2000

if redis.call('HGET', member, ':version') ~= version or redis.call('HGET', assignment, ':version') == version then
  return 0
end
redis.call('XLEN', changes)
-- A write that is never refused comes first: a server that is out of memory then accepts the others too. All keys
-- have been read: one of the wrong type was detected before anything was changed.
redis.call('DEL', assignment)
for at = 2, #ARGV, MAX_VALUES do
  -- The version is written last: stopped half-way, nothing is published.
  redis.call('HSET', assignment, unpack(ARGV, at, math.min(at + MAX_VALUES - 1, #ARGV)))
end
redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'assigned', version)
return 1
