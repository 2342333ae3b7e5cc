-- look: returns the state of a log and its groups, and of what else groups have that are named: of one moment unless
-- entries are large, so that a message that moves is seen once.
-- KEYS[1] log STREAM a partition's log
-- KEYS[2] delay ZSET its delayed messages by due time in milliseconds; no key behind the log if ARGV[3] is ''
-- KEYS[3] delay_items HASH their bodies by id
-- KEYS[4] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[5] retry_log... STREAM redeliveries of the first group that is named
-- KEYS[6] retry_due... ZSET its parked retries by due time in milliseconds
-- KEYS[7] retry_items... HASH their bodies by origin
-- KEYS[8] dlq... STREAM its dead letters
-- KEYS[9] settled... HASH what it has settled of pending packs; then these five of each further group
-- ARGV[1] who '1' to request the identity of the server, or ''
-- ARGV[2] after name of a group: to return only the groups after it; or '' to start, and if groups are named
-- ARGV[3] named number of groups whose keys are passed, to return what else they have too; or '' for the log alone
-- ARGV[4] groups... their names, or '' if there are none
-- include clock, identity, ids, size, packs
-- returns {now_ms, 1 if the log exists or 0, length or nil, first id or nil, last id or nil, removed or nil, largest
--   id that was deleted or nil, server or nil, groups, 1 if there are more groups or 0, bytes, waiting, rest}, each
--   group as {name, position, pending, id of the oldest pending entry that exists or nil, first unread id or nil, lag
--   or nil, messages beyond one an entry that are unread, the same of pending ones}, lag and pending in entries;
--   there are more if groups are named and the log has others, too; it stops when bodies reach 1 MiB; bytes
--   is how many were copied; if groups are named, or 0 of them, waiting is {delayed messages, those that are due,
--   messages beyond one an entry in the log, the same of all there ever were, id of the first message or nil}, and
--   rest has for each group, up to where it stops, {entries of its retry log, those that are pending or nil if
--   the group is not on it, parked retries, dead letters, origin of the first entry of the retry log or nil, origin
--   and due time of the first parked retry or nil}; waiting ends with the due time of the first delayed message or
--   nil; -1 instead of a number stands for a key of another type, also instead of the 1
local log, delay, delay_items, packs = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local who, after, named = ARGV[1], ARGV[2], ARGV[3]
local keys, names = KEYS, ARGV
-- MAX_GHOSTS: ghosts that are skipped per group. MAX_PACKS: pending packs per group whose messages are counted.
local MAX_BYTES, MAX_GHOSTS, MAX_PACKS = 1048576, 100, 2000

local _, _, now_ms = clock()
-- Returns the answer to a command, or -1 if its key has another type. Any other error ends the script.
local function of_type(answer)
  if type(answer) == 'table' and answer.err then
    return string.find(answer.err, 'WRONGTYPE', 1, true) and -1 or error(answer)
  end
  return answer
end
-- As text, since Redis converts a number to an integer.
local function text(number)
  return number and string.format('%.0f', number)
end
-- Lua compares text by the server's locale, the list of groups by bytes.
local function up_to(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one <= #other
end

-- A log of another type is an error, unless something else is asked for too.
local exists, info, standing = redis.call('EXISTS', log), {}, {}
if exists == 1 and named ~= '' and of_type(redis.pcall('XLEN', log)) == -1 then
  exists = -1
elseif exists == 1 then
  info = map(redis.call('XINFO', 'STREAM', log))
  standing = redis.call('XINFO', 'GROUPS', log)
end
local first, last = info['first-entry'], info['last-entry']
local added, copied = info['entries-added'], size(first) + size(last)
local deleted = info['max-deleted-entry-id'] and wide(info['max-deleted-entry-id'])
local groups, unread_above, waiting, rest, bytes, more = {}, {}, {}, {}, 0, 0
-- Returns the oldest pending entry of a group that is no ghost: `trim` keeps nothing for a ghost either. Entries are
-- trimmed from the beginning, or deleted one by one up to the largest id that was deleted: so most logs are known to
-- have no ghosts without reading a body. After too many ghosts or bytes, the id may be that of a ghost.
local function oldest_pending(group)
  local from, id = first and first[1], false
  for _ = 0, MAX_GHOSTS do
    local row = from and redis.call('XPENDING', log, group, from, '+', 1)[1]
    if not row then
      return false
    end
    id = row[1]
    if deleted and wide(id) > deleted or bytes >= MAX_BYTES then
      return id
    end
    -- This entry, or the next one that exists: all pending entries before that are ghosts.
    local entry = redis.call('XRANGE', log, id, '+', 'COUNT', 1)[1]
    bytes = bytes + size(entry)
    if entry and entry[1] == id then
      return id
    end
    from = entry and entry[1]
  end
  return id
end
-- Messages beyond one an entry: in all packs there ever were, and in those that have left the log.
local ever, gone, newest = 0, 0, packs and of_type(redis.pcall('XREVRANGE', packs, '+', '-', 'COUNT', 1))
newest = type(newest) == 'table' and newest[1]
if newest then
  ever = tonumber(newest[2][4])
  gone = first and more_up_to(packs, '(' .. first[1]) or ever
end
-- The id of the first message: a pack has that of its last one.
local first_message = first and first[1]
local first_pack = newest and first and redis.call('XRANGE', packs, first_message, first_message)[1]
if first_pack then
  local ms, seq = string.match(first_message, '^(%d+)%-(%d+)$')
  first_message = string.format('%s-%.0f', ms, seq - first_pack[2][2] + 1)
end
-- Returns how many of them a group has not read.
local function more_unread(position)
  if not newest or not first or wide(newest[1]) <= wide(position) then
    return 0
  end
  local more = ever - (wide(position) < wide(first[1]) and gone or more_up_to(packs, position))
  local above = '(' .. position
  -- Of a pack that holds the position, the messages up to it are read.
  local pack = redis.call('XRANGE', packs, above, '+', 'COUNT', 1)[1]
  local ms, seq = string.match(position, '^(%d+)%-(%d+)$')
  local pack_ms, pack_seq = string.match(pack[1], '^(%d+)%-(%d+)$')
  local count, behind = tonumber(pack[2][2]), pack_seq - seq
  return more - (pack_ms == ms and behind < count and wide(pack[1]) >= wide(first[1]) and count - behind or 0)
end
-- Returns how many of them are pending, that is, neither unread nor settled.
local function more_pending(group, settled)
  if not newest or not settled or group.pending == 0 then
    return 0
  end
  local more, partly = 0, of_type(redis.pcall('HLEN', settled)) > 0
  local rows = redis.call('XPENDING', log, group.name, '-', '+', MAX_PACKS)
  -- They take as long as bodies of half a KiB.
  bytes = bytes + 512 * #rows
  for _, row in ipairs(rows) do
    local pack = redis.call('XRANGE', packs, row[1], row[1])[1]
    if pack then
      more = more + tonumber(pack[2][2]) - 1
      local bits = partly and redis.call('HGET', settled, row[1]) or ''
      for at = 1, #bits do
        local byte = string.byte(bits, at)
        for place = 0, 7 do
          more = more - bit.band(bit.rshift(byte, place), 1)
        end
      end
    end
  end
  return more
end
-- Adds a group that is on the log.
local function add(group, settled)
  local position = group['last-delivered-id']
  local oldest = group.pending > 0 and oldest_pending(group.name)
  if unread_above[position] == nil then
    unread_above[position] = false
    if not last or last[1] ~= position then
      -- Above the largest possible id XRANGE returns an error.
      local above = '(' .. position
      local entries = redis.pcall('XRANGE', log, above, '+', 'COUNT', 1)
      unread_above[position], bytes = entries[1] and entries[1][1] or false, bytes + size(entries[1])
    end
  end
  groups[#groups + 1] = { group.name, position, group.pending, oldest, unread_above[position],
    text(group.lag) or false, more_unread(position), more_pending(group, settled) }
end
-- Returns the number of pending entries of a group on its retry log; nil if it is not there, or there is no such log.
local function pending_on(retry_log, name)
  local found = redis.pcall('XINFO', 'GROUPS', retry_log)
  if found.err and not string.find(found.err, 'no such key', 1, true) then
    return error(found)
  end
  for _, flat in ipairs(found) do
    if map(flat).name == name then
      return map(flat).pending
    end
  end
  return false
end
if named ~= '' then
  local by_name = {}
  for _, flat in ipairs(standing) do
    by_name[map(flat).name] = map(flat)
  end
  local total = of_type(redis.pcall('ZCARD', delay))
  -- A body without a time is due: nothing comes for it.
  local stray = total >= 0 and math.max(of_type(redis.pcall('HLEN', delay_items)) - total, 0) or 0
  local due = total > 0 and redis.call('ZCOUNT', delay, '-inf', now_ms) or 0
  waiting = { total + stray, due + stray, ever - gone, ever,
    first_message or false, total > 0 and redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')[2] or false }
  for at = 1, tonumber(named) do
    if bytes >= MAX_BYTES then
      break
    end
    local name, retry_log, retry_due, retry_items, dlq, settled = names[3 + at], unpack(keys, 5 * at, 5 * at + 4)
    if by_name[name] then
      add(by_name[name], settled)
    end
    local length = of_type(redis.pcall('XLEN', retry_log))
    local pending = length ~= -1 and pending_on(retry_log, name)
    local parked, dead = of_type(redis.pcall('ZCARD', retry_due)), of_type(redis.pcall('XLEN', dlq))
    -- One without a due time is parked, too.
    parked = parked >= 0 and math.max(parked, of_type(redis.pcall('HLEN', retry_items))) or parked
    local next_up = length > 0 and redis.call('XRANGE', retry_log, '-', '+', 'COUNT', 1)[1]
    local sleeps = parked > 0 and redis.call('ZRANGE', retry_due, 0, 0, 'WITHSCORES') or {}
    bytes = bytes + size(next_up)
    rest[#rest + 1] = { length, pending, parked, dead, next_up and next_up[2][3] == 'origin' and next_up[2][4],
      sleeps[1] or false, sleeps[2] or false }
  end
  more = #standing > #groups and 1 or 0
else
  for _, flat in ipairs(standing) do
    local group = map(flat)
    if bytes >= MAX_BYTES then
      more = 1
      break
    elseif after == '' or not up_to(group.name, after) then
      add(group)
    end
  end
end
-- The identity changes with every restart and fail-over: earlier results may then be wrong.
local server = who == '1' and identity() or '-'
server = server ~= '-' and server
return {
  now_ms,
  exists,
  info.length or false,
  first and first[1] or false,
  last and last[1] or false,
  added and text(added - info.length) or false,
  info['max-deleted-entry-id'] or false,
  server or false,
  groups,
  more,
  copied + bytes,
  waiting,
  rest,
}
