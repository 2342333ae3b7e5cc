-- store_steps: adds to what the handler of a message has done.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] stream STREAM the log or retry log that the entry was read from
-- KEYS[3] steps HASH steps of messages, by the id of their entry in the log
-- ARGV[1] mode 'lease', or 'consumer': then the entry has to be pending under its name
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that handles it
-- ARGV[4] id of the entry
-- ARGV[5] origin id of its entry in the log
-- ARGV[6] records what is added
-- include fence, steps
-- returns 1, 0 if there would be too much, or the error FENCED
local fence, stream, steps = KEYS[1], KEYS[2], KEYS[3]
local mode, who, group, id, origin, records = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

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
return add_steps(steps, origin, redis.call('HGET', steps, origin) or '', records) and 1 or 0
