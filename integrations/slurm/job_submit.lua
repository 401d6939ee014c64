-- A job_submit.lua that does nothing but --rcuda (docs/slurm.md).
local rcuda = dofile("/usr/lib/rcuda/lib/slurm/rcuda.lua")

function slurm_job_submit(job, partitions, user)
  return rcuda.submit(job)
end

function slurm_job_modify(job, record, partitions, user)
  return slurm.SUCCESS
end

return slurm.SUCCESS
