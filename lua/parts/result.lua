-- result: stores what became of a message, for whoever asked for that under the number in the key: '+' and a reply, '='
-- without one, '-' a failure. A reply stays; a failure is replaced, since a dead letter may be replayed, and '=' by a reply,
-- since another group may have one. What is no result is replaced too, of whatever type it is.
-- `keep` is for how many milliseconds, 0 if nobody asked; of a member of a batch, the batch and 'number word' for a note
-- come behind it, and '+' if the note has the result too.
local function store_result(key, keep, result, notes)
  local keep_ms, batch, ended = string.match(keep, '^(%d+) ?(%S*) ?(.*)$')
  if batch ~= '' then
    if string.sub(ended, -2) == ' +' then
      ended = string.sub(ended, 1, -2) .. result
    end
    redis.call('XADD', notes, '*', batch, ended)
  end
  if keep_ms == '0' then
    return
  end
  local kind = redis.call('TYPE', key).ok == 'string' and redis.call('GETRANGE', key, 0, 0)
  if kind ~= '+' and (kind ~= '=' or string.sub(result, 1, 1) == '+') then
    redis.call('SET', key, result, 'PX', keep_ms)
  end
end
-- Leaves a note for the batch of a message that is given up, if its body, from the value `first` on, names one in which the
-- group counts; a delay queue has none. A key of the wrong type costs the note alone.
local function note_death(notes, body, first, group)
  if body[first] == 'packed' then
    local readable, values = pcall(cmsgpack.unpack, body[first + 1])
    body, first = readable and type(values) == 'table' and values or {}, 1
  end
  for at = first, #body, 2 do
    if body[at] == 'h:millstream-batch' then
      local batch, number, counts = string.match(body[at + 1], '^(%S+) (%d+)%+? ?(%S*)$')
      if batch and (counts == '' or not group or counts == group) then
        local ended = number .. ' dead'
        redis.pcall('XADD', notes, '*', batch, ended)
      end
      return
    end
  end
end
-- Adds what a handler says to the hash in the key, for keep_ms: numbered lines, of which the newest 100 with a text stay, and the
-- newest without one, which only says how far the work is.
local function add_lines(key, keep_ms, attempt, now_text, lines)
  local known = redis.call('HMGET', key, 'changes', 'lines')
  local changes, count = tonumber(known[1]) or 0, tonumber(known[2]) or 0
  for at = 1, #lines, 2 do
    local done, text, field = lines[at], lines[at + 1], 'done'
    changes = changes + 1
    if text ~= '' then
      field, count = 'line:' .. count % 100, count + 1
    end
    local line = string.format('%.0f %s %s %s ', changes, now_text, attempt, done) .. text
    redis.call('HSET', key, field, line, 'changes', string.format('%.0f', changes), 'lines', string.format('%.0f', count))
  end
  redis.call('PEXPIRE', key, keep_ms)
end
