-- promote: moves parked messages that are due to the retry log.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] retry_due ZSET origins by due time in milliseconds
-- KEYS[3] retry_items HASH bodies by origin
-- KEYS[4] retry_log STREAM the group's redeliveries
-- KEYS[5] dlq STREAM the group's dead letters
-- KEYS[6] unique HASH 'id send' of the newest entry by unique id
-- KEYS[7] unique_retry HASH ids of redeliveries of such entries, by origin
-- ARGV[1] token of the lease
-- ARGV[2] limit maximum number to move, up to 200
-- ARGV[3] topic for dead letters
-- ARGV[4] partition for dead letters
-- ARGV[5] group for dead letters
-- returns {moved, orphans, next_us}: microseconds until the next is due, or -1; or the error FENCED
local fence, retry_due, retry_items, retry_log, dlq, unique, unique_retry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, limit, topic, partition, group = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MAX_VALUES, MAX_BYTES = 6003, 1048576
-- 100 years: `retry` accepts no later due time. A later score, which somebody else wrote, is returned as this.
local FAR_US = 36500 * 24 * 3600 * 1000000

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- They also detect a key of the wrong type before anything is changed.
redis.call('HDEL', retry_items, '')
redis.call('XDEL', dlq, '0-0')

local function whole(fields)
  if type(fields) ~= 'table' or #fields < 4 or #fields > MAX_VALUES then
    return false
  end
  for i = 1, #fields do
    if type(fields[i]) ~= 'string' then
      return false
    end
  end
  return true
end

-- The redelivery of an entry that has a unique id is noted: so a send with the id can see whether it is settled. An
-- error (a key of the wrong type) only ends the id early.
local function note(origin, id, name, value)
  if name == 'packed' then
    local readable, fields = pcall(cmsgpack.unpack, value)
    fields = readable and type(fields) == 'table' and fields or {}
    name, value = fields[1], fields[2]
  end
  local known = name == 'mq:unique' and value and redis.pcall('HGET', unique, value)
  if type(known) == 'string' and string.match(known, '^(%S+) ') == origin then
    redis.pcall('HSET', unique_retry, origin, id)
  end
end

local moved, orphans, bytes, gone, failed = 0, 0, 0, {}, nil
local due = redis.call('ZRANGEBYSCORE', retry_due, '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, limit)
for _, origin in ipairs(due) do
  if bytes >= MAX_BYTES then
    -- Bounds the time for which the script blocks the server: the rest is due at once.
    break
  end
  local item = redis.call('HGET', retry_items, origin)
  bytes = bytes + #(item or '')
  local readable, fields = pcall(cmsgpack.unpack, item)
  local put
  if item and readable and whole(fields) then
    local lead = 2 + #fields % 2
    local attempt, error_text, history = fields[1], fields[2], fields[lead]
    if lead == 2 then
      error_text = string.match(string.match(history, '^.*\n(.*)$') or history, '^%d+ %d+ (.*)$') or ''
    end
    put = redis.pcall('XADD', retry_log, '*', 'attempt', attempt, 'origin', origin, 'error', error_text, 'history',
      history, unpack(fields, lead + 1))
    moved = moved + 1
  else
    -- The body is missing or not ours: stored as a dead letter, since dropping it silently would be a loss.
    put = redis.pcall('XADD', dlq, '*', 'reason', 'orphan', 'attempts', '0', 'error', '', 'origin', origin,
      'topic', topic, 'partition', partition, 'group', group, 'history', '', unpack(item and { 'packed', item } or {}))
    orphans = orphans + 1
  end
  if type(put) == 'table' and put.err then
    failed = put
    break
  end
  if readable and whole(fields) then
    note(origin, put, fields[3 + #fields % 2], fields[4 + #fields % 2])
  end
  gone[#gone + 1] = origin
end
-- Put before remove. What was moved before a failure is removed too: only if the script itself is stopped are messages
-- moved once more, never lost.
if #gone > 0 then
  redis.call('ZREM', retry_due, unpack(gone))
  redis.call('HDEL', retry_items, unpack(gone))
end
if failed then
  return failed
end

local head = redis.call('ZRANGE', retry_due, 0, 0, 'WITHSCORES')
local next_us = head[2] and math.min(math.max(math.ceil(tonumber(head[2])) * 1000 - now_us, 0), FAR_US) or -1
return { moved, orphans, next_us }
