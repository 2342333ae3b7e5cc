-- cancel_batch: cancels all members of a batch at a place, those that come later too.
-- KEYS[1] cancels HASH changes; shared; mark:<id>: 'word ms claim'; batch:<id>: 'batch ms '
-- ARGV[1] id of the batch
-- include clock, ids, cancels
-- returns 1, or 0 if it was cancelled before
local cancels = KEYS[1]
local id = ARGV[1]

local _, now_ms, now_text = clock()
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', cancels, '')
local field, mark = 'batch:' .. id, 'batch ' .. now_text .. ' '
if redis.call('HSETNX', cancels, field, mark) == 0 then
  return 0
end
local changes = redis.call('HINCRBY', cancels, 'changes', 1)
if changes % 100 == 0 and redis.call('HLEN', cancels) >= 1000 then
  purge_marks(cancels, now_ms)
end
return 1
