#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests. The README's second command.
# `deploy/test.sh --exhaustive` adds the tests that walk all 2^32 floats.
set -euo pipefail
cd "$(dirname "$0")/.."

left_out=(cuda exhaustive)
for argument in "$@"; do
  case "$argument" in
    --exhaustive) left_out=(cuda) ;;
    *) echo "usage: $0 [--exhaustive]" >&2; exit 2 ;;
  esac
done

deploy/install_packages.sh --tests
cmake --preset release $(deploy/one_shot.sh build/release) -DQUANTGATE_TESTS=ON -DQUANTGATE_CUDA=AUTO
cmake --build --preset release
ctest --test-dir build/release --output-on-failure --parallel "$(nproc)" \
  --label-exclude "^($(IFS='|'; echo "${left_out[*]}"))\$"

cuda_tests=$(ctest --test-dir build/release --show-only --label-regex '^cuda$' | sed -n 's/^Total Tests: //p')
if [ "$cuda_tests" -eq 0 ]; then
  echo "no cuda tests: this build has no CUDA engine, since no CUDA Toolkit was found"
elif deploy/find_gpu.sh device; then
  ctest --test-dir build/release --output-on-failure --label-regex '^cuda$'  # One at a time: they share the device.
else
  echo "$cuda_tests cuda tests left out: no device"
fi
