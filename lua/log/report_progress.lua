-- report_progress: stores what a handler says of its work on a message, for whoever waits for its result.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entry was read from
-- KEYS[3] progress HASH changes, lines; done, line:0 to line:99: 'number ms attempt done text'
-- ARGV[1] mode 'lease', or 'consumer': then the entry has to be pending under its name
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that handles it
-- ARGV[4] id of the entry
-- ARGV[5] keep_ms how long the lines are kept, from now on
-- ARGV[6] attempt its number
-- ARGV[7] lines... done (a fraction, or '-') and text of each, at most 100
-- include clock, fence, result
-- returns 1, or the error FENCED
local fence, stream, progress = KEYS[1], KEYS[2], KEYS[3]
local mode, who, group, id, keep_ms, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

if not may_change(fence, mode, who) then
  return fenced()
end
if mode == 'consumer' then
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, who)
  if pending.err and not string.find(pending.err, 'NOGROUP', 1, true) then
    return pending
  end
  if #pending == 0 then
    return fenced('entry')
  end
end
local _, _, now_text = clock()
add_lines(progress, keep_ms, attempt, now_text, { unpack(ARGV, 7) })
return 1
