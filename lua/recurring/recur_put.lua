-- recur_put: stores a recurring rule.
-- KEYS[1] recur ZSET ids of recurring rules by next due time
-- KEYS[2] recur_items HASH rule, pause, next time and body of recurring rules, by id
-- KEYS[3] delay ZSET ids by due time in milliseconds
-- KEYS[4] wake STREAM of one entry at a partition; at a shard a LIST of at most one element
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] id of the recurring rule
-- ARGV[3] next time in milliseconds since 1970; '' if never due
-- ARGV[4] conflict 'keep', 'replace' or 'reject'
-- ARGV[5] item rule, '1' if paused or '0', next time or '', then the body; a replaced rule keeps its pause
-- returns 1 (new), 2 (in place of another), 0 (that one was kept, with its due time) or -1 (it was to be rejected)
local recur, recur_items, delay, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local place, id, next, conflict, item = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local there = redis.call('HGET', recur_items, id)
local parts, readable, before = cmsgpack.unpack(item), pcall(cmsgpack.unpack, there)
before = there and readable and type(before) == 'table' and before or {}
local keeps = there and conflict ~= 'replace'
if keeps then
  local lost = before[2] == '0' and string.find(before[3] or '', '^%d+$') and not redis.call('ZSCORE', recur, id)
  if conflict == 'reject' or not lost then
    return conflict == 'reject' and -1 or 0
  end
  -- Its due time was lost with the list: it fires again at its next time.
  parts, item, next = before, there, before[3]
elseif (before[2] == '0' or before[2] == '1') and before[2] ~= parts[2] then
  parts[2] = before[2]
  item = cmsgpack.pack(parts)
end
next = parts[2] == '0' and next or ''
-- Every key has been read before the first is written: one of the wrong type is detected before anything is changed. No
-- write that is never refused comes first: a server that is out of memory must refuse this.
local head = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')
local recurs = redis.call('ZRANGE', recur, 0, 0, 'WITHSCORES')
local first = next ~= '' and tonumber(next) or math.huge
local wakes = first < math.min(tonumber(head[2] or math.huge), tonumber(recurs[2] or math.huge))
local called = wakes and redis.call(place == 'shard' and 'LLEN' or 'XLEN', wake)
redis.call('HSET', recur_items, id, item)
if next ~= '' then
  redis.call('ZADD', recur, next, id)
else
  redis.call('ZREM', recur, id)
end
if wakes and place ~= 'shard' then
  redis.call('XADD', wake, 'MAXLEN', '=', 1, '*', 'due', next)
elseif called == 0 then
  redis.call('LPUSH', wake, next)
end
return keeps and 0 or there and 2 or 1
