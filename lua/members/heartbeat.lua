-- heartbeat: records the heartbeat of a member, drops dead members, and returns the member's assignment.
-- KEYS[1] members... ZSET ids by the expiry time of their heartbeat, in milliseconds
-- KEYS[2] member... HASH 'incarnation ttl_ms max pins' by id; ':version', ':partitions' of the membership
-- KEYS[3] assignment... HASH partitions by id; ':version' that they were computed for
-- KEYS[4] changes... STREAM the newest change alone
-- KEYS[5] meta... HASH the topic's settings
-- KEYS[6] state... HASH 'paused', 'deleting', 'deleted' of the group, each with a time in milliseconds
-- ARGV[1] id... of the member
-- ARGV[2] incarnation... unique to one start of it, without spaces
-- ARGV[3] ttl_ms... for how long the heartbeat counts it as alive
-- ARGV[4] wishes... 'max pins': a number or '-', ranges like '0-3,7' or '-'; 'max pins running' with what it runs
-- ARGV[5] joining... '1' to join, and to take the id over from its previous holder
-- ARGV[6] reborn... generation of the topic that it works on: its 'reborn' or 0; '' for the present one
-- ARGV[7] continuity... answers to the caller: 'ttl since until server' in milliseconds, or '*'; then all these of each
--   further heartbeat, at most 32
-- include clock, identity, continuity
-- returns {version, revision, members, partitions, next_ms, ranges or nil, 1 if the group is paused or 0, server,
--   now_ms}, or the error FENCED, NOMEMBER if it is not in the group and does not join, NOTOPIC, or DELETED if the
--   group was deleted, or the topic, also if it was created again; with several rows an array of this, an error as its
--   text
local MAX_DROPPED, MAX_WHOLE = 1000, 2 ^ 53
-- What makes a version: what a member runs does not.
local WISHES = '^%S*( %S+ %S+ %S+)'
local keys, args, _, now_ms, now = KEYS, ARGV, clock()

local function beat(n)
  local members, member, assignment, changes, meta, state = unpack(keys, 6 * n - 5, 6 * n)
  local id, incarnation, ttl_ms, wishes, joining, reborn, continuity = unpack(args, 7 * n - 6, 7 * n)
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
  local expires = string.format('%.0f', now_ms + tonumber(ttl_ms))
  local known = redis.call('HMGET', member, id, ':version', ':partitions')
  -- As if it were lost: it joins again.
  known[1] = string.match(known[1] or '', '^%S+ %d+ .+$') or false
  local said, version = known[1] or '', string.match(known[2] or '', '^%d+$') or '0'
  -- One that is no number, or that no number can follow, was written by another program: it is replaced.
  local versioned = tonumber(version) > 0 and tonumber(version) < MAX_WHOLE
  version = versioned and version or '0'
  local score = redis.call('ZSCORE', members, id)
  if joining ~= '1' and known[1] and string.match(said, '^%S*') ~= incarnation then
    return redis.error_reply('FENCED another instance has the member id')
  elseif joining ~= '1' and not (known[1] and score) then
    -- It was dropped or lost, or this heartbeat is older than its leave: only the sender knows whether to join again.
    return redis.error_reply('NOMEMBER it is not in the group')
  end
  local planned = redis.call('HMGET', assignment, ':version', id)
  local last = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
  local text = incarnation .. ' ' .. ttl_ms .. ' ' .. wishes
  local changed = not score or not versioned or known[3] ~= partitions
  changed = changed or string.match(said, WISHES) ~= string.match(text, WISHES)
  -- An assignment that no member can read was written by another program: a new one is made for a new version.
  changed = changed or planned[2] and not string.find(planned[2], '^[-%d,]*$')

  -- Only a caller that may judge drops others: it takes their silence for their end.
  local answered = continuity_of(continuity, ttl_ms, now_ms)
  local server = identify(answered)
  local left_ms, dead, overdue = judges_in(answered, now_ms), {}, false
  local most = left_ms == 0 and MAX_DROPPED or 2
  local rows = redis.call('ZRANGEBYSCORE', members, '-inf', now, 'LIMIT', 0, most)
  for _, other in ipairs(rows) do
    if other ~= id and left_ms == 0 then
      dead[#dead + 1] = other
    end
    overdue = overdue or other ~= id
  end
  changed = changed or #dead > 0

  -- A write that is never refused comes first: a server that is out of memory then accepts the others too. All keys
  -- have been read: one of the wrong type was detected before anything was changed.
  redis.call('ZREM', members, '')
  local revision = last and last[1] or '0-0'
  if changed then
    -- As with epochs: the clock keeps a version from repeating after its key, or the newest value, was lost. It is
    -- written before the change: stopped half-way, an assignment is computed once too often, never once too few.
    version = string.format('%.0f', math.max(tonumber(version) + 1, now_ms))
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
  -- An expiry later than any requested ttl means that the clock went back: dead members would stay for too long.
  local far = string.format('(%.0f', now_ms + 2 * tonumber(ttl_ms))
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', members, far, '+inf', 'LIMIT', 0, 100)) do
    local its_ttl_ms = string.match(redis.call('HGET', member, other) or '', '^%S+ (%d+)') or 0
    local latest = string.format('%.0f', now_ms + its_ttl_ms)
    redis.call('ZADD', members, 'LT', latest, other)
  end
  -- next_ms is when the caller may drop the next member: one that is still overdue, or the next one that expires.
  local remain = overdue and (left_ms > 0 or #rows == most)
  local after_now = '(' .. now
  local first = redis.call('ZRANGEBYSCORE', members, after_now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local next_ms = math.min(math.max(math.ceil(tonumber(first[2])) - now_ms, 0), 2 ^ 52)
  next_ms = remain and math.min(next_ms, left_ms) or next_ms
  local ranges = planned[1] == version and (planned[2] or '')
  local count, paused = redis.call('ZCARD', members), of_group[3] and 1 or 0
  return { version, revision, count, partitions, next_ms, ranges, paused, server, now }
end

if #keys == 6 then
  return beat(1)
end
-- An error at one must not end what is done for the others.
local answers = {}
for n = 1, #keys / 6 do
  local _, answer = pcall(beat, n)
  answers[n] = type(answer) == 'table' and answer.err or answer
end
return answers
