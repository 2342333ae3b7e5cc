-- share_cancels: notes that a place has many readers, none of which owns it: then nothing is 'ahead'.
-- KEYS[1] cancels HASH changes; shared; mark:<id>: 'word ms claim'
-- returns how many fields were added
local cancels = KEYS[1]

-- A write that is never refused comes first: a server that is out of memory then accepts the other too.
redis.call('HDEL', cancels, '')
return redis.call('HSETNX', cancels, 'shared', '1')
