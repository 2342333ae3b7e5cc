-- settle_packed: settles messages of packs; a pack leaves the pending list when all of its messages are settled.
-- KEYS[1] fence HASH owner, token, epoch and ttl of the last grant
-- KEYS[2] log STREAM the partition's log
-- KEYS[3] settled HASH by the id of a pending pack: a bit for each message of it that is settled
-- KEYS[4] held HASH notes of pending entries by source and id
-- KEYS[5] retry_due ZSET origins by due time in milliseconds
-- KEYS[6] retry_items HASH bodies by origin
-- KEYS[7] dlq STREAM the group's dead letters
-- KEYS[8] notes STREAM members of batches that ended here: 'number word' by the batch
-- KEYS[9] steps HASH steps of messages, by the id of their entry in the log
-- KEYS[10] result... STRING what became of the first message that asks for its result; then that of each further one
-- ARGV[1] mode 'lease', or 'consumer': then only packs pending under its name are changed
-- ARGV[2] who the token of the lease, or the name of the consumer
-- ARGV[3] group that read them
-- ARGV[4] topic that they came from
-- ARGV[5] partition that they came from
-- ARGV[6] settlements... each begins with its kind, the id of the pack, and the number of its messages.
--   'ack': a bit for each message that is settled, the lowest bit of a byte first, or '' for all.
--   'retry': the place of the message in the pack, from 0, its id, due, attempt, origin, error, history, line, number
--   of the
--   values of its body, and these; no values if the pack is gone.
--   'dead': place, id, reason, attempts, origin, error, history, line, number of values, and these.
--   'result': keep and result of the message that comes behind it; then '1' if its steps are dropped.
--   'wait': of the retry that comes behind it, 's name' or '- name' of a wait that ends then, with a signal or without.
--   'done': place and id.
--   'hold': place, id, due, words and line.
--   due is '+' and microseconds from now, or a time in milliseconds; line is the last line of the history, without
--   the time,
--   or empty; words are 'attempt suspicions by bytes error', then the history
-- include clock, fence, due, body, retry_item, result, steps
-- returns {applied, stale, done} in messages, or the error FENCED, or NOGROUP of the owner's log; it stops when bodies
-- reach 1 MiB; the caller repeats those after the first `done`
local fence, log, settled, held, retry_due, retry_items, dlq, notes, steps = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local mode, who, group, topic, partition = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MAX_BYTES = 1048576

if not may_change(fence, mode, who) then
  return fenced()
end
-- Writes that are never refused come first: a server that is out of memory then accepts the others too.
-- They also detect a key of the wrong type before anything is changed.
redis.call('HDEL', settled, '')
local now_us, now_ms, now_text, stepped
-- For all kinds but 'ack', which need the time and write to further keys.
local function prepare()
  if not now_us then
    now_us, now_ms, now_text = clock()
    redis.call('ZREM', retry_due, '')
    redis.call('HDEL', retry_items, '')
    redis.call('XDEL', dlq, '0-0')
    redis.call('XDEL', notes, '0-0')
    redis.call('HDEL', steps, '')
    stepped = redis.call('HLEN', steps) > 0
  end
end
local noted, partly = redis.call('HLEN', held) > 0, redis.call('HLEN', settled) > 0

-- Bits of a pack's messages are worked on 32 at a time.
local function words(bytes, count)
  local length = math.ceil(count / 32)
  local form, padded = '<' .. string.rep('i4', length), bytes .. string.rep('\0', 4 * length - #bytes)
  local list = { struct.unpack(form, padded) }
  -- The last result is a position.
  list[length + 1] = nil
  return list
end
-- Returns how many bits are set in a word. Nearly all words have all or none.
local function ones(word)
  if word == 0 or word == -1 then
    return word * -32
  end
  local twos = bit.band(word, 0x55555555) + bit.band(bit.rshift(word, 1), 0x55555555)
  local fours = bit.band(twos, 0x33333333) + bit.band(bit.rshift(twos, 2), 0x33333333)
  local bytes = bit.band(fours, 0x0f0f0f0f) + bit.band(bit.rshift(fours, 4), 0x0f0f0f0f)
  -- The sum of four bytes, since 256 is one more than a multiple of 255.
  return bytes % 255
end

-- The packs of this call, by id: whether it is pending, its settled messages as a list of words, and how many are not.
local packs, order, whose = {}, {}, { mode == 'consumer' and who or nil }
local function pack_of(id, count)
  local pack = packs[id]
  if pack then
    return pack
  end
  local pending = redis.pcall('XPENDING', log, group, id, id, 1, unpack(whose))
  if pending.err and not string.find(pending.err, 'NOGROUP', 1, true) then
    return error(pending)
  end
  local stored = partly and redis.call('HGET', settled, id) or ''
  pack = words(stored or '', count)
  pack.open, pack.changed, pack.pending, pack.lost = count, false, #pending > 0, pending.err and pending
  for at = 1, #pack do
    pack.open = pack.open - ones(pack[at])
  end
  packs[id], order[#order + 1] = pack, id
  return pack
end
-- Whether a message is neither settled nor gone.
local function is_open(pack, place)
  return pack.pending and bit.band(pack[math.floor(place / 32) + 1], bit.lshift(1, place % 32)) == 0
end
local function set(pack, place)
  local at = math.floor(place / 32) + 1
  pack[at], pack.open, pack.changed = bit.bor(pack[at], bit.lshift(1, place % 32)), pack.open - 1, true
end

-- Adds the notes of the messages at the places of a word's bits.
local forgotten = {}
local function forget(id, count, word_at, bits)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  for place = 0, 31 do
    if bit.band(bits, bit.lshift(1, place)) ~= 0 then
      local behind = count - 1 - (word_at - 1) * 32 - place
      forgotten[#forgotten + 1] = string.format('log:%s-%.0f', ms, seq - behind)
    end
  end
end

local applied, done, bytes, at = 0, 0, 0, 6
local keys, asked, keep, result, drops, wait = KEYS, 9, nil, nil, nil, nil
-- Of a message that is settled now, also of one that is gone: nobody will handle it.
local function store()
  if keep then
    local key = keys[asked]
    store_result(key, keep, result, notes)
  end
end
for _ = 1, #ARGV do
  if at > #ARGV or bytes >= MAX_BYTES then
    break
  end
  keep, wait = nil, nil
  if ARGV[at] == 'result' then
    asked, keep, result, drops, at = asked + 1, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], at + 4
  elseif ARGV[at] == 'wait' then
    wait, at = ARGV[at + 1], at + 2
  end
  local kind, id, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if kind == 'ack' and ARGV[at + 3] == '' and mode ~= 'consumer' and not partly and not noted and not packs[id] then
    -- Nearly always.
    local acked = redis.call('XACK', log, group, id)
    applied, done, at = applied + acked * count, done + count, at + 4
  elseif kind == 'ack' then
    local pack, all = pack_of(id, count), ARGV[at + 3] == ''
    local given = words(ARGV[at + 3], count)
    for word_at = 1, #pack do
      local last = word_at == #pack and count % 32 or 0
      local bits = all and (last > 0 and bit.lshift(1, last) - 1 or -1) or given[word_at]
      local new = pack.pending and bit.band(bits, bit.bnot(pack[word_at])) or 0
      if noted and new ~= 0 then
        forget(id, count, word_at, new)
      end
      local settles = ones(new)
      done, applied, pack.open = done + ones(bits), applied + settles, pack.open - settles
      pack[word_at], pack.changed = bit.bor(pack[word_at], new), pack.changed or new ~= 0
    end
    at = at + 4
  else
    local pack, place, message = pack_of(id, count), tonumber(ARGV[at + 3]), ARGV[at + 4]
    if pack.lost and mode ~= 'consumer' and kind ~= 'done' then
      return pack.lost
    end
    prepare()
    local open = is_open(pack, place)
    if kind == 'done' then
      if open then
        store()
        set(pack, place)
        forgotten[#forgotten + 1] = 'log:' .. message
        if keep and drops == '1' then
          redis.call('HDEL', steps, message)
        end
      end
      at = at + 5
    elseif kind == 'hold' then
      local due, told, line = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7]
      local note = 'log:' .. message
      if open then
        local text = (due == '+0' and '0' or string.format('%.0f', due_at(due, now_us))) .. ' ' .. told
        if line ~= '' then
          text = text .. now_text .. ' ' .. line
        end
        redis.call('HSET', held, note, text)
      elseif mode ~= 'consumer' then
        redis.call('HDEL', held, note)
      end
      at = at + 8
    else
      local word, number, origin, error_text, history, line = unpack(ARGV, at + 5, at + 10)
      local values = tonumber(ARGV[at + 11])
      local last = at + 11 + values
      if line ~= '' then
        history = history .. now_text .. ' ' .. line
      end
      for i = at + 12, last do
        bytes = bytes + #ARGV[i]
      end
      -- Before the letter: a failure here must not store it again each time.
      if open and kind ~= 'retry' then
        store()
      end
      -- Put before remove: a failure in between leaves the same message twice, never a loss.
      if open and values > 0 and kind == 'retry' then
        local item = retry_item(number, error_text, history, line, { unpack(ARGV, at + 12, last) })
        local due_ms = due_at(word, now_us)
        if wait then
          local stored
          due_ms, stored = wait_until(steps, origin, wait, due_ms, now_ms)
          bytes = bytes + stored
        end
        redis.call('HSET', retry_items, origin, item)
        redis.call('ZADD', retry_due, string.format('%.0f', due_ms), origin)
      elseif open and values > 0 then
        local body, moved = { unpack(ARGV, at + 12, last) }, 0
        if stepped then
          body, moved = with_steps(steps, origin, body)
        end
        redis.call('XADD', dlq, '*', 'reason', word, 'attempts', number, 'error', error_text, 'origin', origin,
          'topic', topic, 'partition', partition, 'group', group, 'history', history, unpack(body))
        if moved > 0 then
          redis.call('HDEL', steps, origin)
          bytes = bytes + moved
        end
      end
      if open then
        set(pack, place)
        forgotten[#forgotten + 1] = 'log:' .. message
      end
      open = open and values > 0
      at = last + 1
    end
    done, applied = done + 1, applied + (open and 1 or 0)
  end
end

-- What is settled of each pack, or that all of it is.
local whole = {}
for _, id in ipairs(order) do
  local pack = packs[id]
  if pack.pending and pack.open == 0 then
    whole[#whole + 1] = id
  elseif pack.changed then
    local form = '<' .. string.rep('i4', #pack)
    local stored = struct.pack(form, unpack(pack))
    redis.call('HSET', settled, id, stored)
  end
end
if #whole > 0 then
  redis.call('XACK', log, group, unpack(whole))
  if partly then
    redis.call('HDEL', settled, unpack(whole))
  end
end
if noted and #forgotten > 0 then
  redis.call('HDEL', held, unpack(forgotten))
end
return { applied, done - applied, done }
