-- cancel: removes messages that still wait.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id; at a shard also of claimed tasks
-- KEYS[3] states HASH state of a shard's tasks, by id; at a partition delay_items again, and not used
-- KEYS[4] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[5] steps HASH steps of a shard's tasks, by id; at a partition delay_items again, and not used
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] ids... of the messages, at most 200
-- include body, result
-- returns for each 1 if it waited, else 0
local delay, delay_items, states, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local place = ARGV[1]

-- Read first: a key of the wrong type is detected before anything is changed.
redis.call('HLEN', delay_items)
local known = place == 'shard' and redis.call('HLEN', states) > 0
local results = {}
for at = 2, #ARGV do
  local id = ARGV[at]
  results[at - 1] = redis.call('ZREM', delay, id)
  if results[at - 1] == 1 then
    local item = redis.call('HGET', delay_items, id)
    -- Few are members, and a body may be large.
    if item and string.find(item, 'h:millstream-batch', 1, true) then
      note_death(notes, values_of(item, 0) or {}, 1)
    end
    redis.call('HDEL', delay_items, id)
    if known then
      redis.call('HDEL', states, id)
      redis.call('HDEL', steps, id)
    end
  end
end
return results
