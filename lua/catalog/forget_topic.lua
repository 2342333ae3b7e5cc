-- forget_topic: marks a topic as being deleted: it no longer exists for other clients. Removes the mark last.
-- KEYS[1] meta HASH the topic's settings
-- KEYS[2] deleted STRING when the topic was deleted, in milliseconds, while that is remembered
-- KEYS[3] partitions SET the keys of the topic's logs
-- KEYS[4] groups SET the names of the topic's groups
-- KEYS[5] dictionaries HASH the dictionaries of the topic's packs, by version
-- ARGV[1] stage 'begin' or 'end'
-- ARGV[2] deletion a unique name for it; at the end the name that the beginning has returned
-- ARGV[3] remember_ms for how long the deletion is remembered
-- include clock
-- returns at the beginning {deletion, partitions or nil}: which one is under way, if one was already, and how many
--   partitions the topic has or had, if there is one; at the end {deletion, nil} of what was under way, or {nil, nil}
local meta, deleted, partitions, groups, dictionaries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local stage, deletion, remember_ms = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', meta, 'partitionCount', 'deleting', 'deletion', 'reborn')
if stage == 'end' then
  -- Another client may have ended this deletion, and the topic been created since: the new one must not change.
  if known[3] == deletion then
    redis.call('UNLINK', partitions, groups, dictionaries, meta)
  end
  return { known[3], false }
end
local _, now_ms = clock()
-- A write that is never refused comes first: a server that is out of memory then accepts the others too.
redis.call('HDEL', meta, '')
local count = known[1] or known[2]
if count == '0' then
  -- Marked by a deletion that found no settings.
  count = false
elseif count then
  -- A topic that is created later must have a larger generation, even if the clock went back.
  local when = math.max(now_ms, tonumber(known[4] or '0') or 0)
  redis.call('SET', deleted, string.format('%.0f', when), 'PX', remember_ms)
end
-- A topic without settings is marked too: another client could create it before its remaining keys are deleted.
redis.call('HSET', meta, 'deleting', count or '0', 'deletion', known[3] or deletion)
redis.call('HDEL', meta, 'partitionCount')
return { known[3] or deletion, count }
