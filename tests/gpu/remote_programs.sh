#!/usr/bin/env bash
# Runs the CUDA programs of tests/programs, the programs of all CUDA versions (tests/generations) and a few lines of
# PyTorch on a real GPU: natively, and remotely over shared memory and TCP, with one server and with two. Prints the
# differences from the recorded output, by program and mode, then a table.
#
#   tests/gpu/remote_programs.sh BUILD_FOLDER [program ...]
#
# Starts three servers on this machine: the first with GPU 0, the second with the last GPU (which may also be GPU 0), the
# third with all GPUs, for programs that use several. Needs an NVIDIA driver. Skips PyTorch if it is not installed.
#
# MODES="shm tcp" runs only these modes.
#
# A native process spends most of its time in its start, so several programs run at the same time. Programs whose output
# differs then run once more, alone, because some programs read the amount of free memory. Programs that make or reset
# contexts always run alone: a driver makes one context at a time on the whole machine, so such a program may wait for
# minutes while others start. At the end all sessions must have ended.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
programs=$build/tests/programs
expected=$here/../programs/expected
generations=$build/tests/generations
work=$(mktemp -d)
client=$build/lib/librcuda.so
gpus=$(nvidia-smi -L | wc -l)
seconds=${SECONDS_PER_PROGRAM:-60}
servers=() runs=()
trap 'kill "${servers[@]}" 2>/dev/null; rm -rf "$work"' EXIT
trap 'echo "--- stopped; done by then: $(wc -l <"$work/times") of ${#tasks[@]}, not ${tasks[*]:$(<"$work/next")}; of these differed:"
      while read -r _ _ name mode; do [[ -e $work/$name.$mode.first ]] && cat "$work/$name.$mode.first"; done <"$work/times"
      sort -rn "$work/times" | head -8; exit 143' TERM

start_server() {  # PORT GPU
  RCUDA_DRIVER=${RCUDA_DRIVER:-nvidia} RCUDA_LOG=info \
    "$build/bin/rcuda-server" --port "$1" --devices "$2" --pool 4 \
    >"$work/server-$1.log" 2>&1 &
  servers+=($!)
}
start_server 8421 0
start_server 8422 $((gpus - 1))
start_server 8423 "$(seq -s, 0 $((gpus - 1)))"
for _ in $(seq 100); do
  (($(grep -l serving "$work"/server-*.log | wc -l) == 3)) && break
  sleep 0.2
done
grep -h serving "$work"/server-*.log || { cat "$work"/server-*.log; exit 1; }

run_in() {  # MODE COMMAND...: runs the command natively or remotely
  local mode=$1
  shift
  case $mode in
    native) timeout -k 5 "$seconds" "$@" ;;
    shm) RCUDA_DEVICES=localhost@8421:0 RCUDA_TRANSPORT=shm LD_PRELOAD=$client timeout -k 5 "$seconds" "$@" ;;
    tcp) RCUDA_DEVICES=localhost@8421:0 RCUDA_TRANSPORT=tcp LD_PRELOAD=$client timeout -k 5 "$seconds" "$@" ;;
    gpus) RCUDA_DEVICES=$(seq -s, -f 'localhost@8423:%g' 0 $((gpus - 1))) LD_PRELOAD=$client timeout -k 5 "$seconds" "$@" ;;
    two) RCUDA_DEVICES=localhost@8421:0,localhost@8422:$((gpus - 1)) LD_PRELOAD=$client timeout -k 5 "$seconds" "$@" ;;
  esac
}

expected_of() {  # PROGRAM: the file with its expected output
  case $1 in
    runtime_calls* | driver_calls* | driver_version) echo "$here/../generations/expected/${1%%-*}.txt" ;;
    *) echo "$expected/$1.txt" ;;
  esac
}

differs() {  # NAME MODE: runs the program; true, with a report, if its output is not the expected output
  local out=$work/$1.$2.out err=$work/$1.$2.err folder status
  folder=$programs
  [[ -x $folder/$1 ]] || folder=$generations
  (cd "$folder" && run_in "$2" "./$1") >"$out" 2>"$err"
  status=$?
  cmp -s "$out" "$(expected_of "$1")" && return 1
  echo "--- $1, $2: exit $status
$(diff "$out" "$(expected_of "$1")" | head -30)
$(grep -v ' info: ' "$err" | tail -2)"
}

names=("$@")
if ((!${#names[@]})); then
  mapfile -t names < <(cd "$expected" && ls -- *.txt | sed 's/\.txt$//'
                       cd "$generations" && find . -maxdepth 1 -type f -executable -printf '%f\n' | sort)
fi
read -ra modes <<<"${MODES:-native shm tcp two gpus}"
several=" context_lives device_queries foreign_memory full_queues interprocess lifetimes peer_copies peer_trains several_devices shared_descriptors virtual_memory "
makes_contexts=$(cd "$here/.." && grep -lE 'cuCtxCreate|PrimaryCtxRe(set|lease)|cudaDeviceReset' programs/*.c* |
                 xargs -n1 basename | sed 's/\.[^.]*$//' | paste -sd' ')
declare -A passed failed
tasks=() all=()
for name in "${names[@]}"; do
  [[ -x $programs/$name || -x $generations/$name ]] || continue
  for mode in "${modes[@]}"; do
    [[ $mode == gpus && $several != *" $name "* ]] && continue
    [[ $mode == two && $gpus == 1 && $name == device_queries ]] && continue  # this program would see one GPU twice
    all+=("$name $mode")
    if [[ " $makes_contexts " == *" $name "* ]]; then
      touch "$work/$name.$mode.first"
    else
      tasks+=("$name $mode")
    fi
  done
done
at_once=$((${AT_ONCE:-8}))
echo 0 >"$work/next"
next_task() {  # the number of the next task that no loop has taken
  local number
  { flock 9; number=$(<"$work/next"); echo $((number + 1)) >"$work/next"; } 9>>"$work/next.lock"
  echo "$number"
}
for ((worker = 0; worker < at_once; ++worker)); do
  while i=$(next_task); ((i < ${#tasks[@]})); do
    read -r name mode <<<"${tasks[i]}"
    start=$SECONDS
    differs "$name" "$mode" >"$work/$name.$mode.first" || rm "$work/$name.$mode.first"
    echo "$((SECONDS - start)) s $name $mode" >>"$work/times"
  done &
  runs+=($!)
done
wait "${runs[@]}"
echo "--- the slowest: $(sort -rn "$work/times" | head -8 | paste -sd';')"
again=()
for task in "${tasks[@]}"; do
  [[ -e $work/${task/ /.}.first ]] && again+=("${task/ /.}")
done
echo "--- after $SECONDS s; these differed and run again, alone: ${again[*]:-none};" \
     "$((${#all[@]} - ${#tasks[@]})) that make contexts run alone"
for task in "${all[@]}"; do
  read -r name mode <<<"$task"
  if [[ -e $work/$name.$mode.first ]] && differs "$name" "$mode"; then
    failed[$mode]+=" $name"
  else
    passed[$mode]=$((${passed[$mode]:-0} + 1))
  fi
done

if python3 -c 'import torch' 2>/dev/null; then
  for mode in "${modes[@]}"; do
    [[ $mode == two || $mode == gpus ]] && continue
    # PyTorch counts devices by NVML, which has this machine's GPUs and not those of the pool.
    CUDA_VISIBLE_DEVICES=0 run_in "$mode" python3 "$here/torch_steps.py" >"$work/torch.$mode" 2>"$work/err"
    status=$?
    echo "--- PyTorch, $mode: exit $status; $(tail -1 "$work/torch.$mode")"
    if ((status)); then
      grep -v ' info: ' "$work/err" | tail -25
      failed[$mode]+=" torch_steps"
    fi
  done
fi

# Every program has ended, some of them with kernels that never end. No session may be left.
for _ in $(seq 100); do
  left=$(for port in 8421 8422 8423; do "$build/bin/rcuda-smi" "localhost@$port"; done | grep -c ', worker ')
  ((left)) || break
  sleep 0.1
done
echo "--- sessions left on the servers: $left"

echo
printf '%-8s %7s  %s\n' mode passed failed
for mode in "${modes[@]}"; do printf '%-8s %7d %s\n' "$mode" "${passed[$mode]:-0}" "${failed[$mode]:-}"; done
((left == 0)) && [[ -z ${failed[shm]:-}${failed[tcp]:-}${failed[two]:-}${failed[gpus]:-} ]]
