-- due: returns a time in milliseconds, at most 100 years from now, from that text or from '+' and microseconds from
-- now. It is rounded up: nothing is due too early.
local function due_at(text, now_us)
  if string.byte(text) == 43 then
    return math.ceil((now_us + tonumber(text)) / 1000)
  end
  return math.min(tonumber(text), math.floor(now_us / 1000) + 36500 * 24 * 3600 * 1000)
end
