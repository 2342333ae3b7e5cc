-- result: stores what became of a message, for whoever asked for that under the number in the key: '+' and a reply, '='
-- without one, '-' a failure. A reply stays; a failure is replaced, since a dead letter may be replayed, and '=' by a reply,
-- since another group may have one. What is no result is replaced too, of whatever type it is.
local function store_result(key, keep_ms, result)
  local kind = redis.call('TYPE', key).ok == 'string' and redis.call('GETRANGE', key, 0, 0)
  if kind ~= '+' and (kind ~= '=' or string.sub(result, 1, 1) == '+') then
    redis.call('SET', key, result, 'PX', keep_ms)
  end
end
