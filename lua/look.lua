-- look: how a log and all its groups stand, at one moment.
-- KEYS[1] log STREAM a partition's log
-- ARGV[1] who '1' to be told which server this is, or ''
-- returns {now_ms, length or nil, first id or nil, last id or nil, removed or nil, largest id that was deleted or nil,
--   server or nil, groups}, each group as {name, position, pending, oldest pending id or nil, first unread id or nil,
--   lag or nil}
local log = KEYS[1]
local who = ARGV[1]

local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
if redis.call('EXISTS', log) == 0 then
  return { now_ms, false, false, false, false, false, false, {} }
end
local function map(flat)
  local fields = {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields
end
-- Text, since a number becomes an integer and a missing one nil.
local function text(number)
  return number and string.format('%.0f', number)
end

local info = map(redis.call('XINFO', 'STREAM', log))
local first, last = info['first-entry'], info['last-entry']
local added = info['entries-added']
local groups = {}
for i, flat in ipairs(redis.call('XINFO', 'GROUPS', log)) do
  local group = map(flat)
  local position = group['last-delivered-id']
  local pending = group.pending > 0 and redis.call('XPENDING', log, group.name, '-', '+', 1)[1]
  local unread = false
  if last and last[1] ~= position then
    -- Above the largest id there can be, there is nothing to ask for.
    local above = '(' .. position
    local entries = redis.pcall('XRANGE', log, above, '+', 'COUNT', 1)
    unread = entries[1] and entries[1][1] or false
  end
  groups[i] =
    { group.name, position, group.pending, pending and pending[1], unread, text(group.lag) or false }
end
-- It changes with every restart and fail-over: what was known of the log before may not hold after one.
local server = false
if who == '1' then
  local process, history = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
  if type(process) == 'string' and type(history) == 'string' then
    local run, replica = string.match(process, 'run_id:(%x+)'), string.match(history, 'master_replid:(%x+)')
    server = run and replica and run .. ' ' .. replica
  end
end
return {
  now_ms,
  info.length,
  first and first[1],
  last and last[1],
  added and text(added - info.length) or false,
  info['max-deleted-entry-id'] or false,
  server or false,
  groups,
}
