#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests. The README's second command.
# `deploy/test.sh --exhaustive` adds the tests that walk all 2^32 floats.
set -euo pipefail
cd "$(dirname "$0")/.."

exclude='exhaustive|cuda'
for argument in "$@"; do
  case "$argument" in
    --exhaustive) exclude='cuda' ;;
    *) echo "usage: $0 [--exhaustive]" >&2; exit 2 ;;
  esac
done

deploy/install_packages.sh --tests
cmake --preset release -DQUANTGATE_TESTS=ON
cmake --build --preset release
ctest --test-dir build/release --output-on-failure --parallel "$(nproc)" --label-exclude "$exclude"
if ! command -v nvidia-smi >/dev/null 2>&1; then
  left_out=$(ctest --test-dir build/release --show-only --label-regex '^cuda$' | sed -n 's/^Total Tests: //p')
  echo "no GPU here: ${left_out} tests labelled cuda were left out"
fi
