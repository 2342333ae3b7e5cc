-- size: returns the bytes of an entry's names and values; 0 of none.
local function size(entry)
  local bytes = 0
  for _, value in ipairs(entry and entry[2] or {}) do
    bytes = bytes + #value
  end
  return bytes
end
