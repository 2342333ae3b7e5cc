-- dead_claim: returns whether a claim of a dead letter holds, by whom ('-' if it was left for later), and when it ends.
local CLAIM_GRACE_MS = 1000
local function dead_claim(text, now_ms)
  local ends, hold, by = string.match(text or '', '^(%d+) (%d+) (%S+)$')
  -- After the clock went back a claim would hold for longer than was requested.
  local holds = ends and tonumber(ends) > now_ms and tonumber(ends) <= now_ms + tonumber(hold) + CLAIM_GRACE_MS
  return holds, by, tonumber(ends)
end
