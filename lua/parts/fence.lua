-- fence: whether a token is that of the last grant, which was not released since. An empty token never is.
local function is_owner(fence, token)
  return token ~= '' and redis.call('HGET', fence, 'token') == token
end
-- In shared mode a consumer has no lease: each of its entries is compared with its name instead. Any other mode is
-- checked.
local function may_change(fence, mode, who)
  return mode == 'consumer' or is_owner(fence, who)
end
local function fenced(what)
  return redis.error_reply('FENCED ' .. (what or 'lease') .. ' is lost')
end
-- A read names the gate of the reader that was begun last, a stream without entries that has the word of the reader in its name: without it nothing is
-- read. Returns what the caller has to return if another reader was begun last than the one whose gate it was given: it is called again then.
local function other_reader(fence, reader)
  local last = redis.call('HGET', fence, 'reader') or ''
  return last ~= reader and { 'READER', last } or nil
end
