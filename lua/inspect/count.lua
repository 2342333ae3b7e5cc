-- count: counts entries of a range without sending them.
-- KEYS[1] log STREAM a partition's log
-- ARGV[1] from the id to start with, or '(' and the id to start above
-- ARGV[2] to the last id, or '+'
-- ARGV[3] limit maximum number to count in this call, up to 200
-- returns {how many, the last id or nil}
local log = KEYS[1]
local from, to, limit = ARGV[1], ARGV[2], ARGV[3]

local entries = redis.call('XRANGE', log, from, to, 'COUNT', limit)
return { #entries, #entries > 0 and entries[#entries][1] }
