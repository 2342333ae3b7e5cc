-- seek: moves a group's position in the log, and releases the lease; pending entries of the log are forgotten.
-- KEYS[1] lease STRING the token while the lease is valid
-- KEYS[2] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[3] log STREAM the partition's log
-- KEYS[4] held HASH notes of pending entries by source and id
-- KEYS[5] packs STREAM by the ids of packs: how many messages each holds, and how many more than entries all hold
-- KEYS[6] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- KEYS[7] gate STREAM of the last reader
-- ARGV[1] token of the lease
-- ARGV[2] group that reads
-- ARGV[3] position above which reading continues: an id, '0' or '$'; one beyond the end of the log is its end
-- ARGV[4] reader the word of the last reader, or ''
-- include fence, ids
-- returns 1, {'READER', word of the last reader} if it is another one, or the errors FENCED or NOGROUP
local lease, fence, log, held, packs, settled, gate = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, group, position, reader = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MAX_VALUES = 2000

if not is_owner(fence, token) then
  return fenced()
end
local other = other_reader(fence, reader)
if other then
  return other
end
-- Read first: a key of the wrong type, or a missing group, is detected before anything is changed.
local notes, gone = redis.call('HKEYS', held), {}
redis.call('XPENDING', log, group)
redis.call('HDEL', settled, '')
-- The token is removed first: even if the rest fails, nothing that was handed out before can be settled. The same ids
-- are handed out again from here on, and a settlement that is under way would remove them from the pending list. DEL is
-- never refused: a server that is out of memory then accepts the others too.
redis.call('DEL', lease, gate)
redis.call('HSET', fence, 'token', '', 'reader', '')
redis.call('XGROUP', 'DESTROY', log, group)
redis.call('XGROUP', 'CREATE', log, group, '$')
for _, list in ipairs(position ~= '$' and redis.call('XINFO', 'GROUPS', log) or {}) do
  local info = map(list)
  -- Never beyond the end: later entries would be skipped.
  if info.name == group and (position == '0' or wide(position) < wide(info['last-delivered-id'])) then
    redis.call('XGROUP', 'DESTROY', log, group)
    redis.call('XGROUP', 'CREATE', log, group, position)
  end
end
for _, note in ipairs(notes) do
  if string.sub(note, 1, 4) == 'log:' then
    gone[#gone + 1] = note
  end
end
for at = 1, #gone, MAX_VALUES do
  redis.call('HDEL', held, unpack(gone, at, math.min(at + MAX_VALUES - 1, #gone)))
end
redis.call('DEL', settled)
-- A pack that holds the position is read again as a whole: what it holds up to the position is noted as settled.
local above = '(' .. position
local pack = position ~= '0' and position ~= '$' and redis.pcall('XRANGE', packs, above, '+', 'COUNT', 1)[1]
if pack then
  local ms, seq = string.match(position, '^(%d+)%-(%d+)$')
  local pack_ms, pack_seq = string.match(pack[1], '^(%d+)%-(%d+)$')
  local count = tonumber(pack[2][2])
  local settled_count, bytes = count - (pack_seq - seq), {}
  if pack_ms == ms and settled_count > 0 then
    for at = 1, math.ceil(count / 8) do
      local here = math.min(math.max(settled_count - 8 * (at - 1), 0), 8)
      bytes[at] = string.char(2 ^ here - 1)
    end
    local bits, id = table.concat(bytes), pack[1]
    redis.call('HSET', settled, id, bits)
  end
end
return 1
