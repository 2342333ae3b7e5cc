-- signal_message: stores a signal for a message, and makes it due if it waits for that.
-- KEYS[1] steps HASH steps of messages, by the id of their entry in the log
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] retry_due ZSET origins by due time in milliseconds
-- KEYS[4] retry_log STREAM the group's redeliveries
-- KEYS[5] wake STREAM of one entry, which owners read
-- ARGV[1] group that handles it
-- ARGV[2] origin id of its entry in the log
-- ARGV[3] name of the signal
-- ARGV[4] value what it says
-- include clock, ids, steps
-- returns 'woken', 'stored', 'known', 'late', 'gone', or 'large' if there would be too much; or the error NOGROUP
local steps, log, retry_due, retry_log, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, origin, name, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local _, now_ms, now_text = clock()
if not wide(origin) then
  return redis.error_reply('ERR no id of a message')
end
local known = redis.call('HGET', steps, origin)
local parked = redis.call('ZSCORE', retry_due, origin)
-- Of a pack the entry is behind its messages.
local entry = redis.call('XRANGE', log, origin, '+', 'COUNT', 1)[1]
local is_there = entry and (entry[1] == origin or entry[2][1] == 'mq:form')
local unread = is_unread(log, group, is_there and entry[1] or origin)
if unread == nil then
  return redis.error_reply('NOGROUP the group is not on the log')
end
is_there = is_there and (unread or #redis.call('XPENDING', log, group, entry[1], entry[1], 1) > 0)
-- A message in the retry log has another id there: what may be there counts as there.
if not known and not parked and not is_there and redis.call('XLEN', retry_log) == 0 then
  return 'gone'
end
known = known or ''
local ends, by = step_at(known, 'w', name)
if step_at(known, 's', name) then
  return 'known'
elseif ends and ends <= now_ms then
  return 'late'
end
redis.call('XLEN', wake)
-- Put before it is woken: a failure in between leaves a message that finds it when its wait ends.
if not add_signal(steps, origin, known, now_text, name, value) then
  return 'large'
end
if by ~= 's' or not parked then
  return 'stored'
end
redis.call('ZADD', retry_due, 'XX', now_text, origin)
-- Owners promote retries when they read this.
redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', now_text)
return 'woken'
