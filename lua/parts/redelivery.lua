-- redelivery: notes the redelivery of an entry that has a unique id in its first field, so that a send with the id can
-- see whether it is settled. An error (a key of the wrong type) only ends the id early.
local function note_redelivery(unique, unique_retry, origin, id, name, value)
  if name == 'packed' then
    local readable, fields = pcall(cmsgpack.unpack, value)
    fields = readable and type(fields) == 'table' and fields or {}
    name, value = fields[1], fields[2]
  end
  local known = name == 'mq:unique' and value and redis.pcall('HGET', unique, value)
  if type(known) == 'string' and string.match(known, '^(%S+) ') == origin then
    redis.pcall('HSET', unique_retry, origin, id)
  end
end
