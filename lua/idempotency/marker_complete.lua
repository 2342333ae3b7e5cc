-- marker_complete: completes an operation: its marker is done, with the result, for the retention.
-- KEYS[1] marker STRING 'r ttl token holder' while the operation runs, 'd token result' once it is done
-- ARGV[1] token of the begin
-- ARGV[2] result of the operation, at most 64 KiB
-- ARGV[3] retention_ms for how long the marker stays
-- returns 1 if it is done now, 0 if this caller had completed it before, or the error FENCED
local marker = KEYS[1]
local token, result, retention_ms = ARGV[1], ARGV[2], ARGV[3]

local stored = redis.call('GET', marker)
if stored and string.match(stored, '^d (%S+) ') == token then
  -- The reply to an earlier call was lost.
  return 0
elseif stored and string.match(stored, '^r %d+ (%S+) ') ~= token then
  return redis.error_reply('FENCED another caller runs the operation, or has completed it')
end
-- A write that is never refused comes first: a server that is out of memory then accepts the other too.
redis.call('PEXPIRE', marker, retention_ms)
local done = table.concat({ 'd', token, result }, ' ')
redis.call('SET', marker, done, 'PX', retention_ms)
return 1
