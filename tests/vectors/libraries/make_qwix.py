"""What qwix makes of the sources: FP8, MX formats, NVFP4, NF4 and integers, by its own calls on JAX's CPU backend."""

import importlib.metadata

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import qwix

import case_file
from case_file import Recorder

OUT = Recorder("qwix", importlib.metadata.version("qwix"), f"jax {jax.__version__}")
X = {name: jnp.asarray(array.view(ml_dtypes.bfloat16) if dtype == "BF16" else array)
     for name, (dtype, array) in case_file.sources().items()}
TYPES = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2, "e4m3fnuz": jnp.float8_e4m3fnuz,
         "e5m2fnuz": jnp.float8_e5m2fnuz, "int8": jnp.int8, "int4": jnp.int4}
NAMES = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "U8", "float8_e5m2fnuz": "U8",
         "float4_e2m1fn": "U8", "uint4": "U8", "int8": "I8", "int4": "I8", "bfloat16": "BF16", "float16": "F16",
         "float32": "F32"}


def stored(array):
    """(safetensors dtype, array): four-bit types one to a byte."""
    name = NAMES[array.dtype.name]
    values = np.asarray(array)
    if name == "I8":
        return name, values.astype(np.int8)
    if array.dtype.name == "uint4":
        return name, values.astype(np.uint8)
    return name, values.view(case_file.WIDTHS[name])


def how(block, rank):
    if block == "tensor":
        return {}
    if block in ("row", "column"):
        return dict(channelwise_axes=[axis for axis in range(rank) if (axis != rank - 1) == (block == "row")])
    rows, columns = (int(size) for size in block.split("x"))
    leading = list(range(rank - 2))
    if rows == 1:
        return dict(channelwise_axes=leading + [rank - 2], tiled_axes={rank - 1: columns})
    return dict(channelwise_axes=leading, tiled_axes={rank - 2: rows, rank - 1: columns})


def quantized(source, kind, block, method="absmax"):
    arguments = how(block, X[source].ndim)
    made = qwix.quantize(X[source], TYPES.get(kind, kind), calibration_method=method, **arguments)
    tensors = dict(codes=stored(made.qvalue), scale=stored(made.scale))
    if made.zero_point is not None:
        tensors["zero_point"] = stored(made.zero_point)
    element = {"mxfp8": "e4m3", "mxfp4": "e2m1", "nvfp4": "e2m1"}.get(kind, kind)
    OUT.add(f"{kind}_{block}_{source}" + ("" if method == "absmax" else f"_{method}"), source, "qwix", tensors,
            format=element, block=block, call=f"quantize({kind}, {arguments}, {method})", kind=kind, method=method)


def main():
    for source in ("normal_bf16", "normal_f16", "normal_f32", "wide_bf16", "wide_f32", "zeros_bf16", "zeros_f16",
                   "amaxes_bf16"):
        quantized(source, "e4m3", "row")
        quantized(source, "e4m3", "tensor")
    for kind in ("e5m2", "e4m3fnuz", "e5m2fnuz"):
        quantized("normal_bf16", kind, "row")
        quantized("normal_f32", kind, "tensor")
    quantized("normal_bf16", "e4m3", "column")
    quantized("ties_e4m3_f32", "e4m3", "row")
    quantized("zeros_f32", "e4m3", "row")
    for block in ("1x32", "1x64", "1x128"):
        quantized("normal_bf16", "e4m3", block)
    quantized("weight_bf16", "e4m3", "128x128")
    quantized("cube_bf16", "e4m3", "1x32")
    for source in ("normal_bf16", "normal_f16", "normal_f32", "zeros_bf16", "wide_f32", "ties_e4m3_bf16", "cube_f32",
                   "amaxes_bf16"):
        quantized(source, "mxfp8", "1x32")
    for source in ("normal_bf16", "normal_f32", "zeros_bf16", "wide_bf16", "ties_e2m1_f32"):
        quantized(source, "mxfp4", "1x32")
    for source in ("normal_bf16", "normal_f16", "normal_f32", "zeros_f32", "wide_bf16", "wide_f32", "ladder_f32",
                   "ties_e2m1_bf16"):
        quantized(source, "nvfp4", "1x16")
    for source in ("normal_bf16", "normal_f32", "zeros_bf16", "ties_int8_f32", "normal_f16"):
        quantized(source, "int8", "row")
        quantized(source, "int8", "row", "minmax")
    quantized("normal_bf16", "int8", "tensor")
    for source in ("normal_bf16", "normal_f32", "ties_int4_bf16"):
        quantized(source, "int4", "1x32")
        quantized(source, "int4", "1x32", "minmax")
    quantized("weight_bf16", "int4", "1x128")
    for source in ("normal_f32", "normal_bf16"):
        quantized(source, "nf4", "1x64")
    OUT.write()


if __name__ == "__main__":
    main()
