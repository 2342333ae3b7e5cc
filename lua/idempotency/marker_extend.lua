-- marker_extend: extends the marker of a running operation; one that expired is revived, as long as nobody began since.
-- KEYS[1] marker STRING 'r ttl token holder' while the operation runs, 'd token result' once it is done
-- ARGV[1] token of the begin
-- ARGV[2] holder name of the caller
-- ARGV[3] ttl_ms validity of the marker from now
-- returns 1, or the error FENCED
local marker = KEYS[1]
local token, holder, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local stored = redis.call('GET', marker)
if stored and string.match(stored, '^r %d+ (%S+) ') ~= token then
  return redis.error_reply('FENCED another caller runs the operation, or it is done')
end
-- A write that is never refused comes first: a server that is out of memory then accepts the other too.
redis.call('PEXPIRE', marker, ttl_ms)
local running = string.format('r %s %s %s', ttl_ms, token, holder)
redis.call('SET', marker, running, 'PX', ttl_ms)
return 1
