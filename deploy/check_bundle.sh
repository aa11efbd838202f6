#!/usr/bin/env bash
# Whether a bundle finds its own libraries: every program and library of it loads what it needs from the bundle's lib,
# from the C library or from CUDA, and from nowhere else. usage: deploy/check_bundle.sh BUNDLE
set -euo pipefail
if [ $# -ne 1 ]; then echo "usage: $0 BUNDLE" >&2; exit 2; fi
bundle=$(cd "$1" && pwd -P)
unset LD_PRELOAD

c_library='(linux-vdso|ld-linux-x86-64|lib(c|m|mvec|dl|rt|pthread|resolv|util|anl|nsl))\.so'
cuda='lib(cuda|cublas|cublasLt|nccl|nvrtc)\.so'
count=0
strays=
for file in "$bundle"/bin/* "$bundle"/lib/*.so* "$bundle"/tests/* "$bundle"/bench/*; do
  if [ ! -f "$file" ] || [ -L "$file" ]; then continue; fi
  count=$((count + 1))
  # A library is found by the path of the program that loads it; the distribution's have none of their own.
  path=
  if [ "${file%/*}" = "$bundle/lib" ]; then path=$bundle/lib; fi
  needs=$(LD_LIBRARY_PATH=$path ldd "$file")
  stray=$(grep -vE "^[[:space:]]*(/[^ ]*/)?($c_library|$cuda)" <<<"$needs" | grep -vF " => $bundle/" \
    | grep -v 'statically linked' || true)
  if [ -n "$stray" ]; then strays+="${file#"$bundle"/}:"$'\n'"$stray"$'\n'; fi
done
if [ "$count" -lt 10 ]; then echo "$bundle has only $count programs and libraries" >&2; exit 1; fi
if [ -n "$strays" ]; then
  printf 'libraries from outside the bundle:\n%s' "$strays" >&2
  exit 1
fi
echo "$count programs and libraries load from ${bundle##*/}, the C library and CUDA alone"
