#!/usr/bin/env bash
# Prints the CMake option that builds a fresh folder with the least work. An existing folder keeps its option, since its
# next build is cheaper than a fresh one.
# usage: deploy/one_shot.sh BUILD_DIR
set -euo pipefail
if [ $# -ne 1 ]; then echo "usage: $0 BUILD_DIR" >&2; exit 2; fi
if [ ! -e "$1/CMakeCache.txt" ]; then echo -DQUANTGATE_ONE_SHOT=ON; fi
