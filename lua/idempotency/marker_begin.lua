-- marker_begin: begins an operation, unless it is done or another caller runs it.
-- KEYS[1] marker STRING 'r ttl token holder' while the operation runs, 'd token result' once it is done
-- ARGV[1] token unique to this begin
-- ARGV[2] holder name of the caller, which other callers get
-- ARGV[3] ttl_ms validity of the marker
-- returns {0} if begun, {1, result} if it is done, {2, holder, pttl} if it runs, or the error WRONGTYPE
local marker = KEYS[1]
local token, holder, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local stored = redis.call('GET', marker)
if stored then
  local ttl, other, who = string.match(stored, '^r (%d+) (%S+) (.*)$')
  local result = not ttl and string.match(stored, '^d %S+ (.*)$')
  if result then
    return { 1, result }
  elseif not ttl then
    return redis.error_reply('WRONGTYPE the key holds something that is no marker')
  elseif other ~= token then
    -- A remaining time above every granted ttl means that the clock went back, and one without expiry was written by
    -- another program. Neither may block the operation for ever, so both count as free.
    local pttl = redis.call('PTTL', marker)
    if pttl > 0 and pttl <= 2 * ttl then
      return { 2, who, pttl }
    end
  end
end
-- A write that is never refused comes first: a server that is out of memory then accepts the other too.
redis.call('PEXPIRE', marker, ttl_ms)
local running = string.format('r %s %s %s', ttl_ms, token, holder)
redis.call('SET', marker, running, 'PX', ttl_ms)
return { 0 }
