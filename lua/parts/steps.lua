-- steps: what handlers have done, of one message or task: records one behind the other, each 'letter ms bytes bytes\n'
-- with the numbers of bytes of name and value, the name, and the value. Of several of one letter and name the first
-- counts.
local MAX_STEPS = 262144
-- Returns the time of a record, and its value; nil if there is none.
local function step_at(known, letter, name)
  local at = 1
  while true do
    local kind, ms, name_bytes, value_bytes, first = string.match(known, '^(%l) (%d+) (%d+) (%d+)\n()', at)
    if not kind then
      return nil
    end
    if kind == letter and string.sub(known, first, first + name_bytes - 1) == name then
      return tonumber(ms), string.sub(known, first + name_bytes, first + name_bytes + value_bytes - 1)
    end
    at = first + name_bytes + value_bytes
  end
end
local function step_record(letter, ms_text, name, value)
  return letter .. ' ' .. ms_text .. ' ' .. #name .. ' ' .. #value .. '\n' .. name .. value
end
-- Adds records to those that are known; false if there would be too much.
local function add_steps(steps, id, known, records)
  -- What stands at the end was stored by an earlier call, whose answer was lost.
  if string.sub(known, -#records) == records or records == '' then
    return true
  elseif #known + #records > MAX_STEPS then
    return false
  end
  local all = known .. records
  redis.call('HSET', steps, id, all)
  return true
end
-- The same with a signal. That of the members of a step is small, and is stored however much there is.
local function add_signal(steps, id, known, now_text, name, value)
  local record = step_record('s', now_text, name, value)
  if string.byte(name, -1) ~= 1 then
    return add_steps(steps, id, known, record)
  end
  local all = known .. record
  redis.call('HSET', steps, id, all)
  return true
end
-- Notes the wait of a message, 's name' or '- name', with a signal or without. Returns when the message is due, and the
-- bytes of its steps. It is due now if the signal is there, and otherwise at the time that was noted first for the wait.
local function wait_until(steps, id, wait, due, now_ms)
  local kind, name = string.match(wait, '^([s-]) (.*)$')
  local known = redis.call('HGET', steps, id) or ''
  local ends = step_at(known, 'w', name)
  if not ends then
    ends = due
    local noted = known .. step_record('w', string.format('%.0f', due), name, kind == 's' and 's' or '')
    redis.call('HSET', steps, id, noted)
  end
  return kind == 's' and step_at(known, 's', name) and now_ms or ends, #known
end
-- Returns the body of a dead letter with its steps in a header, behind those that are there and were not stored since; and
-- the bytes of those that are to be removed. In what is packed they are not seen: then they stay where they are.
local function with_steps(steps, id, body)
  local known = body[1] ~= 'packed' and redis.call('HGET', steps, id)
  if not known then
    return body, 0
  end
  for at = 1, #body, 2 do
    if body[at] == 'h:millstream-steps' then
      local has_all = string.find(known, body[at + 1], 1, true)
      body[at + 1] = has_all and known or body[at + 1] .. known
      return body, #known
    end
  end
  body[#body + 1], body[#body + 2] = 'h:millstream-steps', known
  return body, #known
end
