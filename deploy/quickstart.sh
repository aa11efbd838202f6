#!/usr/bin/env bash
# From nothing to a verdict: installs what is missing, builds the server and the command, and runs the demonstration.
# The README's first command.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install_packages.sh
cmake --preset release -DQUANTGATE_TESTS=OFF
cmake --build --preset release --target quantgated quantgate
deploy/demo.sh build/release/bin build/release/demo
