-- renew: extends leases by another ttl; one that merely expired is revived as long as no other owner acquired it.
-- KEYS[1] lease... STRING the token while the lease is valid
-- KEYS[2] fence... HASH owner, token, epoch and ttl of the last grant; then these two of each further lease
-- ARGV[1] token... of the grant
-- ARGV[2] ttl_ms... validity of the lease from now on; then these two of each further lease, at most 250
-- returns of each lease 1, 'FENCED', or the server's error at one of its keys
local keys, args = KEYS, ARGV
local leases, answers = {}, {}
for at = 1, #keys, 2 do
  leases[#leases + 1] = keys[at]
end
-- One command for all, and one for each. The common path writes leases only.
local all_held = redis.call('MGET', unpack(leases))
for i, lease in ipairs(leases) do
  local fence, token, ttl_ms, held = keys[2 * i], args[2 * i - 1], args[2 * i], all_held[i]
  if held == token then
    redis.call('PEXPIRE', lease, ttl_ms)
    answers[i] = 1
  else
    -- Nothing may be a value of another type. An error at one must not end what is done for the others.
    local found, last = held or redis.pcall('GET', lease), redis.pcall('HGET', fence, 'token')
    local failed = type(found) == 'table' and found or type(last) == 'table' and last
    if failed then
      answers[i] = failed.err
    elseif not found and token ~= '' and last == token then
      -- A write that is never refused comes first: a server that is out of memory then accepts SET too.
      redis.call('DEL', lease)
      redis.call('SET', lease, token, 'PX', ttl_ms)
      answers[i] = 1
    else
      answers[i] = 'FENCED'
    end
  end
end
return answers
