"""What DeepGEMM's own functions of torch make: FP8 of rows, columns and tiles of blocks, with fp32, power-of-two and
packed UE8M0 scales. Its package needs a GPU to be installed, so DEEP_GEMM names a checkout, of which one file is run."""

import importlib.util
import os
import pathlib

import torch

from case_file import Recorder
from torch_tensors import loaded, stored

COMMIT = "54e2261"
FILE = pathlib.Path(os.environ["DEEP_GEMM"]) / "deep_gemm" / "utils" / "math.py"
SPEC = importlib.util.spec_from_file_location("deep_gemm_math", FILE)
math = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(math)

X = loaded()
OUT = Recorder("deepgemm", COMMIT, f"torch {torch.__version__}")


def add(kind, call, source, block, power_of_two, packed=False):
    codes, scale = call
    suffix = "_packed" if packed else "_ue8m0" if power_of_two else ""
    OUT.add(f"fp8_{block}_{source}{suffix}", source, "deepgemm_fp8", dict(codes=stored(codes), scale=stored(scale)),
            format="e4m3", block=block, call=f"{kind}(use_ue8m0={power_of_two})" + (", packed" if packed else ""),
            power_of_two=power_of_two, packed=packed)


def rows(source, length, power_of_two, packed=False):
    add("per_token_cast_to_fp8", math.per_token_cast_to_fp8(X[source], power_of_two, length, packed), source,
        f"1x{length}", power_of_two, packed)


def main():
    for power_of_two in (False, True):
        for source in ("normal_bf16", "normal_f16", "wide_f32", "zeros_bf16", "weight_bf16", "ladder_f32", "odd_bf16"):
            rows(source, 128, power_of_two)
        for source in ("normal_f32", "ladder_bf16", "amaxes_bf16", "ragged_f32"):
            rows(source, 32, power_of_two)
        for source in ("normal_bf16", "ladder_f32", "weight_bf16"):
            rows(source, 64, power_of_two)
        rows("weight_bf16", 256, power_of_two)
        for source in ("weight_bf16", "odd_f32"):
            add("per_block_cast_to_fp8", math.per_block_cast_to_fp8(X[source], power_of_two), source, "128x128",
                power_of_two)
        add("per_block_cast_to_fp8", math.per_block_cast_to_fp8(X["wide_f32"], power_of_two, 32), "wide_f32", "32x32",
            power_of_two)
        add("per_channel_cast_to_fp8", math.per_channel_cast_to_fp8(X["weight_bf16"], power_of_two), "weight_bf16",
            "128x1", power_of_two)
        add("per_channel_cast_to_fp8", math.per_channel_cast_to_fp8(X["wide_bf16"], power_of_two, 32), "wide_bf16",
            "32x1", power_of_two)
    for source in ("normal_bf16", "ladder_f32"):
        rows(source, 32, True, True)
    rows("weight_bf16", 64, True, True)
    OUT.write()


if __name__ == "__main__":
    main()
