-- seal_batch: seals a batch after blocks were confirmed, and sends what it is the occasion for.
-- KEYS[1] batch HASH next, sealed, done, dead, left, ended, succeeded, keep, parent, every, told, died, touched,
--   created; block:<from>: 'to token state target'; on:<event>: the message for it
-- KEYS[2] done STRING a bit for each member that is done
-- KEYS[3] dead STRING a bit for each member that is dead
-- KEYS[4] left STRING a bit for each number that is none of a member
-- KEYS[5] results HASH results of members, by number
-- KEYS[6] batches ZSET batches of the partition by the time in milliseconds at which they expire
-- KEYS[7] log STREAM the log of the partition, to which it sends its messages
-- KEYS[8] notes STREAM members of batches that ended here: 'number word' by the batch
-- ARGV[1] id of the batch
-- ARGV[2] mode 'seal', or 'close' of who does not know its members
-- ARGV[3] confirmed... from, to, token, used, count of those that failed, and these, of each block
-- include clock, body, batches
-- returns 'ok', or 'more' if it has to be called again, or 'gone', or 'sealed' if it was sealed without one of the
--   blocks, or {from, to} of a block that the server does not know
local batch, done, dead, left, results, batches, log, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local id, mode = ARGV[1], ARGV[2]
local BLOCKS = 8

local _, now_ms, now_text = clock()
local known = read_batch(batch, done, dead, left, results, batches, log, notes, id, now_ms)
if not known then
  return 'gone'
elseif known.sealed > 0 then
  local _, lost = read_confirmed(known, ARGV, 3, { confirmed = true })
  return lost and 'sealed' or 'ok'
end
local confirmed, lost = read_confirmed(known, ARGV, 3, { open = true, confirmed = true })
if lost then
  return known.sealing > 0 and 'sealed' or lost
end
confirm(known, confirmed)
known.sealing = 1
-- A member is what somebody confirmed.
local fields, closed = redis.call('HKEYS', batch), 0
for _, field in ipairs(fields) do
  local from = string.match(field, '^block:(%d+)$')
  local to, token, state, target
  if from then
    to, token, state, target = block_of(batch, from)
  end
  if state == 'open' and closed == BLOCKS then
    -- Bounds the time for which the script blocks the server.
    write_batch(known, now_ms, now_text)
    return 'more'
  elseif state == 'open' then
    closed = closed + 1
    if mode == 'close' then
      known.closed = 1
    end
    leave_out(known, numbers_of(tonumber(from), to))
    set_block(batch, from, to, token, 'closed', target)
  end
end
known.sealed, known.fresh = now_ms, true
send_events(known, now_ms)
write_batch(known, now_ms, now_text)
return 'ok'
