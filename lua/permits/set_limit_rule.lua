-- set_limit_rule: sets or removes a rule of limits, and tells all holders.
-- KEYS[1] rules HASH what operators allow by pattern, and ':version'
-- KEYS[2] calls STREAM what holders have to know
-- ARGV[1] pattern of the rule
-- ARGV[2] bound units that may be in use at once, or a rate; '' to remove the rule
-- include clock
-- returns the version
local rules, calls = KEYS[1], KEYS[2]
local pattern, bound = ARGV[1], ARGV[2]

local _, now_ms = clock()
-- A key of the wrong type is detected before anything is changed.
redis.call('XLEN', calls)
local last = tonumber(redis.call('HGET', rules, ':version') or '') or 0
-- The clock keeps a version from repeating after the rules were lost.
local version = string.format('%.0f', math.max(last + 1, now_ms))
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', rules, pattern)
if bound == '' then
  redis.call('HSET', rules, ':version', version)
else
  redis.call('HSET', rules, ':version', version, pattern, bound)
end
redis.call('XADD', calls, 'MAXLEN', '~', 10000, '*', 'rules', version)
return version
