-- scheduled: reads a page of waiting messages, by due time, and within one due time by the bytes of their ids.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id
-- ARGV[1] due of the last message of the previous page, or '' to start
-- ARGV[2] id of that message
-- ARGV[3] limit maximum number to read, up to 200
-- returns {1 if more may wait, else 0; id, due and item or nil of each}: less than limit if they are large
local delay, delay_items = KEYS[1], KEYS[2]
local due, id, limit = ARGV[1], ARGV[2], ARGV[3]
local MAX_BYTES = 1048576

-- Lua compares text by the server's locale, the sorted set by bytes.
local function up_to(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one <= #other
end

local low, high = 0, 0
if due ~= '' then
  local below = '(' .. due
  low, high = redis.call('ZCOUNT', delay, '-inf', below), redis.call('ZCOUNT', delay, '-inf', due)
end
-- Binary search among the ids of that due time: a late page costs no more, and the message may be gone by now.
for _ = 1, 64 do
  if low >= high then
    break
  end
  local middle = math.floor((low + high) / 2)
  if up_to(redis.call('ZRANGE', delay, middle, middle)[1], id) then
    low = middle + 1
  else
    high = middle
  end
end

local most = tonumber(limit)
local page = redis.call('ZRANGE', delay, low, low + most - 1, 'WITHSCORES')
local entries, bytes = {}, 0
for at = 1, #page, 2 do
  if bytes > MAX_BYTES then
    break
  end
  local item = redis.call('HGET', delay_items, page[at])
  entries[#entries + 1] = { page[at], page[at + 1], item }
  bytes = bytes + #(item or '')
end
return { (#page == 2 * most or 2 * #entries < #page) and 1 or 0, entries }
