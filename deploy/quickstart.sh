#!/usr/bin/env bash
# From nothing to a verdict: installs what is missing, builds the server and the command, and runs the demonstration.
# The README's first command.
set -euo pipefail
cd "$(dirname "$0")/.."

# The CUDA engine takes minutes to compile; without a driver nothing could run it.
cuda=OFF
if deploy/find_gpu.sh driver; then cuda=AUTO; fi

deploy/install_packages.sh
cmake --preset release $(deploy/one_shot.sh build/release) -DQUANTGATE_TESTS=OFF -DQUANTGATE_CUDA="$cuda"
targets=(quantgated quantgate)
if grep -q '^build quantgate_cuda:' build/release/build.ninja; then targets+=(quantgate_cuda); fi
cmake --build --preset release --target "${targets[@]}"
deploy/demo.sh build/release/bin build/release/demo
