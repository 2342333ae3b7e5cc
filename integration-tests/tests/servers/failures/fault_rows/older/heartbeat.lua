-- heartbeat: says that a member lives, drops members that do not, and tells it what it should own.
-- KEYS[1] members ZSET ids by when their heartbeat runs out, in milliseconds
-- KEYS[2] member HASH 'incarnation ttl_ms max pins' by id; ':version', ':partitions' of the membership
-- KEYS[3] assignment HASH partitions by id; ':version' that they were computed for
-- KEYS[4] changes STREAM the newest change alone
-- KEYS[5] meta HASH the topic's settings
-- KEYS[6] state HASH 'paused', 'deleting', 'deleted' of the group, each with a time in milliseconds
-- ARGV[1] id of the member
-- ARGV[2] incarnation unique to one start of it, without spaces
-- ARGV[3] ttl_ms how long it counts as alive
-- ARGV[4] wishes 'max pins': a number or '-', ranges like '0-3,7' or '-'
-- ARGV[5] joining '1' to take the id over from whoever has it
-- ARGV[6] reborn which topic of that name it works on: its 'reborn' or 0; '' for whichever is there
-- returns {version, revision, members, partitions, next_ms, ranges or nil, 1 if the group is paused or 0}, or the error
--   FENCED, NOTOPIC, or DELETED if the group was deleted, or the topic, also if it was created again
local members, member, assignment, changes, meta, state = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, incarnation, ttl_ms, wishes, joining, reborn = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local MAX_DROPPED = 1000

local topic = redis.call('HMGET', meta, 'partitionCount', 'reborn')
local partitions = topic[1]
if not partitions then
  return redis.error_reply('NOTOPIC the topic is not there')
elseif reborn ~= '' and (tonumber(topic[2] or '0') or 0) > tonumber(reborn) then
  return redis.error_reply('DELETED the topic was deleted and created again')
end
local of_group = redis.call('HMGET', state, 'deleting', 'deleted', 'paused')
if of_group[1] or of_group[2] then
  return redis.error_reply('DELETED the group was deleted')
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now, expires = string.format('%.0f', now_ms), string.format('%.0f', now_ms + tonumber(ttl_ms))
local known = redis.call('HMGET', member, id, ':version', ':partitions')
local said, version = known[1] or '', known[2] or '0'
if joining ~= '1' and known[1] and string.match(said, '^%S*') ~= incarnation then
  return redis.error_reply('FENCED another instance has the member id')
end
local planned = redis.call('HMGET', assignment, ':version', id)
local last = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
local score = redis.call('ZSCORE', members, id)
local away = score and tonumber(score) <= now_ms
local text = incarnation .. ' ' .. ttl_ms .. ' ' .. wishes
local changed = not score or not known[2] or known[3] ~= partitions
changed = changed or string.match(said, ' .*') ~= string.match(text, ' .*')
local dead = {}
if away then
  -- Who was away itself may be the first to come back after the server was: it accuses nobody. If the others had
  -- thought it dead when they planned, they plan again.
  changed = changed or planned[1] ~= version or not planned[2]
else
  dead = redis.call('ZRANGEBYSCORE', members, '-inf', now, 'LIMIT', 0, MAX_DROPPED)
  changed = changed or #dead > 0
end

-- A write that is never refused comes first: then the others pass too when the server is out of memory. All keys
-- have been read: one of a foreign type was met before anything was changed.
redis.call('ZREM', members, '')
local revision = last and last[1] or '0-0'
if changed then
  -- As with epochs: the clock keeps a version from coming back after its key, or the newest of it, was lost. It
  -- comes before what it is for: stopped half-way, there is a plan more and never one too few.
  version = string.format('%.0f', math.max((tonumber(version) or 0) + 1, now_ms))
  redis.call('HSET', member, ':version', version, ':partitions', partitions)
  revision = redis.call('XADD', changes, 'MAXLEN', '=', 1, '*', 'version', version)
end
if said ~= text then
  redis.call('HSET', member, id, text)
end
redis.call('ZADD', members, expires, id)
if #dead > 0 then
  redis.call('ZREM', members, unpack(dead))
  redis.call('HDEL', member, unpack(dead))
end
-- A heartbeat that lasts longer than was ever asked comes from a clock that went back: the dead would stay for long.
local far = string.format('(%.0f', now_ms + 2 * tonumber(ttl_ms))
for _, other in ipairs(redis.call('ZRANGEBYSCORE', members, far, '+inf', 'LIMIT', 0, 100)) do
  local its_ttl_ms = string.match(redis.call('HGET', member, other) or '', '^%S+ (%d+)') or 0
  local latest = string.format('%.0f', now_ms + its_ttl_ms)
  redis.call('ZADD', members, 'LT', latest, other)
end
-- When those who are overdue already are not dropped in this call, there is no hurry to find them out.
local from = away and '(' .. now or '-inf'
local first = redis.call('ZRANGEBYSCORE', members, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next_ms = math.min(math.max(math.ceil(tonumber(first[2])) - now_ms, 0), 2 ^ 52)
local ranges = planned[1] == version and (planned[2] or '')
return { version, revision, redis.call('ZCARD', members), partitions, next_ms, ranges, of_group[3] and 1 or 0 }
