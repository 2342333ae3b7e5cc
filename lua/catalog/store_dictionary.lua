-- store_dictionary: stores a dictionary for the packs of a topic: under the next version, or again under its own.
-- KEYS[1] meta HASH the topic's settings
-- KEYS[2] dictionaries HASH the dictionaries of the topic's packs, by '<version>:<id>'
-- ARGV[1] dictionary its bytes
-- ARGV[2] id the id in its header
-- ARGV[3] generation the topic's, as the caller knows it: its 'reborn', or 0
-- ARGV[4] version that the dictionary has had, if it was lost; 0 for the next one
-- returns the version; or the error NOTOPIC, also for a topic of another generation
local meta, dictionaries = KEYS[1], KEYS[2]
local dictionary, id, generation, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local known = redis.call('HMGET', meta, 'partitionCount', 'deleting', 'reborn', 'dictionary')
if not known[1] or known[2] then
  return redis.error_reply('NOTOPIC the topic is not there')
elseif (known[3] or '0') ~= generation then
  return redis.error_reply('NOTOPIC the topic was deleted and created again')
end
version = tonumber(version)
local newest = tonumber(string.match(known[4] or '', '^(%d+):')) or 0
if version == 0 then
  version = newest + 1
end
if version > 4294967295 then
  return redis.error_reply('ERR the topic has had too many dictionaries')
end
local name = string.format('%.0f:%s', version, id)
-- Packs name it: it is never stored over another. One of the same name has the same contents.
redis.call('HSETNX', dictionaries, name, dictionary)
-- Last: a dictionary that is named can be read.
if version > newest then
  redis.call('HSET', meta, 'dictionary', name)
end
return version
