-- A job_submit.lua that handles only --rcuda (docs/slurm.md). The site's file runs it with dofile().
rcuda = dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "rcuda.lua")

function slurm_job_submit(job, partitions, user)
  return rcuda.submit(job)
end

function slurm_job_modify(job, record, partitions, user)
  return slurm.SUCCESS
end
