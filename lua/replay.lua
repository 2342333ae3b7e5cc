-- replay: moves dead letters back to the group that gave them up, as a first attempt; each at most once.
-- KEYS[1] dlq STREAM the group's dead letters
-- KEYS[2] retry_log STREAM the group's redeliveries
-- ARGV[1] ids... of the dead letters, at most 100
-- returns how many were moved
local dlq, retry_log = KEYS[1], KEYS[2]
local LEAD = { 'reason', 'attempts', 'error', 'origin', 'topic', 'partition', 'group', 'history' }
local MAX_BODY_VALUES = 6000

local moved = 0
for _, id in ipairs(ARGV) do
  local entry = redis.call('XRANGE', dlq, id, id)[1]
  if entry then
    local fields, body, origin, ours = entry[2], {}, id, true
    for i, name in ipairs(LEAD) do
      ours = ours and fields[2 * i - 1] == name
    end
    if ours and string.match(fields[8], '^%d+%-%d+$') then
      origin = fields[8]
    end
    for i = ours and 2 * #LEAD + 1 or 1, #fields do
      body[#body + 1] = fields[i]
    end
    if #body > MAX_BODY_VALUES then
      body = { 'packed', cmsgpack.pack(body) }
    end
    -- Put before remove: a failure in between leaves a second copy, never a hole.
    redis.call('XADD', retry_log, '*', 'attempt', '1', 'origin', origin, 'error', '', 'history', '', unpack(body))
    redis.call('XDEL', dlq, id)
    moved = moved + 1
  end
end
return moved
