-- map: returns names and values in turn as a table by name.
local function map(list)
  local of = {}
  for at = 1, #list, 2 do
    of[list[at]] = list[at + 1]
  end
  return of
end
