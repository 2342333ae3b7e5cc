-- audit_place: checks one page of the waiting items of a place, or of its recurring rules, for contradictions.
-- KEYS[1] delay ZSET ids by due time in milliseconds
-- KEYS[2] delay_items HASH bodies by id; at a shard also of claimed tasks
-- KEYS[3] claims ZSET claimed tasks by the expiry time of their claim in milliseconds; at a partition not used
-- KEYS[4] task_states HASH state by id, of tasks that were ever claimed; at a partition not used
-- KEYS[5] recur ZSET ids of recurring rules by next due time
-- KEYS[6] recur_items HASH rule, pause, next time and body of recurring rules, by id
-- ARGV[1] place 'partition' or 'shard'
-- ARGV[2] check 'waiting', 'claims', 'bodies', 'states', 'rules' or 'rule_times'
-- ARGV[3] after where the previous page ended, or '' to start
-- ARGV[4] limit approximate number of items to check, up to 100
-- returns {where to continue or '', how many were checked, findings as {fault, id, detail}}
local delay, delay_items, claims, task_states, recur, recur_items = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local place, check, after, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local shard, cursor, step = place == 'shard', after == '' and '0' or after, 2

local page
if check == 'waiting' then
  page = redis.call('ZSCAN', delay, cursor, 'COUNT', limit)
elseif check == 'claims' then
  page = redis.call('ZSCAN', claims, cursor, 'COUNT', limit)
elseif check == 'rules' then
  -- With the bodies, behind which is whether a rule is to be due.
  page = redis.call('HSCAN', recur_items, cursor, 'COUNT', 10)
elseif check == 'rule_times' then
  page = redis.call('ZSCAN', recur, cursor, 'COUNT', limit)
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
for at = 1, check == 'rule_times' and #page[2] or 0, step do
  looked = looked + 1
  if redis.call('HEXISTS', recur_items, page[2][at]) == 0 then
    found('rule_lost', page[2][at], 'due ' .. page[2][at + 1])
  end
end
for at = 1, check == 'rules' and #page[2] or 0, step do
  local id, readable, rule = page[2][at], pcall(cmsgpack.unpack, page[2][at + 1])
  local next = readable and type(rule) == 'table' and #rule >= 5 and rule[2] == '0' and rule[3]
  looked = looked + 1
  if type(next) == 'string' and string.find(next, '^%d+$') and not redis.call('ZSCORE', recur, id) then
    found('rule_stranded', id, 'due ' .. next)
  end
end
for at = 1, string.sub(check, 1, 4) ~= 'rule' and #page[2] or 0, step do
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
