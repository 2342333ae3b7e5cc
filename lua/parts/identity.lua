-- identity: returns a name of this run of the server with this history, or '-'. A restarted process, or a replica that
-- became primary, is another server. Both INFO take 8 µs, once in a call of the script.
local named
local function identity()
  if named then
    return named
  end
  local process, history = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
  local run = type(process) == 'string' and string.match(process, 'run_id:(%x+)')
  local replica = type(history) == 'string' and string.match(history, 'master_replid:(%x+)')
  named = run and replica and run .. '.' .. replica or '-'
  return named
end
