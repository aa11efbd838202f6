"""What NVIDIA ModelOpt makes of the sources: FP8, NVFP4, MXFP4, MXFP8, int8, int4, NF4, by its own calls on a CPU."""

import modelopt
import torch
from modelopt.torch.quantization.qtensor import FP8QTensor, INT4QTensor, INT8QTensor, MXFP4QTensor, NF4QTensor
from modelopt.torch.quantization.qtensor import MXFP8QTensor, NVFP4QTensor

from case_file import Recorder
from torch_tensors import loaded, stored

X = loaded()
OUT = Recorder("modelopt", modelopt.__version__, f"torch {torch.__version__}")
EVEN_LOW, EVEN_HIGH = "two a byte, the even column low", "two a byte, the even column high"


def how(block):
    """The arguments of quantize for a block."""
    if block in ("tensor", "row"):
        return dict(axis=0 if block == "row" else None)
    rows, columns = (int(size) for size in block.split("x"))
    return dict(block_sizes={-1: columns} if rows == 1 else {-1: columns, -2: rows})


def fp8(source, block):
    made, scale = FP8QTensor.quantize(X[source].clone(), **how(block))
    OUT.add(f"fp8_{block}_{source}", source, "modelopt_fp8", dict(codes=stored(made._quantized_data),
            scale=stored(scale)), format="e4m3", block=block, call=f"FP8QTensor.quantize({how(block)})")


def int8(source, block):
    made, scale = INT8QTensor.quantize(X[source].clone(), **how(block))
    OUT.add(f"int8_{block}_{source}", source, "modelopt_int8", dict(codes=stored(made._quantized_data),
            scale=stored(scale)), format="int8", block=block, call=f"INT8QTensor.quantize({how(block)})")


def int4(source, size):
    made, scale = INT4QTensor.quantize(X[source].clone(), size)
    OUT.add(f"int4_1x{size}_{source}", source, "modelopt_int4", dict(codes=stored(made._quantized_data),
            scale=stored(scale)), format="uint4", block=f"1x{size}", packing=EVEN_HIGH, scale_is="multiplies",
            call=f"INT4QTensor.quantize({size})")


def mxfp4(source):
    made, scale = MXFP4QTensor.quantize(X[source].clone(), 32)
    OUT.add(f"mxfp4_{source}", source, "modelopt_mxfp4", dict(codes=stored(made._quantized_data), scale=stored(scale)),
            format="e2m1", block="1x32", packing=EVEN_LOW, call="MXFP4QTensor.quantize(32)")


def mxfp8(source):
    made, scale = MXFP8QTensor.quantize(X[source].clone())
    OUT.add(f"mxfp8_{source}", source, "modelopt_mxfp8", dict(codes=stored(made._quantized_data), scale=stored(scale)),
            format="e4m3", block="1x32", call="MXFP8QTensor.quantize()")


def nvfp4(source):
    made, scale, tensor_scale = NVFP4QTensor.quantize(X[source].clone(), 16)
    OUT.add(f"nvfp4_{source}", source, "modelopt_nvfp4", dict(
        codes=stored(made._quantized_data), scale=stored(scale), tensor_scale=stored(tensor_scale.reshape(1))),
        format="e2m1", block="1x16", packing=EVEN_LOW, call="NVFP4QTensor.quantize(16)")


def nf4(source):
    made, scale = NF4QTensor.quantize(X[source].clone(), 64, 64)
    OUT.add(f"nf4_1x64_{source}", source, "nf4_of_rounded_quotient", dict(
        codes=stored(made._quantized_data), scale=stored(scale)), format="nf4", block="1x64", packing=EVEN_HIGH,
        call="NF4QTensor.quantize(64, 64)", levels_in="bf16")


def main():
    for source in ("normal_bf16", "normal_f16", "normal_f32", "wide_bf16", "wide_f32", "amaxes_bf16"):
        fp8(source, "tensor")
        fp8(source, "row")
    fp8("ties_e4m3_f32", "row")
    for block in ("1x32", "1x64", "1x128"):
        fp8("normal_bf16", block)
    fp8("weight_bf16", "128x128")
    fp8("weight_bf16", "1x256")
    fp8("odd_bf16", "128x128")
    fp8("cube_bf16", "1x32")
    for source in ("normal_bf16", "normal_f32", "ties_int8_bf16", "ties_int8_f32"):
        int8(source, "row")
    int8("normal_bf16", "tensor")
    int8("normal_f16", "1x32")
    int8("weight_bf16", "1x128")
    for source in ("normal_bf16", "normal_f32", "ties_int4_bf16", "amaxes_bf16"):
        int4(source, 32)
    int4("weight_bf16", 128)
    for source in ("normal_bf16", "normal_f32", "zeros_bf16", "zeros_f32", "ladder_bf16", "ladder_f32",
                   "ties_e2m1_bf16", "cube_bf16"):
        mxfp4(source)
    for source in ("normal_bf16", "normal_f32", "zeros_bf16", "zeros_f32", "ladder_bf16", "ladder_f32",
                   "ties_e4m3_bf16", "cube_f32", "odd_bf16"):
        mxfp8(source)
    for source in ("normal_bf16", "normal_f32", "normal_f16", "zeros_bf16", "zeros_f32", "wide_f32", "ladder_f32",
                   "ties_e2m1_bf16", "cube_bf16", "odd_bf16"):
        nvfp4(source)
    for source in ("normal_f32", "weight_bf16"):
        nf4(source)
    OUT.write()


if __name__ == "__main__":
    main()
