#!/usr/bin/env bash
# Runs every test program of a bundle that needs a GPU, one after the other, and counts. Those that need two, by their
# names NAME_cuda2_test, are left out where there is one. The two parity programs draw cases for --seconds each.
# usage: ./run_cuda_tests.sh [--only REGEX] [--skip REGEX] [--seconds N] [--logs FOLDER]
# Exits 1 where a program failed, 4 where there is nothing to run or no device to run it on.
set -euo pipefail
usage() { echo "usage: $0 [--only REGEX] [--skip REGEX] [--seconds N] [--logs FOLDER]" >&2; exit 2; }
only=. skip='^$' seconds=30 logs=
while [ $# -gt 0 ]; do
  if [ $# -lt 2 ]; then usage; fi
  case "$1" in
    --only) only=$2 ;;
    --skip) skip=$2 ;;
    --seconds) seconds=$2 ;;
    --logs) logs=$2 ;;
    *) usage ;;
  esac
  shift 2
done
root=$(cd "$(dirname "$0")" && pwd)
if [ -n "$logs" ]; then mkdir -p "$logs"; else logs=$(mktemp -d); fi
logs=$(cd "$logs" && pwd)

# Where the tests find the files they read, and cuBLASLt where ld.so does not know it.
export QUANTGATE_TEST_ROOT=$root
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib

programs=()
left_out=0
for program in "$root"/tests/*; do
  if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
  name=${program##*/}
  if [[ $name =~ $only ]] && ! [[ $name =~ $skip ]]; then programs+=("$name"); else left_out=$((left_out + 1)); fi
done
if [ ${#programs[@]} -eq 0 ]; then echo "no test program of $root/tests is named so" >&2; exit 4; fi
devices=$({ nvidia-smi -L 2>/dev/null || ls -d /dev/nvidia[0-9]* 2>/dev/null || true; } |
  grep -cE '^(GPU|/dev/nvidia)' || true)
if [ "$devices" -eq 0 ]; then
  echo "${#programs[@]} cuda test programs left out: no device" >&2
  exit 4
fi
runnable=()
for name in "${programs[@]}"; do
  if [[ $name == *_cuda2_test ]] && [ "$devices" -lt 2 ]; then continue; fi
  runnable+=("$name")
done
need_two=$((${#programs[@]} - ${#runnable[@]}))
if [ ${#runnable[@]} -eq 0 ]; then
  echo "$need_two cuda2 test programs left out: 2 devices needed, 1 here" >&2
  exit 4
fi

passed=0
failed=()
for name in "${runnable[@]}"; do
  arguments=()
  case "$name" in *_parity) arguments=("$seconds") ;; esac
  start=$(date +%s)
  code=0
  "$root/tests/$name" "${arguments[@]}" >"$logs/$name.log" 2>&1 || code=$?
  if [ "$code" -eq 0 ]; then
    passed=$((passed + 1)); verdict=passed
  else
    failed+=("$name"); verdict="FAILED with exit code $code"
  fi
  summary=$(grep -E '^\[  PASSED|^\[  FAILED.* tests?, listed|differ$' "$logs/$name.log" | tail -1 || true)
  printf '%-32s %s in %d s  %s\n' "$name" "$verdict" "$(($(date +%s) - start))" "$summary"
done
if [ "$need_two" -gt 0 ]; then echo "$need_two cuda2 test programs left out: 2 devices needed, 1 here"; fi
echo "$passed of ${#runnable[@]} cuda test programs passed, ${#failed[@]} failed, $left_out not asked for; logs in $logs"
if [ ${#failed[@]} -gt 0 ]; then
  for name in "${failed[@]}"; do printf -- '--- %s\n' "$name"; tail -15 "$logs/$name.log"; done
  exit 1
fi
