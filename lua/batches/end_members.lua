-- end_members: says of members of a batch how they ended, and sends what that is the occasion for.
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
-- ARGV[2] count of those that are done
-- ARGV[3] all how many there are, at most 1,000
-- ARGV[4] numbers... of those that are done, then of those that are dead; then number and result of each that has one
-- include clock, body, batches
-- returns 1 if it has ended and is a member itself, 0 otherwise, or nil if it does not exist
local batch, done, dead, left, results, batches, log, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local id, count, all = ARGV[1], ARGV[2], ARGV[3]

local _, now_ms, now_text = clock()
local known = read_batch(batch, done, dead, left, results, batches, log, notes, id, now_ms)
if not known then
  return nil
end
local completed, died = {}, {}
for at = 4, 3 + all do
  -- A number that was never reserved is nobody's.
  if tonumber(ARGV[at]) < known.next then
    local ended = at <= 3 + count and completed or died
    ended[#ended + 1] = ARGV[at]
  end
end
local first = set_bits(known, 'done', completed, 1)
set_bits(known, 'dead', first, 0)
set_bits(known, 'left', first, 0)
-- What is done stays done.
local dies = set_bits(known, 'dead', with_bit(known, 'done', died, 0), 1)
set_bits(known, 'left', dies, 0)
local has_results = redis.call('HLEN', results) > 0
if has_results and #first > 0 then
  -- That of a failure is not that of what is done by now.
  redis.call('HDEL', results, unpack(first))
end
if #ARGV > 3 + all then
  local takes, texts = {}, {}
  for _, number in ipairs(first) do
    takes[number] = true
  end
  for _, number in ipairs(dies) do
    takes[number] = true
  end
  for at = 4 + all, #ARGV, 2 do
    if takes[ARGV[at]] then
      texts[#texts + 1], texts[#texts + 2] = ARGV[at], ARGV[at + 1]
    end
  end
  if #texts > 0 then
    known.fresh = known.fresh or not has_results
    redis.call('HSET', results, unpack(texts))
  end
end
send_events(known, now_ms)
write_batch(known, now_ms, now_text)
return known.ended > 0 and known.parent ~= '' and 1 or 0
