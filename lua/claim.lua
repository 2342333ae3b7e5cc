-- claim: takes over what consumers that are not alive have left, and removes those that have nothing.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] retry_log STREAM the group's redeliveries
-- KEYS[4] held HASH notes of pending entries by source and id
-- ARGV[1] mode 'lease', or 'consumer': then the fence is not asked
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that reads
-- ARGV[4] idle_ms for how long nobody must have touched an entry, nor heard of a consumer that is removed
-- ARGV[5] limit the most entries, at most 100
-- ARGV[6] names... of consumers: first whom the entries are for, then those that are alive
-- returns {next_ms, removed, now_ms, entries, ghosts}: milliseconds until more may be there, or -1; entries as
-- {source, id, body, deliveries, idle_ms, note or ''}; ghosts as {source, id, idle_ms}; the source is 'log' or 'retry';
-- or the errors FENCED or NOGROUP
local fence, log, retry_log, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mode, who, group, idle_ms, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- Whatever is not the one word is judged by the fence, which no empty token passes.
if mode ~= 'consumer' and (who == '' or redis.call('HGET', fence, 'token') ~= who) then
  return redis.error_reply('FENCED lease is lost')
end
-- Read first: a key of a foreign type, or a group that is not there, is found before anything was changed.
redis.call('HLEN', held)
redis.call('XPENDING', log, group)
redis.call('XPENDING', retry_log, group)
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local name, alive = ARGV[6], {}
for at = 6, #ARGV do
  alive[ARGV[at]] = true
end

local idle, left, next_ms, removed, entries, ghosts = tonumber(idle_ms), tonumber(limit), -1, 0, {}, {}
-- In these two `log` is either of them.
local function take(source, log, rows)
  local ids, of = {}, {}
  for at, row in ipairs(rows) do
    ids[at], of[row[1]] = row[1], row
  end
  for _, entry in ipairs(redis.call('XCLAIM', log, group, name, 0, unpack(ids))) do
    local id, row = entry[1], of[entry[1]]
    local note = source .. ':' .. id
    entries[#entries + 1] = { source, id, entry[2], row[4] + 1, row[3], redis.call('HGET', held, note) or '' }
    of[id] = nil
  end
  for _, id in ipairs(ids) do
    if of[id] then
      -- Deleted: XCLAIM has taken it off the pending list.
      local note = source .. ':' .. id
      redis.call('HDEL', held, note)
      ghosts[#ghosts + 1] = { source, id, of[id][3] }
    end
  end
  left = left - #rows
end

local function look(source, log, info)
  local of = {}
  for at = 1, #info, 2 do
    of[info[at]] = info[at + 1]
  end
  if not alive[of.name] then
    local rows = {}
    if left > 0 and of.pending > 0 then
      rows = redis.call('XPENDING', log, group, 'IDLE', idle_ms, '-', '+', left, of.name)
    end
    if #rows > 0 then
      take(source, log, rows)
    end
    if of.pending > #rows then
      for _, row in ipairs(redis.call('XPENDING', log, group, '-', '+', 10, of.name)) do
        local wait_ms = math.max(idle - row[3], 0)
        next_ms = next_ms < 0 and wait_ms or math.min(next_ms, wait_ms)
      end
    elseif of.idle >= idle then
      -- In one step with the look: nothing can be handed to it in between.
      redis.call('XGROUP', 'DELCONSUMER', log, group, of.name)
      removed = removed + 1
    end
  end
end
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', log, group)) do
  look('log', log, info)
end
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', retry_log, group)) do
  look('retry', retry_log, info)
end
return { next_ms, removed, now_ms, entries, ghosts }
