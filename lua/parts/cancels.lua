-- cancels: the marks of cancelled messages: 'word ms claim' in the field 'mark:<id>' of a hash, and in 'changes' how
-- often there was one.
-- Returns word and claim of a mark; nothing if there is none.
local function mark_of(cancels, id)
  local field = 'mark:' .. id
  local word, claim = string.match(redis.call('HGET', cancels, field) or '', '^(%l+) %d+ (%S*)$')
  return word, claim
end
-- An answer stays, but for that of a message that was not read.
local function may_replace(word, earlier)
  return earlier == 'asked' or earlier == 'ahead' and word == 'cancelled'
end
local function set_mark(cancels, id, word, claim, now_text)
  local field, mark = 'mark:' .. id, word .. ' ' .. now_text .. ' ' .. claim
  redis.call('HSET', cancels, field, mark)
end
-- Sets one more mark, and has it looked at. Where there are many, each hundredth one lets those go that are a week old;
-- but one of a message that was not read only if it is before `first`, the first entry of the log. Returns 'full' if too
-- many are left.
local function add_mark(cancels, id, word, claim, now_ms, now_text, first)
  local changes, count = redis.call('HINCRBY', cancels, 'changes', 1), redis.call('HLEN', cancels)
  if count >= 1000 and changes % 100 == 0 then
    local fields, over = redis.call('HGETALL', cancels), {}
    for at = 1, #fields, 2 do
      local its_word, since = string.match(fields[at + 1], '^(%l+) (%d+) ')
      -- By the milliseconds: an entry may be a pack, whose messages have ids below its own.
      local stays = its_word == 'ahead' and first
        and string.sub(wide(string.sub(fields[at], 6)) or '', 1, 20) >= string.sub(wide(first), 1, 20)
      if its_word and not stays and tonumber(since) + 604800000 < now_ms then
        over[#over + 1] = fields[at]
      end
    end
    for at = 1, #over, 1000 do
      redis.call('HDEL', cancels, unpack(over, at, math.min(at + 999, #over)))
    end
    count = count - #over
  end
  if count > 10000 then
    return 'full'
  end
  set_mark(cancels, id, word, claim, now_text)
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
