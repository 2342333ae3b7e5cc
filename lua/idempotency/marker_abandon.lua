-- marker_abandon: deletes the marker of a running operation, so that the next begin starts it.
-- KEYS[1] marker STRING 'r ttl token holder' while the operation runs, 'd token result' once it is done
-- ARGV[1] token of the begin
-- returns 1, 0 if there is no marker, or the error FENCED
local marker = KEYS[1]
local token = ARGV[1]

local stored = redis.call('GET', marker)
if stored and string.match(stored, '^r %d+ (%S+) ') ~= token then
  return redis.error_reply('FENCED another caller runs the operation, or it is done')
end
return redis.call('DEL', marker)
