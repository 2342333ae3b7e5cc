-- append_numbered: appends the first or last entry of a transaction to a log, and adds its id to the record.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] numbered STRING 'count first last': number of the transaction's entries, and ids of two of them
-- ARGV[1] values... names and values of the entry
-- returns the id of the entry
local log, numbered = KEYS[1], KEYS[2]

local id = redis.call('XADD', log, '*', unpack(ARGV))
local more = ' ' .. id
redis.call('APPEND', numbered, more)
return id
