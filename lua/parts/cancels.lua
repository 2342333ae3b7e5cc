-- cancels: the marks of cancelled messages: 'word ms claim' in the field 'mark:<id>' of a hash, of batches 'batch ms ' in
-- 'batch:<id>', and in 'changes' how often there was one.
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
-- Lets marks go that are a week old; but not those of messages that were not read since the entry `first` of the log. That
-- of a batch goes after 90 days. Returns how many are left.
local function purge_marks(cancels, now_ms, first)
  local fields, over = redis.call('HGETALL', cancels), {}
  for at = 1, #fields, 2 do
    local its_word, since = string.match(fields[at + 1], '^(%l+) (%d+) ')
    -- By the milliseconds: an entry may be a pack, whose messages have ids below its own.
    local stays = its_word == 'ahead' and first
      and string.sub(wide(string.sub(fields[at], 6)) or '', 1, 20) >= string.sub(wide(first), 1, 20)
    local kept_ms = its_word == 'batch' and 7776000000 or 604800000
    if its_word and not stays and tonumber(since) + kept_ms < now_ms then
      over[#over + 1] = fields[at]
    end
  end
  for at = 1, #over, 1000 do
    redis.call('HDEL', cancels, unpack(over, at, math.min(at + 999, #over)))
  end
  return #fields / 2 - #over
end
-- Sets one more mark, and has it looked at. Where there are many, each hundredth one lets old ones go. Returns 'full' if too
-- many are left.
local function add_mark(cancels, id, word, claim, now_ms, now_text, first)
  local changes, count = redis.call('HINCRBY', cancels, 'changes', 1), redis.call('HLEN', cancels)
  if count >= 1000 and changes % 100 == 0 then
    count = purge_marks(cancels, now_ms, first)
  end
  if count > 10000 then
    return 'full'
  end
  set_mark(cancels, id, word, claim, now_text)
end
