-- append_packed: appends an entry that holds many messages, under ids that are the messages' own.
-- KEYS[1] log STREAM the partition's log
-- KEYS[2] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- ARGV[1] count number of messages in the entry, at least 1
-- ARGV[2] fields... names and values of the entry
-- include clock
-- returns the id of the entry, which is that of its last message; those before it have the sequence numbers before
local log, packs = KEYS[1], KEYS[2]
local count = ARGV[1]
-- Above this Lua counts no more one by one.
local MAX_WHOLE = 2 ^ 53

count = tonumber(count)
-- Read first: a key of the wrong type is detected before anything is changed.
local newest = redis.call('XREVRANGE', packs, '+', '-', 'COUNT', 1)[1]
local _, now_ms = clock()
local function split(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local function id_of(ms, seq)
  return string.format('%.0f-%.0f', ms, seq)
end

-- An entry of a millisecond that no other entry has takes the first ids of it; behind the newest pack, those behind
-- that.
-- Most entries do, and finding the log's newest id would copy that entry: so it is only asked for if this one is
-- refused.
local ms, first = now_ms, 0
if newest then
  local newest_ms, newest_seq = split(newest[1])
  if newest_ms >= ms then
    ms, first = newest_ms, newest_seq + 1
  end
end
local id = id_of(ms, first + count - 1)
local first_id = id_of(ms, first)
local free = ms == now_ms and #redis.call('XRANGE', log, first_id, id, 'COUNT', 1) == 0
if not free or redis.pcall('XADD', log, id, unpack(ARGV, 2)).err then
  -- Behind the newest entry there ever was, or the newest pack, whichever is later.
  if redis.call('EXISTS', log) == 1 then
    local info = redis.call('XINFO', 'STREAM', log)
    for at = 1, #info, 2 do
      if info[at] == 'last-generated-id' then
        local last_ms, last_seq = split(info[at + 1])
        if last_ms > ms or last_ms == ms and last_seq >= first then
          ms, first = last_ms, last_seq + 1
        end
      end
    end
  end
  if first + count > MAX_WHOLE then
    ms, first = ms + 1, 0
  end
  id = id_of(ms, first + count - 1)
  redis.call('XADD', log, id, unpack(ARGV, 2))
end
if count == 1 then
  return id
end
local more = (newest and tonumber(newest[2][4]) or 0) + count - 1
local more_text = string.format('%.0f', more)
redis.call('XADD', packs, id, 'count', count, 'more', more_text)
return id
