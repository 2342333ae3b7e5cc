-- retry_item: what is kept of a message that waits for its next attempt: the number of that attempt, error and history,
-- or only the history if its last line has the error; then the body.
local function retry_item(attempt, error_text, history, line, body)
  -- The error is usually the end of the history. It is then stored once: two texts lead instead of three.
  local told = line ~= '' and string.match(line, '^%d+ (.*)$') == error_text
  return cmsgpack.pack(told and { attempt, history, unpack(body) } or { attempt, error_text, history, unpack(body) })
end
-- Returns attempt, error, history, and all values with the place of the first of the body; nothing if it is none of
-- ours.
local function read_retry_item(item)
  local values = values_of(item, 3)
  if not values or #values < 4 then
    return nil
  end
  local lead = 2 + #values % 2
  local error_text, history = values[2], values[lead]
  if lead == 2 then
    error_text = string.match(string.match(history, '^.*\n(.*)$') or history, '^%d+ %d+ (.*)$') or ''
  end
  return values[1], error_text, history, values, lead + 1
end
-- Returns the body of an entry: a redelivery has its attempt, origin, error and history in front.
local function body_of_entry(fields, source)
  local ours = source == 'retry' and fields[1] == 'attempt' and fields[3] == 'origin' and fields[5] == 'error'
    and fields[7] == 'history'
  local body, bytes = {}, 0
  for at = ours and 9 or 1, #fields do
    body[#body + 1], bytes = fields[at], bytes + #fields[at]
  end
  return bounded(body), bytes
end
