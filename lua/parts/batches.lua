-- batches: the counts of a batch, the bits of its members, the messages that it sends, and the numbers that clients have
-- reserved.
local BATCH_FIELDS = { 'next', 'sealed', 'done', 'dead', 'left', 'ended', 'succeeded', 'keep', 'parent', 'every', 'told',
  'died', 'touched', 'sealing', 'closed' }
-- Returns what is known of a batch, with its keys; nil if it does not exist. A write that is never refused comes first: a
-- server that is out of memory then accepts the others too. With the reads it detects a key of the wrong type before
-- anything is changed.
local function read_batch(key, done, dead, left, results, batches, log, notes, id, now_ms)
  redis.call('HDEL', key, '')
  redis.call('XLEN', log)
  redis.call('XLEN', notes)
  redis.call('STRLEN', done)
  redis.call('STRLEN', dead)
  redis.call('STRLEN', left)
  redis.call('HLEN', results)
  local name = string.sub(id, -32)
  local expires, values = redis.call('ZSCORE', batches, name), redis.call('HMGET', key, unpack(BATCH_FIELDS))
  if not expires or not values[1] or tonumber(expires) <= now_ms then
    return nil
  end
  local batch = { id = id, name = name, key = key, bits = { done = done, dead = dead, left = left }, results = results, batches = batches,
    log = log, notes = notes, parent = values[9] }
  for at, field in ipairs(BATCH_FIELDS) do
    batch[field] = field == 'parent' and (values[at] or '') or tonumber(values[at] or 0)
  end
  return batch
end
-- Writes it back, and has it expire later.
local function write_batch(batch, now_ms, now_text)
  local values = {}
  for _, field in ipairs(BATCH_FIELDS) do
    if field ~= 'parent' and field ~= 'keep' and field ~= 'every' and field ~= 'touched' then
      values[#values + 1], values[#values + 2] = field, string.format('%.0f', batch[field])
    end
  end
  local key, batches = batch.key, batch.batches
  redis.call('HSET', key, unpack(values))
  -- Seldom, since most calls change a few bits: an hour of 90 days does not count.
  if batch.fresh or now_ms - batch.touched >= 3600000 then
    local keep_ms = batch.ended > 0 and batch.keep or 7776000000
    local done, dead, left, results = batch.bits.done, batch.bits.dead, batch.bits.left, batch.results
    redis.call('HSET', key, 'touched', now_text)
    -- What belongs to a batch ends before it, and both before the sorted set says so: Redis 7.0 counts each time from its own
    -- call, and a key lives for the whole of its last millisecond.
    redis.call('PEXPIRE', results, keep_ms)
    redis.call('PEXPIRE', left, keep_ms)
    redis.call('PEXPIRE', dead, keep_ms)
    redis.call('PEXPIRE', done, keep_ms)
    redis.call('PEXPIRE', key, keep_ms)
    local _, later_ms = clock()
    local expires = string.format('%.0f', later_ms + keep_ms + 1)
    redis.call('ZADD', batches, expires, batch.name)
  end
end
-- Returns those of the numbers whose bit has this value.
local function with_bit(batch, word, numbers, value)
  local found, key = {}, batch.bits[word]
  if batch[word] == 0 then
    return value == 0 and numbers or found
  end
  for first = 1, #numbers, 500 do
    local asked = {}
    for at = first, math.min(first + 499, #numbers) do
      asked[#asked + 1], asked[#asked + 2], asked[#asked + 3] = 'GET', 'u1', numbers[at]
    end
    for at, bit_of in ipairs(redis.call('BITFIELD', key, unpack(asked))) do
      if bit_of == value then
        found[#found + 1] = numbers[first + at - 1]
      end
    end
  end
  return found
end
-- Sets the bits of numbers to this value, and counts those that it changed, which it returns.
local function set_bits(batch, word, numbers, value)
  local changed, key = {}, batch.bits[word]
  if value == 0 and batch[word] == 0 then
    return changed
  end
  for first = 1, #numbers, 500 do
    local asked = {}
    for at = first, math.min(first + 499, #numbers) do
      asked[#asked + 1], asked[#asked + 2], asked[#asked + 3], asked[#asked + 4] = 'SET', 'u1', numbers[at], value
    end
    for at, before in ipairs(redis.call('BITFIELD', key, unpack(asked))) do
      if before ~= value then
        changed[#changed + 1] = numbers[first + at - 1]
      end
    end
  end
  -- A key that is created has no time to live.
  batch.fresh = batch.fresh or batch[word] == 0 and #changed > 0
  batch[word] = batch[word] + (value == 1 and #changed or -#changed)
  return changed
end
-- Returns those of the numbers that have not ended.
local function not_ended(batch, numbers)
  return with_bit(batch, 'dead', with_bit(batch, 'done', numbers, 0), 0)
end
local function leave_out(batch, numbers)
  set_bits(batch, 'left', not_ended(batch, numbers), 1)
end
-- Sends the message of an event, if there is one.
local function send_event(batch, kind, percent)
  local key, log, field = batch.key, batch.log, 'on:' .. kind
  local fields = values_of(redis.call('HGET', key, field) or nil, 0)
  if fields then
    local about = { batch.id, kind, percent, batch.next - batch.left, batch.done, batch.dead }
    for at = 3, 6 do
      about[at] = string.format('%.0f', about[at])
    end
    fields[#fields + 1], fields[#fields + 2] = 'h:millstream-batch-event', table.concat(about, ' ')
    redis.call('XADD', log, '*', unpack(fields))
  end
end
-- Leaves a note for the batch that this one is a member of, or for whoever waits for it: 'step' and its id and name.
local function tell_parent(batch, word)
  local parent, ended = string.match(batch.parent, '^(%S+) (.*)$')
  if parent then
    local notes = batch.notes
    if parent ~= 'step' then
      ended = string.match(ended, '^%d+') .. ' ' .. word
    end
    redis.call('XADD', notes, '*', parent, ended)
  end
end
-- Sends what the counts are the occasion for, each event once.
local function send_events(batch, now_ms)
  if batch.sealed == 0 then
    return
  end
  local members = batch.next - batch.left
  local ended = batch.done + batch.dead
  if batch.every > 0 then
    local percent = members == 0 and 100 or math.floor(100 * ended / members)
    local step = math.floor(percent / batch.every) * batch.every
    if step > batch.told then
      batch.told = step
      send_event(batch, 'progress', step)
    end
  end
  if batch.dead > 0 and batch.died == 0 then
    batch.died = 1
    send_event(batch, 'death', 0)
  end
  local completes = ended == members and batch.ended == 0
  -- What was left out when somebody else closed it may have been meant as members.
  local succeeds = batch.done == members and batch.succeeded == 0 and (batch.closed == 0 or batch.left == 0)
  if completes then
    batch.ended, batch.fresh = now_ms, true
    send_event(batch, 'complete', 0)
  end
  if succeeds then
    batch.succeeded = 1
    send_event(batch, 'success', 0)
  end
  -- Whoever waits for it is told once.
  if completes or succeeds and string.sub(batch.parent, 1, 5) ~= 'step ' then
    tell_parent(batch, succeeds and 'done' or 'dead')
  end
end
-- Numbers that clients have reserved are blocks: 'to token state target' in the field 'block:<from>' of a batch.
local function block_of(key, from)
  local field = 'block:' .. from
  local to, token, state, target = string.match(redis.call('HGET', key, field) or '', '^(%d+) (%S+) (%l+) (.*)$')
  return tonumber(to), token, state, target
end
local function set_block(key, from, to, token, state, target)
  local field, text = 'block:' .. from, string.format('%.0f ', to) .. token .. ' ' .. state .. ' ' .. target
  redis.call('HSET', key, field, text)
end
-- Returns the numbers from the first to the one below the second.
local function numbers_of(from, to)
  local numbers = {}
  for number = from, to - 1 do
    numbers[#numbers + 1] = string.format('%.0f', number)
  end
  return numbers
end
-- Reads what is confirmed from the values: from, to, token, used, count and the numbers that failed, of each block.
-- Returns the first block that the server does not know, or that it knows in another state.
local function read_confirmed(batch, values, at, state_of)
  local confirmed = {}
  while at <= #values do
    local from, to, token, used, count = unpack(values, at, at + 4)
    local failed = { unpack(values, at + 5, at + 4 + count) }
    local block = { from = from, token = token, used = tonumber(used), failed = failed }
    local known_to, known_token, state, target = block_of(batch.key, from)
    block.to, block.target = known_to, target
    at = at + 5 + count
    -- One that is confirmed may be shorter by now.
    if known_token == token and state_of[state] and (state ~= 'open' or known_to == tonumber(to)) then
      block.is_open = state == 'open'
      confirmed[#confirmed + 1] = block
    elseif used ~= from then
      -- One of which nothing was used is not missed.
      return confirmed, { from, to }
    end
  end
  return confirmed
end
-- Returns the next number once these are confirmed.
local function next_behind(batch, confirmed)
  local next_number = batch.next
  for _, block in ipairs(confirmed) do
    if block.is_open and block.to == next_number then
      next_number = block.used
    end
  end
  return next_number
end
-- Those that were not used are given back if they are the last, and left out otherwise.
local function confirm(batch, confirmed)
  for _, block in ipairs(confirmed) do
    if block.is_open then
      local to, unused = block.to, numbers_of(block.used, block.to)
      -- A number that has ended is that of a message, so it is not handed out again.
      if to == batch.next and #not_ended(batch, unused) == #unused then
        batch.next, to = block.used, block.used
      else
        leave_out(batch, unused)
      end
      leave_out(batch, block.failed)
      set_block(batch.key, block.from, to, block.token, 'confirmed', block.target)
    end
  end
end
