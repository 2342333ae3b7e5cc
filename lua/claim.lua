-- claim: takes over what consumers that are not alive have left, and removes those that have nothing.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log
-- KEYS[3] held HASH notes of pending entries by source and id
-- ARGV[1] mode 'lease', or 'consumer': then the fence is not asked
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that reads
-- ARGV[4] source 'log' or 'retry'
-- ARGV[5] idle_ms for how long nobody must have touched an entry, nor heard of a consumer that is removed
-- ARGV[6] limit the most entries, at most 100
-- ARGV[7] names... of consumers: first whom the entries are for, then those that are alive
-- returns {next_ms, removed, now_ms, entries, ghosts}: milliseconds until more may be there, or -1; entries as
-- {id, body, deliveries, idle_ms, note or ''}; ghosts as {id, idle_ms}; or the errors FENCED or NOGROUP
local fence, stream, held = KEYS[1], KEYS[2], KEYS[3]
local mode, who, group, source, idle_ms, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

-- Whatever is not the one word is judged by the fence, which no empty token passes.
if mode ~= 'consumer' and (who == '' or redis.call('HGET', fence, 'token') ~= who) then
  return redis.error_reply('FENCED lease is lost')
end
-- Read first: a key of a foreign type, or a group that is not there, is found before anything was changed.
redis.call('HLEN', held)
redis.call('XPENDING', stream, group)
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local name, alive = ARGV[7], {}
for at = 7, #ARGV do
  alive[ARGV[at]] = true
end

local idle, left, next_ms, removed, entries, ghosts = tonumber(idle_ms), tonumber(limit), -1, 0, {}, {}
local function take(rows)
  local ids, of = {}, {}
  for at, row in ipairs(rows) do
    ids[at], of[row[1]] = row[1], row
  end
  for _, entry in ipairs(redis.call('XCLAIM', stream, group, name, 0, unpack(ids))) do
    local id, row = entry[1], of[entry[1]]
    local note = source .. ':' .. id
    entries[#entries + 1] = { id, entry[2], row[4] + 1, row[3], redis.call('HGET', held, note) or '' }
    of[id] = nil
  end
  for _, id in ipairs(ids) do
    if of[id] then
      -- Deleted: XCLAIM has taken it off the pending list.
      local note = source .. ':' .. id
      redis.call('HDEL', held, note)
      ghosts[#ghosts + 1] = { id, of[id][3] }
    end
  end
  left = left - #rows
end

for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local of = {}
  for at = 1, #info, 2 do
    of[info[at]] = info[at + 1]
  end
  if not alive[of.name] then
    local rows = {}
    if left > 0 and of.pending > 0 then
      rows = redis.call('XPENDING', stream, group, 'IDLE', idle_ms, '-', '+', left, of.name)
    end
    if #rows > 0 then
      take(rows)
    end
    if of.pending > #rows then
      for _, row in ipairs(redis.call('XPENDING', stream, group, '-', '+', 10, of.name)) do
        local wait_ms = math.max(idle - row[3], 0)
        next_ms = next_ms < 0 and wait_ms or math.min(next_ms, wait_ms)
      end
    elseif of.idle >= idle then
      -- In one step with the look: nothing can be handed to it in between.
      redis.call('XGROUP', 'DELCONSUMER', stream, group, of.name)
      removed = removed + 1
    end
  end
end
return { next_ms, removed, now_ms, entries, ghosts }
