-- dead_letter: stores pending entries as dead letters, and removes them from the pending list.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] dlq STREAM the group's dead letters
-- KEYS[4] held HASH notes of pending entries by source and id
-- KEYS[5] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[6] steps HASH steps of messages, by the id of their entry in the log
-- KEYS[7] result... STRING what became of the first message that asks for its result; then that of each further one
-- ARGV[1] mode 'lease', or 'consumer': then only entries pending under its name are changed
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log', or 'retry': then they are deleted there too
-- ARGV[5] topic that they came from
-- ARGV[6] partition that they came from
-- ARGV[7] messages... id, reason, attempts, origin, error, history, line, keep and result of each, at most 100: line
-- is the last line of the history, without the time, or empty; keep is empty if the message asks for nothing
-- include clock, fence, body, retry_item, result, steps
-- returns {applied, stale, done}, or the error FENCED, or NOGROUP of the owner's log; it stops when bodies reach
-- 1 MiB; the caller repeats those after the first `done`
local fence, stream, dlq, held, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local mode, who, group, source, topic, partition = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local MAX_BYTES = 1048576

if not may_change(fence, mode, who) then
  return fenced()
end
local _, _, now_text = clock()
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
-- It also detects a key of the wrong type before anything is changed.
redis.call('XDEL', dlq, '0-0')
redis.call('XDEL', notes, '0-0')
local noted, stepped = redis.call('HLEN', held) > 0, redis.call('HLEN', steps) > 0

local keys, asked, applied, stale, done, bytes, whose = KEYS, 6, 0, 0, 0, 0, { mode == 'consumer' and who or nil }
for at = 7, #ARGV, 9 do
  if bytes >= MAX_BYTES then
    -- Bounds the time for which the script blocks the server.
    break
  end
  local id, reason, attempts, origin, error_text, history, line, keep, result = unpack(ARGV, at, at + 8)
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, unpack(whose))
  if pending.err and (source == 'log' and mode ~= 'consumer' or not string.find(pending.err, 'NOGROUP', 1, true)) then
    return pending
  end
  done = done + 1
  if keep ~= '' then
    asked = asked + 1
  end
  -- Before the letter: a failure here must not store it again each time. Also of a message that is gone: nobody will
  -- handle it.
  if keep ~= '' and #pending > 0 then
    local key = keys[asked]
    store_result(key, keep, result, notes)
  end
  local entry = #pending > 0 and redis.call('XRANGE', stream, id, id)[1]
  if entry then
    local body, size = body_of_entry(entry[2], source)
    bytes = bytes + size
    if line ~= '' then
      history = history .. now_text .. ' ' .. line
    end
    local moved = 0
    if stepped then
      body, moved = with_steps(steps, origin, body)
    end
    redis.call('XADD', dlq, '*', 'reason', reason, 'attempts', attempts, 'error', error_text, 'origin', origin,
      'topic', topic, 'partition', partition, 'group', group, 'history', history, unpack(body))
    if moved > 0 then
      redis.call('HDEL', steps, origin)
      bytes = bytes + moved
    end
    applied = applied + 1
  else
    stale = stale + 1
  end
  -- Put before remove: a failure in between leaves a second copy, never a loss.
  if #pending > 0 or #whose == 0 then
    redis.call('XACK', stream, group, id)
    if entry and source == 'retry' then
      redis.call('XDEL', stream, id)
    end
    if noted then
      local note = source .. ':' .. id
      redis.call('HDEL', held, note)
    end
  end
end
return { applied, stale, done }
