#!/usr/bin/env bash
# Copies between two servers with a GPU each, on a machine with two GPUs. On a machine with one GPU both servers use it,
# and the figures are those of two processes on one GPU. The parts:
#   programs   the test programs that use several devices
#   copies     copies by size, compared with cudaMemcpyPeer on the same GPUs and with plain sockets (bench/p2p)
#   firsts     the first copies of sessions
#   model      the model's predictions for each strategy
#   planner    the planner's choices, compared with all other choices
#   triangles  triangle counting (bench/triangles), alternately native and remote
#
#   tests/gpu/peer_copies.sh BUILD_FOLDER RESULTS_FOLDER [programs] [copies] [firsts] [model] [planner] [triangles]
#
# By default runs all six parts. Exits with 1 if the output of a program is wrong.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
results=$(cd "$2" && pwd)
shift 2
parts=" ${*:-programs copies firsts model planner triangles} "
servers=()
trap 'kill "${servers[@]}" 2>/dev/null' EXIT

# By default a worker of root's server does not see GPUs of other servers, so it cannot map their memory (ipc).
export RCUDA_SERVER_DEVICE_ISOLATION=commands
gpus=$(nvidia-smi -L | wc -l)
for server in 0 1; do
  RCUDA_DRIVER=${RCUDA_DRIVER:-nvidia} RCUDA_LOG=info \
    "$build/bin/rcuda-server" --port $((8431 + server)) --devices $((server * (gpus - 1))) \
    >"$results/server$server.log" 2>&1 &
  servers+=($!)
done
for _ in $(seq 100); do
  (($(grep -l serving "$results"/server?.log | wc -l) == 2)) && break
  sleep 0.2
done
remote=(env RCUDA_DEVICES=localhost@8431:0,localhost@8432:$((gpus - 1)) LD_PRELOAD="$build/lib/librcuda.so")

status=0
if [[ $parts == *" programs "* ]]; then
  for program in peer_copies peer_trains several_devices; do
    expected=$here/../programs/expected/$program.txt
    for way in native auto shm tcp; do
      runner=()
      [[ $way != native ]] && runner=("${remote[@]}" RCUDA_P2P_PATH=$way)
      if timeout 90 "${runner[@]}" "$build/tests/programs/$program" >"$results/out" 2>"$results/err" &&
        cmp -s "$results/out" "$expected"; then
        echo "$program, $way: as expected"
      else
        echo "$program, $way: WRONG"
        grep -v ' info: ' "$results/err" | head -5
        status=1
      fi
    done
  done
fi
run=(python3 "$here/../../bench/p2p/run.py" --program "$build/bench/p2p/p2p" --out "$results"
  --remote "${remote[*]:1}" --rounds "${ROUNDS:-3}" --seconds 0.05)
if [[ $parts == *" copies "* ]]; then
  "${run[@]}" --native --sockets "$build/bench/p2p/sockets" --strategies auto --paths shm,ipc,tcp --min 4K
  cat "$results/p2p.csv"
  "$build/bench/p2p/staged" # the shortest possible time with staging in host memory
  "$build/bench/p2p/staged_sockets" # the shortest possible time with staging and sockets
fi
# The first copy of a session: immediately, and after a second in which the workers can connect and measure.
if [[ $parts == *" firsts "* ]]; then
  for settle in 0 1; do
    for size in 64K 1M 16M; do
      "${run[@]}" --native --strategies auto --paths shm,ipc,tcp --min $size --max $size --settle $settle >"$results/out"
      sed "s/^/settle $settle s,/" "$results/p2p.csv" | tail -n +2 | cut -d, -f1-5
    done
  done
  "$build/bench/p2p/staged" --settle 1 # the first copy of two processes whose threads never sleep
  # The duration of a whole program that copies 64 KB. The pause lets the previous session release its GPUs.
  for path in shm tcp auto; do
    for _ in 1 2 3 4 5 6; do
      begin=$(date +%s%N)
      "${remote[@]}" RCUDA_P2P_PATH=$path "$build/bench/p2p/p2p" --min 64K --max 64K --seconds 0.001 >"$results/out"
      echo $((($(date +%s%N) - begin) / 1000000))
      sleep 0.5
    done | sort -n | sed -n "3p" | sed "s/^/program that copies 64 KB and ends, $path, ms: /"
  done
fi
# The predicted and the measured times of each strategy between the workers, without a program.
if [[ $parts == *" model "* ]]; then
  for path in shm ipc tcp; do
    for strategy in auto v2b v3b v4b; do
      [[ $path == ipc && $strategy != auto ]] && continue
      echo "$strategy over $path:"
      "$build/bin/rcuda-p2p" plan --from localhost@8431:0 --to localhost@8432:$((gpus - 1)) --strategy $strategy --path $path
    done
  done
fi
if [[ $parts == *" planner "* ]]; then
  "${run[@]}" --exhaustive --paths shm,ipc,tcp --min 64K
fi
if [[ $parts == *" triangles "* ]]; then
  for _ in 1 2 3; do
    echo "native:" && "$build/bench/triangles/triangles" --scale 22 --repeat 3
    echo "remote:" && "${remote[@]}" "$build/bench/triangles/triangles" --scale 22 --repeat 3
  done
fi
exit $status
