-- ids: returns an id padded to one length, so that ids are compared as text: Lua numbers would lose their last digits.
-- Nothing if it is none. With zeros, since the server's locale may not count spaces.
local function wide(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return ms and string.rep('0', 20 - #ms) .. ms .. '-' .. string.rep('0', 20 - #seq) .. seq
end
-- Returns names and values in turn as a table by name.
local function map(list)
  local of = {}
  for at = 1, #list, 2 do
    of[list[at]] = list[at + 1]
  end
  return of
end
-- Whether a group has not read an entry of the log; nil if it does not exist there.
local function is_unread(log, group, id)
  local groups = redis.pcall('XINFO', 'GROUPS', log)
  for _, about in ipairs(groups.err and {} or groups) do
    local of = map(about)
    if of['name'] == group then
      return wide(of['last-delivered-id']) < wide(id)
    end
  end
  return nil
end
