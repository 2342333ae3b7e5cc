-- size: returns the bytes of an entry's names and values; 0 of none. Redis returns ids only together with bodies: an
-- entry of 1 MiB takes as long as thousands of small ones.
local function size(entry)
  local bytes = 0
  for _, value in ipairs(entry and entry[2] or {}) do
    bytes = bytes + #value
  end
  return bytes
end
