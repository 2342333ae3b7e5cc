-- audit: checks one page of a group's data on a partition for contradictions.
-- KEYS[1] stream STREAM the log or retry log
-- KEYS[2] retry_due ZSET origins by due time in milliseconds
-- KEYS[3] retry_items HASH bodies by origin
-- KEYS[4] held HASH notes of pending entries by source and id
-- KEYS[5] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[6] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- ARGV[1] check 'parked', 'parked_bodies', 'pending', 'retry_log' or 'notes'
-- ARGV[2] source 'log' or 'retry': which one the stream is
-- ARGV[3] group whose data is checked
-- ARGV[4] after where the previous page ended, or '' to start
-- ARGV[5] limit maximum number of items to check, up to 100
-- returns {where to continue or '', how many were checked, findings as {fault, id, detail}}
local stream, retry_due, retry_items, held, packs, settled = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local check, source, group, after, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MAX_BYTES, PORTION = 1048576, 5

local all = redis.pcall('XPENDING', stream, group)
if all.err and not string.find(all.err, 'NOGROUP', 1, true) then
  return all
end
local looked, bytes, findings = 0, 0, {}
local function found(fault, id, detail)
  findings[#findings + 1] = { fault, id, detail }
end
-- A message of a pack is pending while the pack is and the message is not settled. Returns the pack that holds an id,
-- and the
-- place of the message in it.
local function pack_of(id)
  local above = source == 'log' and redis.pcall('XRANGE', packs, id, '+', 'COUNT', 1)
  local pack = above and not above.err and above[1]
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  local pack_ms, pack_seq = string.match(pack and pack[1] or '', '^(%d+)%-(%d+)$')
  local count = pack and tonumber(pack[2][2])
  if pack and ms == pack_ms and pack_seq - seq < count then
    return pack[1], count - 1 - (pack_seq - seq)
  end
end
local function is_settled(pack, place)
  local bits = redis.call('HGET', settled, pack)
  local byte = bits and string.byte(bits, math.floor(place / 8) + 1)
  return byte and bit.band(byte, bit.lshift(1, place % 8)) ~= 0
end
-- A missing group has nothing pending, nor has text that is no id.
local function pending(id)
  local pack, place = pack_of(id)
  local at = pack or id
  local rows = redis.pcall('XPENDING', stream, group, at, at, 1)
  return not rows.err and not (pack and is_settled(pack, place)) and rows[1]
end
-- Whether a pending pack that `packs` does not know, since another program has deleted it there, may hold a message: it
-- has the same milliseconds then.
local function may_be_held(id)
  local rows = source == 'log' and not pack_of(id) and redis.pcall('XPENDING', stream, group, id, '+', 1)
  return rows and rows[1] and string.match(rows[1][1], '^%d+') == string.match(id, '^%d+')
end
local function entry(id)
  local found_there = redis.pcall('XRANGE', stream, id, id)
  local fields = not found_there.err and found_there[1] and found_there[1][2]
  for at = 1, fields and #fields or 0 do
    bytes = bytes + #fields[at]
  end
  return fields
end

local next_at = ''
if check == 'parked' then
  local page = redis.call('ZSCAN', retry_due, after == '' and '0' or after, 'COUNT', limit)
  next_at = page[1] ~= '0' and page[1] or ''
  for at = 1, #page[2], 2 do
    local origin, due = page[2][at], page[2][at + 1]
    looked = looked + 1
    if redis.call('HEXISTS', retry_items, origin) == 0 then
      found('retry_lost', origin, 'due ' .. due)
    else
      local row = pending(origin)
      -- After too many bytes of bodies the rest is reported unchecked: a repair checks again.
      if row and (bytes >= MAX_BYTES or entry(pack_of(origin) or origin)) then
        found('pending_and_parked', source .. ':' .. origin, 'pending under ' .. row[2] .. ', parked until ' .. due)
      end
    end
  end
elseif check == 'parked_bodies' or check == 'notes' then
  -- Without the bodies, if the server supports NOVALUES.
  local key, cursor, step = check == 'notes' and 4 or 3, after == '' and '0' or after, 1
  local page = key == 4 and redis.pcall('HSCAN', held, cursor, 'COUNT', limit, 'NOVALUES')
    or redis.pcall('HSCAN', retry_items, cursor, 'COUNT', limit, 'NOVALUES')
  if page.err then
    step = 2
    page = key == 4 and redis.call('HSCAN', held, cursor, 'COUNT', limit)
      or redis.call('HSCAN', retry_items, cursor, 'COUNT', 10)
  end
  next_at = page[1] ~= '0' and page[1] or ''
  for at = 1, #page[2], step do
    local name = page[2][at]
    local whose, id = string.match(name, '^(%a+):(%d+%-%d+)$')
    if key == 3 then
      looked = looked + 1
      if not redis.call('ZSCORE', retry_due, name) then
        found('retry_stranded', name, 'without a due time')
      end
    elseif whose == source then
      looked = looked + 1
      if not pending(id) and not may_be_held(id) then
        found('note_stray', name, 'not pending')
      end
    end
  end
elseif check == 'pending' and not all.err then
  local rows = redis.call('XPENDING', stream, group, after == '' and '-' or after, '+', limit)
  for _, row in ipairs(rows) do
    -- The page begins with the last entry of the previous page.
    if row[1] ~= after and bytes < MAX_BYTES then
      local fields = entry(row[1])
      looked, next_at = looked + 1, row[1]
      if not fields then
        found('ghost', source .. ':' .. row[1], 'pending under ' .. row[2])
      elseif source == 'retry' and fields[3] == 'origin' and redis.call('ZSCORE', retry_due, fields[4]) then
        found('pending_and_parked', source .. ':' .. row[1], 'parked as ' .. fields[4])
      end
    end
  end
  if #rows < tonumber(limit) and bytes < MAX_BYTES then
    next_at = ''
  end
elseif check == 'retry_log' and not all.err then
  local delivered = '0-0'
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for at = 1, #flat, 2 do
      info[flat[at]] = flat[at + 1]
    end
    delivered = info.name == group and info['last-delivered-id'] or delivered
  end
  local from, more = after == '' and '-' or '(' .. after, true
  for _ = 1, tonumber(limit) / PORTION do
    local page = more and bytes < MAX_BYTES and redis.call('XRANGE', stream, from, delivered, 'COUNT', PORTION) or {}
    for _, one in ipairs(page) do
      looked, from, next_at = looked + 1, '(' .. one[1], one[1]
      for at = 1, #one[2] do
        bytes = bytes + #one[2][at]
      end
      if not pending(one[1]) then
        found('retry_leaked', one[1], 'handed out, not pending')
      end
    end
    more = more and (#page == PORTION or bytes >= MAX_BYTES)
  end
  next_at = more and next_at or ''
end
return { next_at, looked, findings }
