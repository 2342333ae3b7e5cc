-- clock: returns the server's time in microseconds, in milliseconds, and as text of milliseconds.
local function clock()
  local time = redis.call('TIME')
  local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local ms = math.floor(us / 1000)
  return us, ms, string.format('%.0f', ms)
end
