-- Appends to the streams in KEYS, in order, until one of them does not take it. ARGV has for each how many
-- arguments its XADD has, and these. Answers how many were appended, and why not the next one.
local place = 1
for n, stream in ipairs(KEYS) do
  local last = place + tonumber(ARGV[place])
  local answer = redis.pcall('XADD', stream, unpack(ARGV, place + 1, last))
  if type(answer) == 'table' and answer.err then
    return {n - 1, answer.err}
  end
  place = last + 1
end
return {#KEYS, ''}
