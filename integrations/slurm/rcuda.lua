-- Turns --rcuda=N[:type] and --rcuda-mem=SIZE into licences, which Slurm's controller counts (docs/slurm.md).
--
-- job_submit.lua:   local rcuda = dofile("/usr/lib/rcuda/lib/slurm/rcuda.lua")
--                   function slurm_job_submit(job, partitions, user) return rcuda.submit(job) end
--                   function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
--
-- In srun, sbatch and salloc, the plug-in spank_rcuda.so checks the options. Other clients of Slurm may not load the plug-in.
local rcuda = {pool = "/etc/rcuda/slurm-pool"}

local units = {[""] = 1 / 1024 / 1024, k = 1 / 1024, m = 1, g = 1024, t = 1024 * 1024}

-- Reads sizes as common/base/units.h does: 20G, 1.5T, 20 GiB. Returns nil for other texts, and for sizes below 1 MiB.
function rcuda.mebibytes(text)
  local number, unit, rest = text:lower():match("^(%d+%.?%d*) ?([kmgt]?)(i?b?)$")
  if not number or not tonumber(number) or rest == "i" or (unit == "" and rest == "ib") then return nil end
  local size = math.floor(tonumber(number) * units[unit])
  return size > 0 and size or nil
end
local mebibytes = rcuda.mebibytes

-- The types of the pool with their memory, in the order of the file.
local function types()
  local file, message = io.open(rcuda.pool)
  if not file then return nil, message end
  local found = {}
  for line in file:lines() do
    local name, memory = line:gsub("#.*", ""):match("^%s*(%S+)%s+(%S+)")
    if name then table.insert(found, {name = name, memory = mebibytes(memory) or 0}) end
  end
  file:close()
  return found
end

-- The argument of an option of spank_rcuda.so; nil if the user has not given the option.
local function option(job, name)
  local variables, index = job.spank_job_env, 0
  while variables and variables[index] do
    local value = variables[index]:match("^_SLURM_SPANK_OPTION_rcuda_" .. name .. "=(.*)$")
    if value then return value end
    index = index + 1
  end
end

-- The licence for a request, or nil and an error.
function rcuda.licence(request, memory)
  local count, name = request:match("^(%d+):?([%w_-]*)$")
  local least = memory and mebibytes(memory) or 0
  if not count or tonumber(count) == 0 then
    return nil, "--rcuda=" .. request .. " is not usable: write --rcuda=2 or --rcuda=2:type"
  end
  if memory and least == 0 then
    return nil, "--rcuda-mem=" .. memory .. " is not usable: write a size with its unit, such as --rcuda-mem=20G"
  end
  local all, message = types()
  if not all then return nil, "Slurm's controller cannot read the pool of remote GPUs: " .. message end
  local known = {}
  for _, one in ipairs(all) do
    table.insert(known, one.name .. " (" .. one.memory / 1024 .. "G)")
    if (name == "" or name == one.name) and one.memory >= least then
      return "rcuda_" .. one.name .. ":" .. count
    end
  end
  return nil, "the pool has no remote GPUs" .. (name == "" and "" or " of type " .. name) ..
    (memory and " with " .. memory or "") .. "; it has " .. table.concat(known, ", ")
end

function rcuda.submit(job)
  local request = option(job, "rcuda")
  if not request then return slurm.SUCCESS end
  local licence, message = rcuda.licence(request, option(job, "rcuda_mem"))
  if not licence then
    slurm.log_user("rcuda: %s", message)
    return slurm.ERROR
  end
  if job.licenses and job.licenses ~= "" then licence = job.licenses .. "," .. licence end
  job.licenses = licence
  return slurm.SUCCESS
end

return rcuda
