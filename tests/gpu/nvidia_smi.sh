#!/usr/bin/env bash
# Runs the machine's own nvidia-smi natively, and with the NVML of lib/rcuda on a server of this machine, and shows the
# differences. The server offers all GPUs, so both runs should show the same GPUs. Figures that change while nvidia-smi
# runs (power, utilisation, temperature) may differ.
#
#   tests/gpu/nvidia_smi.sh BUILD_FOLDER
#
# Exits with 1 if the exit statuses differ, or if one of the figures differs that do not change: names, UUIDs,
# addresses, memory, limits.
set -uo pipefail
build=$(cd "$1" && pwd)
folder=$(mktemp -d)
RCUDA_DRIVER=${RCUDA_DRIVER:-nvidia} RCUDA_LOG=info "$build/bin/rcuda-server" --port 8441 --pool 1 \
  >"$folder/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait; rm -rf "$folder"' EXIT
for _ in $(seq 100); do
  grep -q serving "$folder/server.log" && break
  sleep 0.2
done
gpus=$(nvidia-smi -L | wc -l)
pool=$(for ((gpu = 0; gpu < gpus; ++gpu)); do echo "localhost@8441:$gpu"; done | paste -sd,)
remote=(env RCUDA_DEVICES="$pool" LD_LIBRARY_PATH="$build/lib/rcuda")

fixed=index,name,uuid,pci.bus_id,driver_version,memory.total,compute_cap,power.limit,clocks.max.sm,pcie.link.gen.max
changing=memory.used,memory.free,utilization.gpu,temperature.gpu,power.draw,clocks.sm,pstate,persistence_mode,ecc.mode.current
status=0
summary=()

# compare WHAT fixed|changing [nvidia-smi's ARGUMENT ...]
compare() {
  local what=$1 kind=$2
  shift 2
  local result="the same" natively=0 remotely=0
  nvidia-smi "$@" >"$folder/native" 2>&1 || natively=$?
  "${remote[@]}" nvidia-smi "$@" >"$folder/remote" 2>&1 || remotely=$?
  echo "== nvidia-smi $*"
  cat "$folder/native"
  if cmp -s "$folder/native" "$folder/remote"; then
    echo "-- remotely the same"
  else
    echo "-- remotely (exit $remotely)"
    cat "$folder/remote"
    result="$(diff "$folder/native" "$folder/remote" | grep -c '^>') lines differ"
    [[ $kind == fixed ]] && status=1
  fi
  ((remotely == natively)) || { result="exit $natively natively, $remotely remotely"; status=1; }
  summary+=("$(printf '%-28s %s' "$what" "$result")")
}

compare "-L" fixed -L
compare "--query-gpu, fixed" fixed --query-gpu=$fixed --format=csv
compare "--query-gpu, changing" changing --query-gpu=$changing --format=csv
compare "topo -m" changing topo -m
compare "(plain)" changing
echo
printf '%s\n' "${summary[@]}"
exit $status
