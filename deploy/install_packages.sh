#!/usr/bin/env bash
# Installs what the build needs from the distribution's packages (Debian 12, Ubuntu 24.04). Does nothing when all is there.
set -euo pipefail

packages=(
  build-essential cmake ninja-build pkg-config ccache
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libabsl-dev prometheus-cpp-dev libmicrohttpd-dev libtbb-dev libcli11-dev nlohmann-json3-dev
  libkainjow-mustache-dev
  libssl-dev libsqlite3-dev zlib1g-dev libcurl4-openssl-dev
)
for argument in "$@"; do
  case "$argument" in
    --tests) packages+=(libgtest-dev libgmock-dev libmpfr-dev python3-grpcio python3-numpy python3-protobuf) ;;
    --python) packages+=(python3-dev python3-venv) ;;
    --benchmarks) packages+=(libbenchmark-dev libopenblas-dev) ;;
    *) echo "usage: $0 [--tests] [--python] [--benchmarks]" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

echo "installing: ${missing[*]}" >&2
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
