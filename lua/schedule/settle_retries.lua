-- settle_retries: makes parked retries due now, or stores them as dead letters.
-- KEYS[1] retry_due ZSET origins by due time in milliseconds
-- KEYS[2] retry_items HASH bodies by origin
-- KEYS[3] dlq STREAM the group's dead letters
-- KEYS[4] wake STREAM of one entry, which owners read
-- KEYS[5] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[6] steps HASH steps of messages, by the id of their entry in the log
-- ARGV[1] action 'release' or 'kill'
-- ARGV[2] topic for dead letters
-- ARGV[3] partition for dead letters
-- ARGV[4] group for dead letters
-- ARGV[5] origins... of the messages, at most 200
-- include clock, body, retry_item, result, steps
-- returns for each 1 if it was parked, else 0; it stops when bodies reach 1 MiB: the caller repeats those behind the
-- last one
local retry_due, retry_items, dlq, wake, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local action, topic, partition, group = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MAX_BYTES = 1048576

local _, _, now_text = clock()
-- Read first: a key of the wrong type is detected before anything is changed. Then writes that are never refused: a
-- server that is out of memory then accepts the others too.
local scores = redis.call('ZMSCORE', retry_due, unpack(ARGV, 5))
redis.call('XLEN', wake)
redis.call('HDEL', retry_items, '')
redis.call('XDEL', dlq, '0-0')
redis.call('XDEL', notes, '0-0')
redis.call('HDEL', steps, '')

local function kill(origin)
  local item, moved = redis.call('HGET', retry_items, origin), 0
  local attempt, error_text, history, values, first = read_retry_item(item)
  if attempt then
    -- The number in the item is that of the next attempt.
    local attempts = string.format('%.0f', math.max((tonumber(attempt) or 1) - 1, 0))
    note_death(notes, values, first, group)
    local body
    body, moved = with_steps(steps, origin, { unpack(values, first) })
    redis.call('XADD', dlq, '*', 'reason', 'killed', 'attempts', attempts, 'error', error_text, 'origin', origin,
      'topic', topic, 'partition', partition, 'group', group, 'history', history, unpack(body))
    if moved > 0 then
      redis.call('HDEL', steps, origin)
    end
  else
    -- As `promote` stores it: the body is missing or not ours.
    redis.call('XADD', dlq, '*', 'reason', 'orphan', 'attempts', '0', 'error', '', 'origin', origin,
      'topic', topic, 'partition', partition, 'group', group, 'history', '', unpack(item and { 'packed', item } or {}))
  end
  -- Put before remove: a failure in between leaves a second copy, never a loss.
  redis.call('ZREM', retry_due, origin)
  redis.call('HDEL', retry_items, origin)
  return #(item or '') + moved
end

local results, dues, bytes, done = {}, {}, 0, {}
for i, score in ipairs(scores) do
  if bytes >= MAX_BYTES then
    -- Bounds the time for which the script blocks the server.
    break
  end
  local origin = ARGV[i + 4]
  results[i] = score and not done[origin] and 1 or 0
  if results[i] == 1 and action == 'kill' then
    bytes = bytes + kill(origin)
    done[origin] = true
  elseif results[i] == 1 then
    -- One that is due already keeps its place in the order.
    dues[#dues + 1] = tonumber(score) <= tonumber(now_text) and score or now_text
    dues[#dues + 1] = origin
  end
end
if #dues > 0 then
  redis.call('ZADD', retry_due, 'XX', unpack(dues))
  -- Owners promote retries when they read this.
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', now_text)
end
return results
