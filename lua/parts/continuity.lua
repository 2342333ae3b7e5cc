-- continuity: what the caller may conclude from the silence of others. Only if this server has answered it for one ttl
-- without a gap of half a ttl has every client that survived an outage had time to reconnect.
-- Reads the caller's record, 'ttl since until server' in milliseconds; '*' if it may judge without one. `otherwise_ms`
-- is the ttl of a caller without a record.
local function continuity_of(record, otherwise_ms, now_ms)
  local ttl, since, till, server = string.match(record, '^(%d+) (%d+) (%d+) (.+)$')
  local of = { assured = record == '*', ttl_ms = tonumber(ttl or otherwise_ms), since_ms = tonumber(since) }
  of.gap_ms, of.server, of.is_anew = now_ms - (till or 0), server, (tonumber(till) or 0) == 0
  of.unbroken = ttl and of.gap_ms >= 0 and of.gap_ms < of.ttl_ms / 2
  return of
end
-- Compares the server of the record with this one, and returns the name of this one. A record that is broken already
-- stays so: the caller may skip this then.
local function identify(of)
  local server = identity()
  of.unbroken = of.unbroken and of.server == server
  return server
end
-- Milliseconds until the caller may treat silence as an end: after `identify`.
local function judges_in(of, now_ms)
  if of.assured then
    return 0
  end
  return of.unbroken and math.max(of.since_ms + of.ttl_ms - now_ms, 0) or of.ttl_ms
end
