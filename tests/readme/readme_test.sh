#!/usr/bin/env bash
# Runs the commands of README.md as written: every line of the blocks fenced ```sh, in order, in one shell that stops at
# the first failure. Blocks that install or build (deploy/, cmake, ctest) are what brought this test here; they are left
# out. usage: readme_test.sh README BIN_DIR
set -euo pipefail
readme=$(realpath "$1")
bin=$(realpath "$2")
root=$(dirname "$readme")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk '/^```sh$/ {inside=1; next} /^```$/ {if (inside) print ""; inside=0} inside' "$readme" \
  | grep -vE '^(deploy/|cmake |ctest |git |cd )' >"$work/commands.sh"
count=$(grep -c '^quantgate' "$work/commands.sh" || true)
if [ "$count" -lt 8 ]; then
  echo "README.md shows only $count quantgate commands; the extraction must be broken" >&2
  exit 1
fi
ln -s "$root/data" "$work/data"
cd "$work"
export PATH="$bin:$PATH" XDG_DATA_HOME="$work/share" XDG_STATE_HOME="$work/state"
unset QUANTGATE_SERVER
# Servers that the commands start in the background end with this shell.
bash -euxo pipefail -c "trap 'kill \$(jobs -p) 2>/dev/null || true' EXIT; source commands.sh"
echo "$count quantgate commands of README.md ran"
