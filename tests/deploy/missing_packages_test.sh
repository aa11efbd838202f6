#!/usr/bin/env bash
# missing_packages_test.sh CMAKE SOURCE: a configuration that finds none of the third parties names all of them at once, with
# packages that deploy/install_packages.sh installs.
set -euo pipefail
cmake=$1 source=$2
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

cat > "$directory/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(Hidden LANGUAGES C CXX)
# Programs and libraries too.
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
include($source/cmake/dependencies.cmake)
END
mapfile -t names < <(grep -oP '^ *quantgate_find\(\K[^ ]+' "$source/cmake/dependencies.cmake")
hidden=()
for name in "${names[@]}"; do hidden+=("-DCMAKE_DISABLE_FIND_PACKAGE_$name=ON"); done
if text=$("$cmake" -S "$directory" -B "$directory/build" -DQUANTGATE_TESTS=ON -DQUANTGATE_BENCHMARKS=ON \
    "${hidden[@]}" 2>&1); then
  echo "configured without its third parties"; exit 1
fi
for name in "${names[@]}" grpc_cpp_plugin MPFR OpenBLAS; do
  grep -qF "$name (" <<< "$text" || { echo "$name is not named:"; echo "$text"; exit 1; }
done
grep -qF 'deploy/install_packages.sh --tests --benchmarks' <<< "$text" || { echo "$text"; exit 1; }
# A package that the script does not install is of the C library, which every compiler needs.
for package in $(grep -oP '^ *[A-Za-z0-9_-]+ \(\K[^)]+' <<< "$text"); do
  [ "$package" = libc6-dev ] || grep -qw -- "$package" "$source/deploy/install_packages.sh" ||
    { echo "deploy/install_packages.sh does not install $package"; exit 1; }
done
