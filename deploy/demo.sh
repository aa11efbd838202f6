#!/usr/bin/env bash
# Starts a server on loopback, uploads the sample tensors, runs fprop, dgrad and wgrad of a real layer for bf16 and FP8
# under the three backward overrides, prints the recipe matrix, writes the reports, and stops the server.
# usage: deploy/demo.sh BIN_DIR WORK_DIR
set -euo pipefail
if [ $# -ne 2 ]; then echo "usage: $0 BIN_DIR WORK_DIR" >&2; exit 2; fi
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$1" && pwd)
rm -rf "$2" && mkdir -p "$2"
work=$(cd "$2" && pwd)

: >"$work/quantgated.log"  # The server's shell may open it after the first look.
"$bin/quantgated" --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --data-dir "$work/store" \
  >"$work/quantgated.log" 2>&1 &
server_pid=$!
trap 'kill "$server_pid" 2>/dev/null || true' EXIT

# The first line of the log says where the server listens, once it serves.
address=
for _ in $(seq 300); do
  address=$(sed -n 's/^quantgated ready on \([^ ,]*\).*/\1/p' "$work/quantgated.log")
  if [ -n "$address" ] || ! kill -0 "$server_pid" 2>/dev/null; then break; fi
  sleep 0.1
done
if [ -z "$address" ]; then
  echo "quantgated did not become ready:" >&2
  cat "$work/quantgated.log" >&2
  exit 4
fi
export QUANTGATE_SERVER="$address"

sample="$root/data/bytegpt_block1.safetensors"
"$bin/quantgate" tensor put "$sample:fc1.x" "$sample:fc1.weight" "$sample:fc1.bias" "$sample:fc1.dy"
"$bin/quantgate" compare --layer linear \
  --input "$sample:fc1.x" --weight "$sample:fc1.weight" --bias "$sample:fc1.bias" --grad-output "$sample:fc1.dy" \
  --recipe bf16 --recipe fp8_current --backward-override none,high_precision,dequantized --arithmetic sm90 \
  --report "$work/report.html" --report "$work/report.json"

trap - EXIT
kill -TERM "$server_pid"
if ! wait "$server_pid"; then
  echo "quantgated did not stop cleanly; its log is $work/quantgated.log" >&2
  exit 4
fi
echo "report: $work/report.html"
