-- disown: takes a partition from its owner, before its group or topic is deleted: nobody reads or settles then.
-- KEYS[1] lease STRING the token while the lease is valid
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[3] gate STREAM of the last reader
-- ARGV[1] reader the word of the last reader, or ''
-- returns 1, or {'READER', word of the last reader} if it is another one
local lease, fence, gate = KEYS[1], KEYS[2], KEYS[3]
local reader = ARGV[1]

-- A fence of another type has no reader, and goes too.
local last = redis.pcall('HGET', fence, 'reader') or ''
if type(last) == 'string' and last ~= reader then
  return { 'READER', last }
end
redis.call('UNLINK', lease, fence, gate)
return 1
