-- promote: moves parked messages that are due to the retry log.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] retry_due ZSET origins by due time in milliseconds
-- KEYS[3] retry_items HASH bodies by origin
-- KEYS[4] retry_log STREAM the group's redeliveries
-- KEYS[5] dlq STREAM the group's dead letters
-- KEYS[6] unique HASH 'id send' of the newest entry by unique id
-- KEYS[7] unique_retry HASH ids of redeliveries of such entries, by origin
-- KEYS[8] log STREAM the partition's log
-- KEYS[9] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- ARGV[1] token of the lease
-- ARGV[2] limit maximum number to move, up to 200
-- ARGV[3] topic for dead letters
-- ARGV[4] partition for dead letters
-- ARGV[5] group for dead letters
-- include clock, fence, body, retry_item, redelivery, size
-- returns {moved, orphans, next_us, mended, in_packs}: microseconds until the next is due, or -1; how many of those
--   moved have their body from the log; the origins whose body is left in a pack alone, which a script cannot read:
--   they are due later; or the error FENCED
local fence, retry_due, retry_items, retry_log, dlq, unique, unique_retry, log, packs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local token, limit, topic, partition, group = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MAX_BYTES, LATER_MS = 1048576, 10000
-- 100 years: `retry` accepts no later due time. A later score, which somebody else wrote, is returned as this.
local FAR_US = 36500 * 24 * 3600 * 1000000

if not is_owner(fence, token) then
  return fenced()
end
local now_us, _, now_text = clock()
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- They also detect a key of the wrong type before anything is changed.
redis.call('HDEL', retry_items, '')
redis.call('XDEL', dlq, '0-0')

local moved, orphans, bytes, gone, failed, mended, in_packs = 0, 0, 0, {}, nil, 0, {}
-- Returns the body that the log has of a message, or whether a pack there has it.
local function in_log(origin)
  local entry = redis.pcall('XRANGE', log, origin, '+', 'COUNT', 1)[1]
  local id = entry and entry[1] or ''
  local pack = entry and redis.pcall('XRANGE', packs, id, id)[1]
  bytes = bytes + size(entry)
  local ms, seq = string.match(origin, '^(%d+)%-(%d+)$')
  local pack_ms, pack_seq = string.match(id, '^(%d+)%-(%d+)$')
  if pack then
    return nil, ms == pack_ms and pack_seq - seq < tonumber(pack[2][2])
  end
  return id == origin and bounded(entry[2]) or nil
end

local due = redis.call('ZRANGEBYSCORE', retry_due, '-inf', now_text, 'LIMIT', 0, limit)
for _, origin in ipairs(due) do
  if bytes >= MAX_BYTES then
    -- Bounds the time for which the script blocks the server: the rest is due at once.
    break
  end
  local item = redis.call('HGET', retry_items, origin)
  bytes = bytes + #(item or '')
  local attempt, error_text, history, values, first = read_retry_item(item)
  local put, in_pack
  if not item then
    values, in_pack = in_log(origin)
    if values then
      attempt, error_text, history, first, mended = '2', '', '', 1, mended + 1
    end
  end
  if in_pack then
    in_packs[#in_packs + 1] = origin
  elseif attempt then
    put = redis.pcall('XADD', retry_log, '*', 'attempt', attempt, 'origin', origin, 'error', error_text, 'history',
      history, unpack(values, first))
    moved = moved + 1
  else
    -- The body is nowhere, or not ours: stored as a dead letter, since dropping it silently would be a loss.
    put = redis.pcall('XADD', dlq, '*', 'reason', 'orphan', 'attempts', '0', 'error', '', 'origin', origin,
      'topic', topic, 'partition', partition, 'group', group, 'history', '', unpack(item and { 'packed', item } or {}))
    orphans = orphans + 1
  end
  if type(put) == 'table' and put.err then
    failed = put
    break
  end
  if attempt then
    note_redelivery(unique, unique_retry, origin, put, values[first], values[first + 1])
  end
  if not in_pack then
    gone[#gone + 1] = origin
  end
end
-- Put before remove. What was moved before a failure is removed too: only if the script itself is stopped are messages
-- moved once more, never lost.
if #gone > 0 then
  redis.call('ZREM', retry_due, unpack(gone))
  redis.call('HDEL', retry_items, unpack(gone))
end
for _, origin in ipairs(in_packs) do
  redis.call('ZADD', retry_due, 'XX', string.format('%.0f', math.floor(now_us / 1000) + LATER_MS), origin)
end
if failed then
  return failed
end

local head = redis.call('ZRANGE', retry_due, 0, 0, 'WITHSCORES')
local next_us = head[2] and math.min(math.max(math.ceil(tonumber(head[2])) * 1000 - now_us, 0), FAR_US) or -1
return { moved, orphans, next_us, mended, in_packs }
