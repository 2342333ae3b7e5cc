-- length_packed: returns how many messages a log with packs holds.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- returns the number of messages
local log, packs = KEYS[1], KEYS[2]

local length = redis.call('XLEN', log)
local newest = redis.call('XREVRANGE', packs, '+', '-', 'COUNT', 1)[1]
local first = newest and redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
if not first then
  return length
end
-- All that have left the log are below its first entry.
local above = '(' .. first[1]
local gone = redis.call('XREVRANGE', packs, above, '-', 'COUNT', 1)[1]
if gone then
  return length + tonumber(newest[2][4]) - tonumber(gone[2][4])
end
local oldest = redis.call('XRANGE', packs, '-', '+', 'COUNT', 1)[1]
return length + tonumber(newest[2][4]) - tonumber(oldest[2][4]) + tonumber(oldest[2][2]) - 1
