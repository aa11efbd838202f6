#!/usr/bin/env bash
# From nothing to a verdict: installs what is missing, builds, starts a server on loopback, uploads the sample tensors,
# runs fprop, dgrad and wgrad of a real layer for bf16 and FP8 under the three backward overrides, prints the recipe
# matrix, and stops the server. The README's first command.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install_packages.sh
cmake --preset release -DQUANTGATE_TESTS=OFF -B build/quickstart >/dev/null
cmake --build build/quickstart --target quantgated quantgate
bin=build/quickstart/bin

work=build/quickstart/demo
rm -rf "$work" && mkdir -p "$work"
"$bin/quantgated" --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --data-dir "$work/store" >"$work/quantgated.log" 2>&1 &
server_pid=$!
stop_server() {
  kill -TERM "$server_pid" 2>/dev/null || true
  wait "$server_pid" || { echo "quantgated did not stop cleanly; see $work/quantgated.log" >&2; exit 4; }
}
trap 'kill "$server_pid" 2>/dev/null || true' EXIT

address=
for _ in $(seq 100); do
  address=$(sed -n 's/^quantgated ready on \([^ ]*\).*/\1/p' "$work/quantgated.log")
  [ -n "$address" ] && break
  kill -0 "$server_pid" 2>/dev/null || { cat "$work/quantgated.log" >&2; exit 4; }
  sleep 0.1
done
[ -n "$address" ] || { echo "quantgated did not become ready:" >&2; cat "$work/quantgated.log" >&2; exit 4; }
export QUANTGATE_SERVER="$address"

sample=data/bytegpt_block1.safetensors
"$bin/quantgate" tensor put "$sample:fc1.x" "$sample:fc1.weight" "$sample:fc1.bias" "$sample:fc1.dy"
"$bin/quantgate" compare --layer linear \
  --input "$sample:fc1.x" --weight "$sample:fc1.weight" --bias "$sample:fc1.bias" --grad-output "$sample:fc1.dy" \
  --recipe bf16 --recipe fp8_current --backward-override none,high_precision,dequantized --arithmetic sm90 \
  --report "$work/report.html" --report "$work/report.json"

trap - EXIT
stop_server
echo "report: $PWD/$work/report.html"
