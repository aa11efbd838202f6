"""What optimum-quanto makes of the sources: int8, FP8, int4 and int2, by its own calls on a CPU."""

import importlib.metadata

import torch
from optimum.quanto import AbsmaxOptimizer, MaxOptimizer, qtypes, quantize_activation, quantize_weight

from case_file import Recorder
from torch_tensors import loaded, stored

X = loaded()
OUT = Recorder("optimum-quanto", importlib.metadata.version("optimum-quanto"), f"torch {torch.__version__}")
FORMATS = {"qint8": "int8", "qfloat8_e4m3fn": "e4m3", "qfloat8_e5m2": "e5m2", "qfloat8_e4m3fnuz": "e4m3fnuz",
           "qint4": "uint4", "qint2": "uint2"}


def eight_bits(source, qtype, axis):
    scale = AbsmaxOptimizer()(X[source], qtypes[qtype], axis)
    if axis is None:
        made = quantize_activation(X[source], qtypes[qtype], scale)
    else:
        made = quantize_weight(X[source], qtypes[qtype], axis, scale, optimized=False)
    block = {None: "tensor", 0: "row", -1: "column"}[axis]
    call = "quantize_activation" if axis is None else f"quantize_weight(axis={axis})"
    OUT.add(f"{FORMATS[qtype]}_{block}_{source}", source, "quanto_eight_bits", dict(
        codes=stored(made._data), scale=stored(scale)), format=FORMATS[qtype], block=block,
        call=f"AbsmaxOptimizer, {call}", element=FORMATS[qtype])


def few_bits(source, qtype, group, integer_shift):
    scale, shift = MaxOptimizer()(X[source], qtypes[qtype], 0, group, zeropoint=integer_shift)
    made = quantize_weight(X[source], qtypes[qtype], 0, scale, shift, group, optimized=False)
    bits = qtypes[qtype].bits
    OUT.add(f"{FORMATS[qtype]}_1x{group}_{source}" + ("_zeropoint" if integer_shift else ""), source,
            "quanto_few_bits", dict(codes=stored(made._data._data), scale=stored(scale), zero_point=stored(shift)),
            format=FORMATS[qtype], block=f"1x{group}",
            packing=f"{8 // bits} a byte: groups g, g + n, ... of {8 // bits} n groups, the first lowest",
            call=f"MaxOptimizer(zeropoint={integer_shift}), quantize_weight(axis=0, group_size={group})", bits=bits,
            integer_shift=integer_shift)


def main():
    for qtype in ("qint8", "qfloat8_e4m3fn"):
        for source in ("normal_bf16", "normal_f16", "normal_f32", "amaxes_bf16"):
            eight_bits(source, qtype, None)
            eight_bits(source, qtype, 0)
        eight_bits("normal_bf16", qtype, -1)
        eight_bits("weight_bf16", qtype, 0)
    eight_bits("ties_int8_bf16", "qint8", 0)
    eight_bits("ties_e4m3_bf16", "qfloat8_e4m3fn", 0)
    eight_bits("wide_bf16", "qfloat8_e4m3fn", 0)
    eight_bits("cube_bf16", "qfloat8_e4m3fn", None)
    for qtype in ("qfloat8_e5m2", "qfloat8_e4m3fnuz"):
        eight_bits("normal_bf16", qtype, 0)
        eight_bits("normal_f32", qtype, None)
    for integer_shift in (False, True):
        for source in ("normal_bf16", "normal_f16", "normal_f32", "ties_int4_bf16"):
            few_bits(source, "qint4", 32, integer_shift)
        few_bits("weight_bf16", "qint4", 128, integer_shift)
    few_bits("normal_bf16", "qint2", 64, False)
    OUT.write()


if __name__ == "__main__":
    main()
