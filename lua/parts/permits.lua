-- permits: records of keys of limits, 'at_most|holder units;...|holder cost since;...': how many units may be in use, who has
-- how many, and who waits for how many since which microsecond, the oldest first, with '!' behind it once it is called.
-- `book` reads and writes those of one call.
-- Calls go to one stream, which all holders read: a script builds no keys.
local function announce(calls, what, told)
  redis.call('XADD', calls, 'MAXLEN', '~', 10000, '*', what, told)
end
local function book(units, holders, calls)
  local of, alive = { records = {}, order = {} }, {}
  local function parsed(key, text)
    local it = { key = key, at_most = 0, used = 0, has = {}, queue = {} }
    local most, held, waits = string.match(text or '', '^(%d+)|([^|]*)|([^|]*)$')
    it.at_most = tonumber(most or 0)
    for id, count in string.gmatch(held or '', '(%S+) (%d+);') do
      it.has[id] = tonumber(count)
    end
    for id, cost, since, mark in string.gmatch(waits or '', '(%S+) (%d+) (%d+)(!?);') do
      it.queue[#it.queue + 1] = { id = id, cost = tonumber(cost), since = tonumber(since), called = mark == '!' }
    end
    of.records[key], of.order[#of.order + 1] = it, it
    return it
  end
  -- A holder that was ended has nothing any more, whatever the records say.
  local function only_living(it)
    local has, queue = it.has, it.queue
    it.has, it.queue = {}, {}
    for id, count in pairs(has) do
      if alive[id] then
        it.has[id], it.used = count, it.used + count
      end
    end
    for _, other in ipairs(queue) do
      if alive[other.id] then
        it.queue[#it.queue + 1] = other
      end
    end
    it.called = it.queue[1] and it.queue[1].called
  end
  -- Reads the records of these keys: all at once, since each of them is needed.
  function of.read(keys)
    local new, ids = {}, {}
    local function knows(id)
      if alive[id] == nil then
        alive[id], ids[#ids + 1] = false, id
      end
    end
    for first = 1, #keys, 1000 do
      local last = math.min(first + 999, #keys)
      local texts = redis.call('HMGET', units, unpack(keys, first, last))
      for n = first, last do
        if not of.records[keys[n]] then
          new[#new + 1] = parsed(keys[n], texts[n - first + 1])
        end
      end
    end
    for _, it in ipairs(new) do
      for id in pairs(it.has) do
        knows(id)
      end
      for _, other in ipairs(it.queue) do
        knows(other.id)
      end
    end
    for first = 1, #ids, 1000 do
      local last = math.min(first + 999, #ids)
      for n, record in ipairs(redis.call('HMGET', holders, unpack(ids, first, last))) do
        alive[ids[first + n - 1]] = record and true
      end
    end
    for _, it in ipairs(new) do
      only_living(it)
    end
  end
  -- One that needs more than there may be gets it while no unit is in use.
  function of.fits(it, cost)
    return it.at_most > 0 and (it.used == 0 or it.used + cost <= it.at_most)
  end
  function of.place(it, id)
    for n, other in ipairs(it.queue) do
      if other.id == id then
        return n
      end
    end
  end
  function of.leaves(it, id)
    local place = of.place(it, id)
    if place then
      table.remove(it.queue, place)
      it.called = it.called and place ~= 1
    end
  end
  -- Who has units learns of the first other one that waits: it keeps them for its own messages otherwise.
  function of.waits(it, id, cost, since)
    for other in pairs(it.has) do
      local knows = other == id
      for _, waiting in ipairs(it.queue) do
        knows = knows or waiting.id ~= other
      end
      if not knows then
        announce(calls, 'wanted', other .. ' ' .. it.key)
      end
    end
    local place = #it.queue + 1
    for n = #it.queue, 1, -1 do
      place = it.queue[n].since > since and n or place
    end
    table.insert(it.queue, place, { id = id, cost = cost, since = since })
    it.called = it.called and place ~= 1
  end
  function of.set(it, id, count)
    it.used = it.used + count - (it.has[id] or 0)
    it.has[id] = count > 0 and count or nil
  end
  -- Writes all records. Those that say nothing go.
  function of.write()
    local gone, kept = {}, {}
    for _, it in ipairs(of.order) do
      local front, held, waits = it.queue[1], {}, {}
      -- The first that waits is called once, until it takes or leaves, or finds no room after all.
      if front and not it.called and of.fits(it, front.cost) then
        it.called = true
        announce(calls, 'free', front.id .. ' ' .. it.key)
      end
      for id, count in pairs(it.has) do
        held[#held + 1] = string.format('%s %d;', id, count)
      end
      if #held == 0 and #it.queue == 0 then
        gone[#gone + 1] = it.key
      else
        -- The order of a table is not that of the next server that would run this.
        table.sort(held)
        for n, other in ipairs(it.queue) do
          local mark = n == 1 and it.called and '!' or ''
          waits[n] = string.format('%s %d %.0f%s;', other.id, other.cost, other.since, mark)
        end
        kept[#kept + 1] = it.key
        kept[#kept + 1] = string.format('%d|%s|%s', it.at_most, table.concat(held), table.concat(waits))
      end
    end
    -- What frees memory comes first.
    for first = 1, #gone, 1000 do
      redis.call('HDEL', units, unpack(gone, first, math.min(first + 999, #gone)))
    end
    for first = 1, #kept, 1000 do
      redis.call('HSET', units, unpack(kept, first, math.min(first + 999, #kept)))
    end
  end
  return of
end
