-- permits: records of keys of limits, 'at_most|holder units;...|holder cost since;...': how many units may be in use, who has
-- how many, and who waits for how many since which microsecond, the oldest first, with '!' behind it once it is called.
-- `book` reads and writes those of one call. Most have one holder and nobody that waits: these are the fast path.
-- Calls go to one stream, which all holders read: a script builds no keys.
local function announce(calls, what, told)
  redis.call('XADD', calls, 'MAXLEN', '~', 10000, '*', what, told)
end
local function book(units, holders, calls, living)
  local of, alive = { records = {}, order = {} }, {}
  -- The caller, if it lives: nothing has to be read for it.
  if living then
    alive[living] = true
  end
  local function parsed(key, text)
    local it = { key = key, at_most = 0, used = 0, has = {}, queue = {} }
    of.records[key], of.order[#of.order + 1] = it, it
    if not text then
      return it
    end
    local most, id, count = string.match(text, '^(%d+)|([^%s;|]+) (%d+);|$')
    if id then
      it.at_most, it.used = tonumber(most), tonumber(count)
      it.has[id] = it.used
      return it
    end
    local held, waits
    most, held, waits = string.match(text, '^(%d+)|([^|]*)|([^|]*)$')
    it.at_most = tonumber(most or 0)
    for other, its in string.gmatch(held or '', '(%S+) (%d+);') do
      it.used = it.used + tonumber(its) - (it.has[other] or 0)
      it.has[other] = tonumber(its)
    end
    for other, cost, since, mark in string.gmatch(waits or '', '(%S+) (%d+) (%d+)(!?);') do
      it.queue[#it.queue + 1] = { id = other, cost = tonumber(cost), since = tonumber(since), called = mark == '!' }
    end
    it.called = it.queue[1] and it.queue[1].called
    return it
  end
  -- A holder that was ended has nothing any more, whatever the records say.
  local function only_living(it)
    local has, queue = it.has, it.queue
    it.has, it.queue, it.used = {}, {}, 0
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
          local it = parsed(keys[n], texts[n - first + 1])
          new[#new + 1] = it
          for id in next, it.has do
            knows(id)
          end
          for m = 1, #it.queue do
            knows(it.queue[m].id)
          end
        end
      end
    end
    local dead = false
    for first = 1, #ids, 1000 do
      local last = math.min(first + 999, #ids)
      for n, record in ipairs(redis.call('HMGET', holders, unpack(ids, first, last))) do
        alive[ids[first + n - 1]] = record and true
        dead = dead or not record
      end
    end
    for n = 1, dead and #new or 0 do
      only_living(new[n])
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
    for n = 1, #of.order do
      local it = of.order[n]
      local id, count = next(it.has)
      local front, text = it.queue[1], nil
      -- The first that waits is called once, until it takes or leaves, or finds no room after all.
      if front and not it.called and of.fits(it, front.cost) then
        it.called = true
        announce(calls, 'free', front.id .. ' ' .. it.key)
      end
      if not front and id and not next(it.has, id) then
        text = string.format('%d|%s %d;|', it.at_most, id, count)
      elseif front or id then
        local held, waits = {}, {}
        for other, its in pairs(it.has) do
          held[#held + 1] = string.format('%s %d;', other, its)
        end
        -- The order of a table is not that of the next server that would run this.
        table.sort(held)
        for m, other in ipairs(it.queue) do
          local mark = m == 1 and it.called and '!' or ''
          waits[m] = string.format('%s %d %.0f%s;', other.id, other.cost, other.since, mark)
        end
        text = string.format('%d|%s|%s', it.at_most, table.concat(held), table.concat(waits))
      end
      if text then
        kept[#kept + 1], kept[#kept + 2] = it.key, text
      else
        gone[#gone + 1] = it.key
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
