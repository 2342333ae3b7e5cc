-- read_steps: returns what handlers have done of a message or task.
-- KEYS[1] steps HASH steps of messages or tasks, by id
-- ARGV[1] id of the message's entry in the log, or of the task
-- include clock
-- returns the time in milliseconds, and the steps or nil
local steps = KEYS[1]
local id = ARGV[1]
local _, now_ms = clock()
return { now_ms, redis.call('HGET', steps, id) }
