-- put_dead: imports dead letters that were exported before, each under a new id and at most once.
-- KEYS[1] dlq STREAM the group's dead letters
-- KEYS[2] dead_imports HASH new ids by former ids
-- ARGV[1] again '1' to import letters again that were imported before
-- ARGV[2] memory_ms for how long imports are remembered
-- ARGV[3] letters... the former id, how many values follow, names and values of the entry; at most 100
-- returns {done, ids}: the new ones, or '' for skipped letters; it stops when letters present under former ids reach
-- 1 MiB; the caller repeats those after the first `done`
local dlq, dead_imports = KEYS[1], KEYS[2]
local again, memory_ms = ARGV[1], ARGV[2]
local MAX_BYTES = 1048576

local done, bytes, ids, at = 0, 0, {}, 3
for _ = 1, #ARGV do
  if at > #ARGV or bytes >= MAX_BYTES then
    break
  end
  local id, count = ARGV[at], tonumber(ARGV[at + 1])
  local first = at + 2
  at, done = first + count, done + 1
  ids[done] = ''
  local there = redis.call('XRANGE', dlq, id, id)[1]
  for _, value in ipairs(there and there[2] or {}) do
    bytes = bytes + #value
  end
  if not there and (again == '1' or redis.call('HEXISTS', dead_imports, id) == 0) then
    -- Put before it is noted: a failure in between leaves a second copy, never a loss.
    ids[done] = redis.call('XADD', dlq, '*', unpack(ARGV, first, first + count - 1))
    redis.call('HSET', dead_imports, id, ids[done])
  end
end
redis.call('PEXPIRE', dead_imports, memory_ms)
return { done, ids }
