#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests. The README's second command.
# `deploy/test.sh --exhaustive` adds those with more cases than there is time for each time: all 2^32 floats, every path.
set -euo pipefail
cd "$(dirname "$0")/.."

left_out=('cuda2?' exhaustive)
for argument in "$@"; do
  case "$argument" in
    --exhaustive) left_out=('cuda2?') ;;
    *) echo "usage: $0 [--exhaustive]" >&2; exit 2 ;;
  esac
done

deploy/install_packages.sh --tests
cmake --preset release $(deploy/one_shot.sh build/release) -DQUANTGATE_TESTS=ON -DQUANTGATE_CUDA=AUTO
cmake --build --preset release
devices=$(deploy/find_gpu.sh count)
if [ "$devices" -gt 0 ]; then cmake --build --preset release --target device_tests; fi
# One that hangs fails by its name.
ctest --test-dir build/release --output-on-failure --parallel "$(nproc)" --timeout 900 \
  --label-exclude "^($(IFS='|'; echo "${left_out[*]}"))\$"

count_labelled() { ctest --test-dir build/release --show-only --label-regex "^$1\$" | sed -n 's/^Total Tests: //p'; }
if [[ ${left_out[*]} == *exhaustive* ]]; then
  echo "$(count_labelled exhaustive) exhaustive tests left out: $0 --exhaustive runs them"
fi

# run_labelled LABEL DEVICES: runs the tests with LABEL where there are DEVICES devices, else says how many are left out.
run_labelled() {
  local tests
  tests=$(count_labelled "$1")
  if [ "$tests" -eq 0 ]; then
    echo "no $1 tests: this build has no CUDA engine, since no CUDA Toolkit was found"
  elif [ "$devices" -ge "$2" ]; then
    ctest --test-dir build/release --output-on-failure --label-regex "^$1\$"  # One at a time: they share the devices.
  else
    echo "$tests $1 tests left out: $2 needed, devices here: $devices"
  fi
}
run_labelled cuda 1
run_labelled cuda2 2
