-- answer_cancel: says in the mark of a cancelled message what becomes of it.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log, or of a consumer the log or retry log that the entry was read from
-- KEYS[3] cancels HASH changes; shared; mark:<id>: 'word ms claim'
-- ARGV[1] mode 'lease', or 'consumer': then the entry has to be pending under its name
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that handles it
-- ARGV[4] entry id of the entry that is pending
-- ARGV[5] origin id of its entry in the log
-- ARGV[6] word 'ahead', 'cancelled', 'withdrawn' or 'stopped'
-- include clock, fence, ids, cancels
-- returns the word of its mark behind this: another one if that stays, or if the group has read what is 'ahead'; nil
--   without a mark; or the error FENCED
local fence, stream, cancels = KEYS[1], KEYS[2], KEYS[3]
local mode, who, group, entry, origin, word = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

if not may_change(fence, mode, who) then
  return fenced()
end
if mode == 'consumer' then
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1, who)
  if pending.err and not string.find(pending.err, 'NOGROUP', 1, true) then
    return pending
  end
  if #pending == 0 then
    return fenced('entry')
  end
end
-- A write that is never refused comes first: a server that is out of memory then accepts the other too.
redis.call('HDEL', cancels, '')
local known = mark_of(cancels, origin)
if not may_replace(word, known) or word == 'ahead' and (mode == 'consumer' or not is_unread(stream, group, origin)) then
  return known
end
local _, _, now_text = clock()
set_mark(cancels, origin, word, '', now_text)
return word
