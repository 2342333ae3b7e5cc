-- reserve_members: reserves numbers of a batch, after blocks were confirmed.
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
-- ARGV[2] count of the numbers, at most 4,096
-- ARGV[3] token of the block
-- ARGV[4] target topic or delay queue to which the messages are sent
-- ARGV[5] confirmed... from, to, token, used, count of those that failed, and these, of each block
-- include clock, body, batches
-- returns the first number, or 'gone', 'sealed' or 'full', or {from, to} of a block that the server does not know
local batch, done, dead, left, results, batches, log, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local id, count, token, target = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local MOST = 10000000

local _, now_ms, now_text = clock()
local known = read_batch(batch, done, dead, left, results, batches, log, notes, id, now_ms)
if not known then
  return 'gone'
elseif known.sealed > 0 or known.sealing > 0 then
  return 'sealed'
end
local confirmed, lost = read_confirmed(known, ARGV, 5, { open = true, confirmed = true })
if lost then
  return lost
elseif next_behind(known, confirmed) + count > MOST then
  return 'full'
end
confirm(known, confirmed)
local from = known.next
known.next = from + count
if known.next > from then
  set_block(batch, string.format('%.0f', from), known.next, token, 'open', target)
end
write_batch(known, now_ms, now_text)
return from
