-- forget_cancel: removes the mark of a message that was settled before somebody saw it.
-- KEYS[1] cancels HASH changes; shared; mark:<id>: 'word ms claim'
-- ARGV[1] origin id of the message's entry in the log
-- include cancels
-- returns 1, or 0 if it has no mark that asks
local cancels = KEYS[1]
local origin = ARGV[1]

if mark_of(cancels, origin) ~= 'asked' then
  return 0
end
local field = 'mark:' .. origin
return redis.call('HDEL', cancels, field)
