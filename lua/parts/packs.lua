-- packs: returns the messages beyond one an entry in all packs up to the id of an entry. At least one pack must be
-- known.
local function more_up_to(packs, id)
  local pack = redis.call('XREVRANGE', packs, id, '-', 'COUNT', 1)[1]
  if pack then
    return tonumber(pack[2][4])
  end
  local oldest = redis.call('XRANGE', packs, '-', '+', 'COUNT', 1)[1]
  return tonumber(oldest[2][4]) - tonumber(oldest[2][2]) + 1
end
