-- store_dictionary: stores a dictionary for the packs of a topic: under the next version, or again under its own.
-- KEYS[1] meta HASH the topic's settings
-- KEYS[2] dictionaries HASH the dictionaries of the topic's packs, by '<version>:<id>'
-- ARGV[1] dictionary its bytes
-- ARGV[2] id the id in its header
-- ARGV[3] generation the topic's, as the caller knows it: its 'reborn', or 0
-- ARGV[4] mode 'next' stores it under the next version; 'lost' under its own, and as the newest if it is;
--   'earlier' under its own, and leaves the newest: it is that of a topic before this one, for packs in its log
-- ARGV[5] version that the dictionary has had, or 0
-- returns the version; or the error NOTOPIC, also for a topic of another generation
local meta, dictionaries = KEYS[1], KEYS[2]
local dictionary, id, generation, mode, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local known = redis.call('HMGET', meta, 'partitionCount', 'deleting', 'reborn', 'dictionary')
if not known[1] or known[2] then
  return redis.error_reply('NOTOPIC the topic is not there')
elseif (known[3] or '0') ~= generation then
  return redis.error_reply('NOTOPIC the topic was deleted and created again')
end
local newest = tonumber(string.match(known[4] or '', '^(%d+):')) or 0
version = mode == 'next' and newest + 1 or tonumber(version)
if version > 4294967295 then
  return redis.error_reply('ERR the topic has had too many dictionaries')
end
local name = string.format('%.0f:%s', version, id)
-- One of the same name has the same contents: what stands under it otherwise is damaged.
redis.call(mode == 'next' and 'HSETNX' or 'HSET', dictionaries, name, dictionary)
-- Last: a dictionary that is named can be read.
if version > newest and mode ~= 'earlier' then
  redis.call('HSET', meta, 'dictionary', name)
end
return version
