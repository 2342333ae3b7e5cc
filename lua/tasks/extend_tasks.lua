-- extend_tasks: extends claims, and records that handlers begin.
-- KEYS[1] claims ZSET claimed tasks by the expiry time of their claim in milliseconds
-- KEYS[2] task_states HASH 'due attempt crashes begun hold token error\nhistory' by id, of tasks ever claimed
-- ARGV[1] hold_us for how long the claims hold from now
-- ARGV[2] begun '1' if handlers begin with them, else '0'
-- ARGV[3] tasks... id and token of each, at most 100
-- include clock, identity
-- returns {now_ms, server, for each 1 if the claim is still that one, else 0}
local claims, task_states = KEYS[1], KEYS[2]
local hold_us, begun = ARGV[1], ARGV[2]

local now_us, now_ms = clock()
local deadline = string.format('%.0f', math.ceil((now_us + hold_us) / 1000))
local hold = string.format('%.0f', math.ceil(hold_us / 1000))
-- A write that is never refused comes first: a server that is out of memory then accepts the other too.
redis.call('ZREM', claims, '')
local ids, ours, adds, sets = {}, {}, {}, {}
for at = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
end
local claimed, known = redis.call('ZMSCORE', claims, unpack(ids)), redis.call('HMGET', task_states, unpack(ids))
for i, id in ipairs(ids) do
  local first, told, held, token, rest = string.match(known[i] or '', '^(%d+ %d+ %d+) ([01]) (%d+) (%S+)( .*)$')
  ours[i] = claimed[i] and token == ARGV[2 * i + 2] and 1 or 0
  if ours[i] == 1 then
    adds[#adds + 1], adds[#adds + 2] = deadline, id
    local tells = begun == '1' and '1' or told
    if tells ~= told or hold ~= held then
      sets[#sets + 1], sets[#sets + 2] = id, string.format('%s %s %s %s', first, tells, hold, token) .. rest
    end
  end
end
if #adds > 0 then
  redis.call('ZADD', claims, 'XX', unpack(adds))
end
if #sets > 0 then
  redis.call('HSET', task_states, unpack(sets))
end
-- Time and identity of the server, as claim_tasks returns them: so a worker without room keeps its continuity.
return { now_ms, identity(), ours }
