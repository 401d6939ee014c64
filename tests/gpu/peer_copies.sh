#!/usr/bin/env bash
# Copies between two servers with a GPU each, on a machine with two GPUs. With one GPU both servers have
# it, and the figures are those of two processes on one GPU. It runs the programs that use several
# devices, copies by size against cudaMemcpyPeer on the same GPUs and against plain sockets (bench/p2p),
# the first copies of sessions, what the model predicts of each strategy, the planner's choices against
# all others, and triangle counting natively and remotely (bench/triangles), alternating.
#
#   tests/gpu/peer_copies.sh BUILD_FOLDER RESULTS_FOLDER [programs] [copies] [firsts] [model] [planner] [triangles]
#
# Without a choice it does all six. Exits with 1 when a program's output is not what it must be.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
results=$(cd "$2" && pwd)
shift 2
parts=" ${*:-programs copies firsts model planner triangles} "
servers=()
trap 'kill "${servers[@]}" 2>/dev/null' EXIT

# A worker of root's server does not see GPUs of other servers, so it could not map their memory (ipc).
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
  "$build/bench/p2p/staged" # what any staging in host memory takes at best
  "$build/bench/p2p/staged_sockets" # and where sockets carry it
fi
# The first copy of a session, at once and when the workers have had time to get to know each other.
if [[ $parts == *" firsts "* ]]; then
  for settle in 0 1; do
    for size in 64K 1M 16M; do
      "${run[@]}" --native --strategies auto --paths shm,ipc,tcp --min $size --max $size --settle $settle >"$results/out"
      sed "s/^/settle $settle s,/" "$results/p2p.csv" | tail -n +2 | cut -d, -f1-5
    done
  done
  "$build/bench/p2p/staged" --settle 1 # what a first copy costs two processes none of whose threads sleeps
  # And the whole of a program that copies 64 KB, some of it after the one before has let go of its GPUs.
  for path in shm tcp auto; do
    for _ in 1 2 3 4 5 6; do
      begin=$(date +%s%N)
      "${remote[@]}" RCUDA_P2P_PATH=$path "$build/bench/p2p/p2p" --min 64K --max 64K --seconds 0.001 >"$results/out"
      echo $((($(date +%s%N) - begin) / 1000000))
      sleep 0.5
    done | sort -n | sed -n "3p" | sed "s/^/program that copies 64 KB and ends, $path, ms: /"
  done
fi
# Each strategy as the model has it and as the workers take it, without a program between them.
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
