-- recur_due: reads the recurring rules that are due.
-- KEYS[1] recur ZSET ids of recurring rules by next due time
-- KEYS[2] recur_items HASH rule, pause, next time and body of recurring rules, by id
-- ARGV[1] limit maximum number to read, up to 100
-- include clock
-- returns {now_ms, entries, orphans}: entries as {id, due, item}, fewer if they are large; orphans are ids without a
-- readable item: they are not due any more
local recur, recur_items = KEYS[1], KEYS[2]
local limit = ARGV[1]
local MAX_VALUES, MAX_BYTES = 6003, 1048576

local _, now_ms, now = clock()

local function whole(parts)
  if type(parts) ~= 'table' or #parts < 5 or #parts % 2 ~= 1 or #parts > MAX_VALUES then
    return false
  end
  for i = 1, #parts do
    if type(parts[i]) ~= 'string' then
      return false
    end
  end
  return true
end

local entries, orphans, bytes = {}, {}, 0
local due = redis.call('ZRANGEBYSCORE', recur, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
for at = 1, #due, 2 do
  if bytes > MAX_BYTES then
    break
  end
  local item = redis.call('HGET', recur_items, due[at])
  local readable, parts = pcall(cmsgpack.unpack, item)
  if item and readable and whole(parts) then
    entries[#entries + 1] = { due[at], due[at + 1], item }
    bytes = bytes + #item
  else
    orphans[#orphans + 1] = due[at]
  end
end
if #orphans > 0 then
  -- No client could ever fire them, and they would stay due for ever.
  redis.call('ZREM', recur, unpack(orphans))
end
return { now_ms, entries, orphans }
