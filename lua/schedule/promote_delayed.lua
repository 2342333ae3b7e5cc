-- promote_delayed: moves messages that are due to the log of their partition, for all groups.
-- Called by the owner of the partition, or by any client without a lease. Such a client passes `delay` in place of
-- `fence` and `retry_due` too: every key must be given, and these two are not used then.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant; without a lease: delay, not used
-- KEYS[2] delay ZSET ids by due time in milliseconds
-- KEYS[3] delay_items HASH bodies by id
-- KEYS[4] log STREAM the partition's log
-- KEYS[5] recur ZSET ids of recurring rules by next due time
-- KEYS[6] retry_due ZSET the group's retries by due time in milliseconds; without a lease: delay, not used
-- ARGV[1] token of the lease, or '' without one
-- ARGV[2] limit maximum number to move, up to 200
-- include clock, fence, body
-- returns {moved, next_us, recurring, orphans, retry_us}: microseconds until the next is due, or -1; 1 if a
-- recurring rule is due, else 0; the ids of those without a readable body; microseconds until the
-- group's next retry is due, or -1; or the error FENCED
local fence, delay, delay_items, log, recur, retry_due = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, limit = ARGV[1], ARGV[2]
local PORTION, MAX_BYTES = 25, 1048576
-- 100 years: `schedule` accepts no later due time. A later score, which somebody else wrote, is returned as this.
local FAR_US = 36500 * 24 * 3600 * 1000000

if token ~= '' and not is_owner(fence, token) then
  return fenced()
end
if token ~= '' and redis.call('EXISTS', delay, recur, retry_due) == 0 then
  -- What most partitions have to say most of the time.
  return { 0, -1, 0, {}, -1 }
end
local now_us, now_ms, now = clock()
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
-- A wrong type there must not stop the messages of other groups: the owner receives the error from `promote`.
local retries = token ~= '' and redis.pcall('ZRANGE', retry_due, 0, 0, 'WITHSCORES') or {}
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')

local moved, orphans, bytes = 0, {}, 0
local due = {}
-- The common case: nothing is due, and nothing is left to do.
if head[2] and tonumber(head[2]) <= now_ms then
  redis.call('XLEN', log)
  -- A write that is never refused comes first: a server that is out of memory then accepts the others too.
  -- All keys have been read by then: one of the wrong type was detected before anything is changed.
  redis.call('HDEL', delay_items, '')
  due = redis.call('ZRANGEBYSCORE', delay, '-inf', now, 'LIMIT', 0, limit)
end
for from = 1, #due, PORTION do
  if bytes >= MAX_BYTES then
    -- Bounds the time for which the script blocks the server: the rest is due at once.
    break
  end
  local ids = {}
  for at = from, math.min(from + PORTION - 1, #due) do
    if bytes >= MAX_BYTES then
      break
    end
    local id = due[at]
    -- One at a time: HMGET would copy all bodies of a portion before their size is known.
    local item = redis.call('HGET', delay_items, id)
    ids[#ids + 1] = id
    local fields = values_of(item, 0)
    if fields and #fields >= 2 and #fields % 2 == 0 then
      redis.call('XADD', log, '*', unpack(fields))
      moved, bytes = moved + 1, bytes + #item
    else
      orphans[#orphans + 1] = id
      if item then
        -- Bytes that are no message: no group can decode them, so each keeps them as a dead letter.
        redis.call('XADD', log, '*', 'packed', item)
        bytes = bytes + #item
      end
    end
  end
  -- Put before remove: a failure in between leaves messages to be moved once more, never a loss.
  redis.call('ZREM', delay, unpack(ids))
  redis.call('HDEL', delay_items, unpack(ids))
end

if #due > 0 then
  head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
end
local function in_us(score)
  return score < math.huge and math.min(math.max(math.ceil(score) * 1000 - now_us, 0), FAR_US) or -1
end
local next_us = in_us(math.min(tonumber(head[2] or math.huge), tonumber(recurs[2] or math.huge)))
local retry_us = retries.err and 0 or in_us(tonumber(retries[2] or math.huge))
local recurring = recurs[2] and tonumber(recurs[2]) <= now_ms and 1 or 0
return { moved, next_us, recurring, orphans, retry_us }
