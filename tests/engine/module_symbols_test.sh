#!/usr/bin/env bash
# What can be known of the CUDA module without a GPU: every symbol it wants has a library that gives it, it gives one
# symbol alone, and the programs need neither it nor any library of CUDA to start.
# usage: module_symbols_test.sh MODULE ENTRY PROGRAM...
set -euo pipefail
module=$1 entry=$2
shift 2
fail() { printf '%s\n' "$@" >&2; exit 1; }
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# With every relocation resolved, not only those of data: ldd names what it cannot find on stderr or as "not found".
relocations=$(ldd -r "$module" 2>&1)
missing=$(grep -E 'undefined symbol|not found|symbol lookup error' <<<"$relocations" || true)
if [ -n "$missing" ]; then fail "unresolved in $module:" "$missing"; fi
if ! grep -q 'libcublasLt\.so' <<<"$relocations"; then fail "ldd did not read $module:" "$relocations"; fi

exported=$(nm --dynamic --defined-only --format=posix "$module" | awk '{print $1}')
if [ "$exported" != "$entry" ]; then fail "$module exports" "$exported" "instead of $entry alone"; fi

unknown=$(needed "$module" | grep -vE '^(lib(cublasLt|crypto|absl_[a-z0-9_]+|tbb|stdc\+\+|m|gcc_s|c|dl|rt|pthread)|ld-linux-x86-64)\.so' || true)
if [ -n "$unknown" ]; then fail "$module needs libraries that a GPU host may not have:" "$unknown"; fi

for program in "$@"; do
  libraries=$(needed "$program")
  if ! grep -q '^libc\.so' <<<"$libraries"; then fail "readelf did not read $program"; fi
  cuda=$(ldd "$program" | grep -iE 'cuda|cublas|nvrtc|nvidia|nccl' || true)
  if [ -n "$cuda" ]; then fail "$program needs CUDA to start:" "$cuda"; fi
done
echo "$(needed "$module" | wc -l) libraries give $module all it wants; $# programs start without CUDA"
