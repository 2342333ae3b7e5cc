-- task_body: returns the body of a task for a dead task, and its bytes: an item that is none of ours stays as it is.
local function task_body(item)
  local values = values_of(item, 0)
  local body = values and #values % 2 == 0 and values
  return body or item and { 'packed', item } or {}, #(item or '')
end
