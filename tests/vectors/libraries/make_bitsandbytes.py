"""What bitsandbytes makes of the sources: NF4, FP4 and int8 of rows, by its own calls on a CPU."""

import bitsandbytes
import torch
from bitsandbytes import functional

from case_file import Recorder
from torch_tensors import loaded, stored

X = loaded()
OUT = Recorder("bitsandbytes", bitsandbytes.__version__, f"torch {torch.__version__}")


def four_bits(source, kind, size):
    codes, state = functional.quantize_4bit(X[source], blocksize=size, quant_type=kind)
    OUT.add(f"{kind}_{size}_{source}", source, "bitsandbytes_four_bits", dict(
        codes=stored(codes), scale=stored(state.absmax), table=stored(state.code)), format=kind,
        block=f"{size} in row-major order", packing="two a byte, the even element high",
        call=f"quantize_4bit(blocksize={size}, quant_type={kind})", size=size, kind=kind)


def int8_rows(source, threshold):
    codes, scale, _ = functional.int8_vectorwise_quant(X[source].clone(), threshold)
    OUT.add(f"int8_row_{source}" + (f"_outliers_{threshold}" if threshold else ""), source, "bitsandbytes_int8",
            dict(codes=stored(codes), scale=stored(scale)), format="int8", block="row", scale_is="amax",
            call=f"int8_vectorwise_quant(threshold={threshold})", threshold=threshold)


def main():
    for kind in ("nf4", "fp4"):
        for source in ("normal_bf16", "normal_f16", "normal_f32", "zeros_f32", "ladder_f32", "amaxes_bf16"):
            four_bits(source, kind, 64)
        four_bits("weight_bf16", kind, 128)
        four_bits("normal_f32", kind, 32)
        four_bits("ragged_f32", kind, 64)
        four_bits("cube_bf16", kind, 64)
        four_bits("wide_bf16", kind, 256)
    for source in ("normal_bf16", "normal_f16", "normal_f32", "ties_int8_f32"):
        int8_rows(source, 0.0)
    int8_rows("normal_f16", 6.0)
    OUT.write()


if __name__ == "__main__":
    main()
