#!/usr/bin/env bash
# Runs the CUDA programs of tests/programs and a few lines of PyTorch on a real GPU: natively, and
# through the whole remote path over shared memory and TCP, with one server and with two. Prints one
# line per program and mode that differs from tests/programs/expected, then a table.
#
#   tests/gpu/remote_programs.sh BUILD_FOLDER [program ...]
#
# Two servers are started on this machine: the first with GPU 0, the second with the last GPU (the same
# one where there is only one). Needs an NVIDIA driver; PyTorch is skipped where it is not installed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
programs=$build/tests/programs
expected=$here/../programs/expected
work=$(mktemp -d)
client=$build/lib/librcuda.so
gpus=$(nvidia-smi -L | wc -l)
servers=()
trap 'kill "${servers[@]}" 2>/dev/null; rm -rf "$work"' EXIT

start_server() {  # PORT GPU
  RCUDA_DRIVER=nvidia RCUDA_LOG=info "$build/bin/rcuda-server" --port "$1" --devices "$2" \
    >"$work/server-$1.log" 2>&1 &
  servers+=($!)
}
start_server 8421 0
start_server 8422 $((gpus - 1))
for _ in $(seq 100); do
  grep -q serving "$work/server-8421.log" && grep -q serving "$work/server-8422.log" && break
  sleep 0.2
done
grep -h serving "$work"/server-*.log || { cat "$work"/server-*.log; exit 1; }

run_in() {  # MODE COMMAND...: runs the command natively or remotely
  local mode=$1
  shift
  case $mode in
    native) timeout 60 "$@" ;;
    shm) RCUDA_DEVICES=localhost@8421:0 RCUDA_TRANSPORT=shm LD_PRELOAD=$client timeout 60 "$@" ;;
    tcp) RCUDA_DEVICES=localhost@8421:0 RCUDA_TRANSPORT=tcp LD_PRELOAD=$client timeout 60 "$@" ;;
    two) RCUDA_DEVICES=localhost@8421:0,localhost@8422:$((gpus - 1)) LD_PRELOAD=$client timeout 60 "$@" ;;
  esac
}

names=("$@")
((${#names[@]})) || mapfile -t names < <(cd "$expected" && ls -- *.txt | sed 's/\.txt$//')
modes=(native shm tcp two)
declare -A passed failed
for mode in "${modes[@]}"; do passed[$mode]=0; failed[$mode]=""; done
for name in "${names[@]}"; do
  [[ -x $programs/$name ]] || continue
  for mode in "${modes[@]}"; do
    (cd "$programs" && run_in "$mode" "./$name") >"$work/out" 2>"$work/err"
    status=$?
    if cmp -s "$work/out" "$expected/$name.txt"; then
      passed[$mode]=$((passed[$mode] + 1))
    else
      failed[$mode]+=" $name"
      echo "--- $name, $mode: exit $status"
      diff "$work/out" "$expected/$name.txt" | head -12
      grep -v ' info: ' "$work/err" | tail -2
    fi
  done
done

if python3 -c 'import torch' 2>/dev/null; then
  for mode in native shm tcp; do
    # PyTorch counts devices by NVML, which knows this machine's GPUs and not the pool.
    CUDA_VISIBLE_DEVICES=0 run_in "$mode" python3 "$here/torch_steps.py" >"$work/torch.$mode" 2>"$work/err"
    status=$?
    echo "--- PyTorch, $mode: exit $status; $(tail -1 "$work/torch.$mode")"
    if ((status)); then
      grep -v ' info: ' "$work/err" | tail -25
      failed[$mode]+=" torch_steps"
    fi
  done
fi

echo
printf '%-8s %7s  %s\n' mode passed failed
for mode in "${modes[@]}"; do printf '%-8s %7d %s\n' "$mode" "${passed[$mode]}" "${failed[$mode]:-}"; done
[[ -z ${failed[shm]}${failed[tcp]}${failed[two]} ]]
