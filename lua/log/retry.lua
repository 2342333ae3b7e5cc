-- retry: parks pending entries until they are due again, and removes them from the pending list.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entries were read from
-- KEYS[3] retry_due ZSET origins by due time in milliseconds
-- KEYS[4] retry_items HASH bodies by origin
-- KEYS[5] held HASH notes of pending entries by source and id
-- KEYS[6] steps HASH steps of messages, by the id of their entry in the log
-- ARGV[1] mode 'lease', or 'consumer': then only entries pending under its name are changed
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] source 'log', or 'retry': then they are deleted there too
-- ARGV[5] messages... id, due, attempt, origin, error, history, line and wait of each, at most 100: due is '+' and
-- microseconds from now, or a time in milliseconds; line is the last line of the history, without the time, or empty;
-- wait is empty, or 's name' or '- name' of a wait that ends then, with a signal or without
-- include clock, fence, due, body, retry_item, steps
-- returns {applied, stale, done}, or the error FENCED, or NOGROUP of the owner's log; it stops when bodies reach
-- 1 MiB; the caller repeats those after the first `done`
local fence, stream, retry_due, retry_items, held, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local mode, who, group, source = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MAX_BYTES = 1048576

if not may_change(fence, mode, who) then
  return fenced()
end
local now_us, now_ms, now_text = clock()
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- They also detect a key of the wrong type before anything is changed.
redis.call('ZREM', retry_due, '')
redis.call('HDEL', retry_items, '')
redis.call('HDEL', steps, '')
local noted = redis.call('HLEN', held) > 0

-- Changes are collected: one command for all costs less than one for each.
local items, dues, gone, deleted, notes, bytes = {}, {}, {}, {}, {}, 0
local function flush()
  -- Put before remove: a failure in between leaves the same message under the same key, never a loss.
  if #items > 0 then
    redis.call('HSET', retry_items, unpack(items))
    redis.call('ZADD', retry_due, unpack(dues))
  end
  if #gone > 0 then
    redis.call('XACK', stream, group, unpack(gone))
  end
  if #deleted > 0 then
    redis.call('XDEL', stream, unpack(deleted))
  end
  if #notes > 0 then
    redis.call('HDEL', held, unpack(notes))
  end
end

local applied, stale, done, whose = 0, 0, 0, { mode == 'consumer' and who or nil }
local seen = {}
for at = 5, #ARGV, 8 do
  if bytes >= MAX_BYTES then
    -- Bounds the time for which the script blocks the server.
    break
  end
  local id, due, attempt, origin, error_text, history, line, wait = unpack(ARGV, at, at + 7)
  local pending = seen[id] and {} or redis.pcall('XPENDING', stream, group, id, id, 1, unpack(whose))
  if pending.err and (source == 'log' and mode ~= 'consumer' or not string.find(pending.err, 'NOGROUP', 1, true)) then
    return pending
  end
  seen[id], done = true, done + 1
  local entry = #pending > 0 and redis.call('XRANGE', stream, id, id)[1]
  if entry then
    if line ~= '' then
      history = history .. now_text .. ' ' .. line
    end
    local item = retry_item(attempt, error_text, history, line, body_of_entry(entry[2], source))
    bytes = bytes + #item
    items[#items + 1], items[#items + 2] = origin, item
    local due_ms = due_at(due, now_us)
    if wait ~= '' then
      local stored
      due_ms, stored = wait_until(steps, origin, wait, due_ms, now_ms)
      bytes = bytes + stored
    end
    dues[#dues + 1], dues[#dues + 2] = string.format('%.0f', due_ms), origin
    applied = applied + 1
  else
    stale = stale + 1
  end
  if #pending > 0 or #whose == 0 then
    gone[#gone + 1] = id
    deleted[#deleted + 1] = entry and source == 'retry' and id or nil
    notes[#notes + 1] = noted and source .. ':' .. id or nil
  end
end
flush()
return { applied, stale, done }
