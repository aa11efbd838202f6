#!/usr/bin/env bash
# An installed tree is moved, then runs with an empty environment and its own libraries.
# usage: install_test.sh CMAKE BUILD_DIR SOURCE_DIR
set -euo pipefail
cmake=$1 build=$2 source=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --component programs --strip --prefix "$work/here" >"$work/install.log"
mv "$work/here" "$work/moved"
"$source/deploy/check_bundle.sh" "$work/moved"

# A library of the bundle that is gone must be missed: else the check above saw another copy.
library=libtbb.so.12
mkdir "$work/aside"
mv "$work/moved/lib/$library"* "$work/aside"
if "$source/deploy/check_bundle.sh" "$work/moved" 2>"$work/complaint"; then
  echo "check_bundle.sh did not miss $library" >&2
  exit 1
fi
grep -q "$library" "$work/complaint"
mv "$work/aside"/* "$work/moved/lib"

cd "$work"
run() { env -i PATH=/usr/bin:/bin XDG_DATA_HOME="$work/share" "$work/moved/bin/quantgate" "$@"; }
run doctor
run run --input moved/data/bytegpt_block1.safetensors:fc1.x --weight moved/data/bytegpt_block1.safetensors:fc1.weight \
  --recipe fp8_current --require bound
env -i "$work/moved/bin/quantgated" --help >/dev/null
