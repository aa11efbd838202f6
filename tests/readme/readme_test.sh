#!/usr/bin/env bash
# Runs the commands of README.md and of every page of docs/ as written: every line of the blocks fenced ```sh, in order,
# in one shell for each page, which begins in a folder of its own and stops at the first failure. Commands that install or
# build (deploy/, cmake, ctest, pip) are what brought this test here; they are left out. What needs a GPU, and what is no command,
# stands in blocks without a language. usage: readme_test.sh SOURCE_DIR BIN_DIR
set -euo pipefail
root=$(realpath "$1")
bin=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH="$bin:$PATH"
unset QUANTGATE_SERVER

total=0
for page in "$root"/README.md "$root"/docs/*.md; do
  grep -q '^```sh$' "$page" || continue
  name=$(basename "$page" .md)
  folder="$work/$name"
  mkdir "$folder"
  awk '/^```sh$/ {inside=1; next} /^```$/ {if (inside) print ""; inside=0} inside' "$page" \
    | grep -vE '^(deploy/|cmake |ctest |git |cd |python3 -m venv |pip )' >"$folder/commands.sh"
  count=$(grep -c '^quantgate' "$folder/commands.sh" || true)
  if [ "$count" -eq 0 ]; then
    echo "$page has a block of commands and none of quantgate; the extraction must be broken" >&2
    exit 1
  fi
  ln -s "$root/data" "$root/tests" "$folder"
  echo "==== $page"
  begin=$SECONDS
  # Servers that the commands start in the background end with this shell.
  (cd "$folder" && XDG_DATA_HOME="$folder/share" XDG_STATE_HOME="$folder/state" bash -euxo pipefail -c \
    "trap 'kill \$(jobs -p) 2>/dev/null || true' EXIT; source commands.sh")
  echo "==== $page: $count quantgate commands ran in $((SECONDS - begin)) s"
  total=$((total + count))
done
if [ "$total" -lt 50 ]; then
  echo "only $total quantgate commands were found; the extraction must be broken" >&2
  exit 1
fi
echo "$total quantgate commands of README.md and docs/ ran"
