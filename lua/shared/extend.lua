-- extend: extends entries of a consumer in shared mode, or marks entries that it will not begin.
-- KEYS[1] stream STREAM the log or retry log that the entries were read from
-- ARGV[1] group that reads
-- ARGV[2] consumer that holds them
-- ARGV[3] idle_ms the idle time that the entries get: 0, or very long for entries that are released
-- ARGV[4] ids... of the entries, at most 500
-- returns the ids of those that are not pending under its name, or are deleted
local stream = KEYS[1]
local group, consumer, idle_ms = ARGV[1], ARGV[2], ARGV[3]

local ours, lost = {}, {}
for at = 4, #ARGV do
  local id = ARGV[at]
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, consumer)
  if pending.err and not string.find(pending.err, 'NOGROUP', 1, true) then
    return pending
  end
  local list = #pending > 0 and ours or lost
  list[#list + 1] = id
end
if #ours == 0 then
  return lost
end
local count, kept = #ours, {}
for _, option in ipairs({ 'IDLE', idle_ms, 'JUSTID' }) do
  ours[#ours + 1] = option
end
-- JUSTID keeps the delivery counts. Deleted entries leave the pending list.
for _, id in ipairs(redis.call('XCLAIM', stream, group, consumer, 0, unpack(ours))) do
  kept[id] = true
end
for at = 1, count do
  if not kept[ours[at]] then
    lost[#lost + 1] = ours[at]
  end
end
return lost
