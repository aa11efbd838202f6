#!/usr/bin/env bash
# Makes tests/data/libraries again: installs the libraries, pinned, into virtual environments of their own, runs each
# script in its own, and holds what they made to the rules. About 6 GB and ten minutes; environments that are there are
# used.
# A machine without a GPU gives the same bytes; one whose processor has no AVX512-FP16 may differ in qwix's f16 cases.
set -euo pipefail
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 CUDA_VISIBLE_DEVICES=  # Eager, on the CPU.

# environment NAME PACKAGE...: prints the Python of an environment that has these packages.
environment() {
  local folder="${TMPDIR:-/tmp}/venv-$1"
  shift
  [ -x "$folder/bin/python" ] || python3 -m venv "$folder" >&2
  "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" >&2
  echo "$folder/bin/python"
}

numpy=(numpy==2.4.6 ml_dtypes==0.6.0)
with_numpy=$(environment numpy "${numpy[@]}" gguf==0.19.0 gfloat==0.5.2)
with_torch=$(environment torch "${numpy[@]}" torch==2.11.0 torchao==0.18.0 compressed-tensors==0.20.0 \
  nvidia-modelopt==0.47.0 optimum-quanto==0.2.7 bitsandbytes==0.50.2 transformers==5.24.0 requests==2.34.2 \
  gguf==0.19.0)
with_jax=$(environment jax "${numpy[@]}" jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 qwix==0.1.8)

"$with_numpy" sources.py
for library in gguf gfloat; do "$with_numpy" "make_$library.py"; done
for library in torch torchao compressed_tensors modelopt optimum_quanto transformers bitsandbytes; do
  "$with_torch" -W ignore "make_$library.py"
done
"$with_torch" -W ignore make_level_edges.py
"$with_jax" make_qwix.py
# DeepGEMM is no package for machines without a GPU: DEEP_GEMM names a checkout of commit 54e2261.
if [ -n "${DEEP_GEMM:-}" ]; then "$with_torch" -W ignore make_deepgemm.py; fi
"$with_numpy" check_rules.py
