-- body: names and values of a message, as entries, items of hashes and dead letters have them. Lua passes a limited
-- number of values to a command: a body of more is one field, which has all of them packed.
local MAX_BODY_VALUES = 6000
local function bounded(body)
  return #body > MAX_BODY_VALUES and { 'packed', cmsgpack.pack(body) } or body
end
-- Returns the values of an item behind the first `lead`, which describe it, if it is readable and they are texts.
local function values_of(item, lead)
  local readable, values = pcall(cmsgpack.unpack, item)
  if not item or not readable or type(values) ~= 'table' or #values > MAX_BODY_VALUES + lead then
    return nil
  end
  for at = 1, #values do
    if type(values[at]) ~= 'string' then
      return nil
    end
  end
  return values
end
-- Returns the body of a task for a dead task, and its bytes: an item that is none of ours stays as it is.
local function task_body(item)
  local values = values_of(item, 0)
  local body = values and #values % 2 == 0 and values
  return body or item and { 'packed', item } or {}, #(item or '')
end
