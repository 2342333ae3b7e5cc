-- seek: moves a group's position in the log; what is pending there is forgotten.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] held HASH notes of pending entries by source and id
-- ARGV[1] token of the lease
-- ARGV[2] group that reads
-- ARGV[3] position above which reading goes on: an id, '0' or '$'
-- ARGV[4] word that differs with every call
-- returns 1, or the errors FENCED or NOGROUP
local fence, log, held = KEYS[1], KEYS[2], KEYS[3]
local token, group, position, word = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MAX_VALUES = 2000

if redis.call('HGET', fence, 'token') ~= token then
  return redis.error_reply('FENCED lease is lost')
end
-- Read first: a key of a foreign type, or a group that is not there, is found before anything was changed.
local notes, gone = redis.call('HKEYS', held), {}
redis.call('XPENDING', log, group)
-- DESTROY is never refused: then the others pass too when the server is out of memory.
redis.call('XGROUP', 'DESTROY', log, group)
redis.call('XGROUP', 'CREATE', log, group, position)
for _, note in ipairs(notes) do
  if string.sub(note, 1, 4) == 'log:' then
    gone[#gone + 1] = note
  end
end
for at = 1, #gone, MAX_VALUES do
  redis.call('HDEL', held, unpack(gone, at, math.min(at + MAX_VALUES - 1, #gone)))
end
-- Every reader watches the fence and starts over; by the word it knows that nothing was lost.
redis.call('HSET', fence, 'sought', word)
return 1
