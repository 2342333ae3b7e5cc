-- cancel_message: cancels a message for one group, or asks whoever has it.
-- KEYS[1] cancels HASH changes; shared; mark:<id>: 'word ms claim'
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[3] log STREAM the partition's log
-- KEYS[4] retry_due ZSET origins by due time in milliseconds
-- KEYS[5] retry_items HASH bodies by origin
-- KEYS[6] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[7] steps HASH steps of messages, by the id of their entry in the log
-- KEYS[8] result... STRING what becomes of the message, if it asks for its result
-- ARGV[1] group for which it is cancelled
-- ARGV[2] origin id of its entry in the log
-- ARGV[3] removes 1 if it was seen as a parked retry; one that is parked, and was not, stays as it is
-- ARGV[4] asked... keep and result, if it asks for something
-- include clock, ids, result, cancels
-- returns the word of its mark, or 'full' if there are too many, or the error NOGROUP
local cancels, fence, log, retry_due, retry_items, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local group, origin, removes = ARGV[1], ARGV[2], ARGV[3]

local _, now_ms, now_text = clock()
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- They also detect a key of the wrong type before anything is changed.
redis.call('ZREM', retry_due, '')
redis.call('HDEL', retry_items, '')
redis.call('XDEL', notes, '0-0')
if not wide(origin) then
  return redis.error_reply('ERR no id of a message')
end
local known = mark_of(cancels, origin)
if known and known ~= 'asked' then
  return known
end
local word, unread = 'asked', is_unread(log, group, origin)
if unread == nil then
  -- Nobody will look at a mark, but a group of this name that is created later.
  return redis.error_reply('NOGROUP the group is not on the log')
end
if redis.call('ZSCORE', retry_due, origin) then
  if removes == '0' then
    -- It may ask for its result, which is not known.
    return 'asked'
  end
  word = 'cancelled'
elseif unread and redis.call('HEXISTS', cancels, 'shared') == 0 then
  -- Whoever is granted the lease reads the marks before the log. An owner that has lost it, and not released it, could
  -- still renew it.
  word = (redis.call('HGET', fence, 'token') or '') == '' and 'ahead' or word
end
if known == word then
  return word
end
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local full = add_mark(cancels, origin, word, '', now_ms, now_text, first and first[1])
if full then
  return full
end
if word == 'cancelled' then
  -- Put before remove: a failure in between leaves a mark, with which nobody begins the message.
  if #ARGV > 3 then
    local keys, keep, result = KEYS, ARGV[4], ARGV[5]
    store_result(keys[8], keep, result, notes)
  end
  redis.call('ZREM', retry_due, origin)
  redis.call('HDEL', retry_items, origin)
  redis.call('HDEL', steps, origin)
end
return word
