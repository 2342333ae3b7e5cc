-- audit_place: checks one page of the waiting items of a place for contradictions.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id; at a shard also of claimed tasks
-- KEYS[3] claims ZSET claimed tasks by the expiry time of their claim in milliseconds; at a partition not used
-- KEYS[4] task_states HASH state by id, of tasks that were ever claimed; at a partition not used
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] check 'waiting', 'claims', 'bodies' or 'states'
-- ARGV[3] after where the previous page ended, or '' to start
-- ARGV[4] limit approximate number of items to check, up to 100
-- returns {where to continue or '', how many were checked, findings as {fault, id, detail}}
local delay, delay_items, claims, task_states = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local place, check, after, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local shard, cursor, step = place == 'shard', after == '' and '0' or after, 2

local page
if check == 'waiting' then
  page = redis.call('ZSCAN', delay, cursor, 'COUNT', limit)
elseif check == 'claims' then
  page = redis.call('ZSCAN', claims, cursor, 'COUNT', limit)
elseif check == 'states' then
  page = redis.call('HSCAN', task_states, cursor, 'COUNT', limit)
else
  -- Without the bodies, if the server supports NOVALUES.
  page, step = redis.pcall('HSCAN', delay_items, cursor, 'COUNT', limit, 'NOVALUES'), 1
  if page.err then
    page, step = redis.call('HSCAN', delay_items, cursor, 'COUNT', 10), 2
  end
end
local looked, findings = 0, {}
local function found(fault, id, detail)
  findings[#findings + 1] = { fault, id, detail }
end
for at = 1, #page[2], step do
  local id = page[2][at]
  local waits, body = redis.call('ZSCORE', delay, id), redis.call('HEXISTS', delay_items, id) == 1
  local claimed = shard and redis.call('ZSCORE', claims, id)
  looked = looked + 1
  if (check == 'waiting' or check == 'claims') and not body then
    found('body_lost', id, waits and 'due ' .. waits or 'worked on until ' .. claimed)
  elseif check == 'waiting' and claimed then
    found('task_twice', id, 'due ' .. waits .. ', worked on until ' .. claimed)
  elseif check == 'bodies' and not waits and not claimed then
    found('body_stranded', id, 'without a due time')
  elseif check == 'states' and not waits and not claimed and not body then
    found('state_stray', id, 'no such task')
  end
end
return { page[1] ~= '0' and page[1] or '', looked, findings }
