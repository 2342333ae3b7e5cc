-- store_dictionary: stores a dictionary for the packs of a topic, under the next version.
-- KEYS[1] meta HASH the topic's settings
-- KEYS[2] dictionaries HASH the dictionaries of the topic's packs, by version
-- ARGV[1] dictionary its bytes
-- returns the version; or the error NOTOPIC
local meta, dictionaries = KEYS[1], KEYS[2]
local dictionary = ARGV[1]

local known = redis.call('HMGET', meta, 'partitionCount', 'dictionary')
if not known[1] then
  return redis.error_reply('NOTOPIC the topic is not there')
end
-- Packs name versions: none is ever stored over another, whatever the settings say.
local version = math.max(tonumber(known[2] or '0') or 0, redis.call('HLEN', dictionaries)) + 1
local text = string.format('%.0f', version)
if redis.call('HSETNX', dictionaries, text, dictionary) == 0 then
  return redis.error_reply('ERR there is a dictionary of version ' .. text)
end
-- Last: a version that is named can be read.
redis.call('HSET', meta, 'dictionary', text)
return version
