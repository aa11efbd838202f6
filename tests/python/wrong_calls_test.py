"""Wrong calls: each is refused by the right class of exception, which names argument or field, value and rule, and none ends the
interpreter. Those that might are made in a process of their own."""

import subprocess
import sys
import textwrap
import threading

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg

X = (np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 97 - 48) / 8
W = X[:32].astype(ml_dtypes.bfloat16)
BF16 = X.astype(ml_dtypes.bfloat16)
Q = qg.quantize(X, "mxfp8", columnwise=True)
HUGE = np.broadcast_to(np.float32(1), (2**31, 2**20))  # Of four bytes, which a copy of it would not be.


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(shape):
    count = int(np.prod(shape))
    return np.frombuffer(bytearray(4 * count + 1), np.uint8)[1:].view(np.float32).reshape(shape)


def parts(**changes):
    tensors = {
        "rowwise_data": np.empty((64, 64), ml_dtypes.float8_e4m3fn),
        "rowwise_scale_inv": np.empty((64, 2), ml_dtypes.float8_e8m0fnu),
    }
    for name, value in changes.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    return tensors


def shared():
    memory = np.empty((64, 64), np.uint8)
    return {
        "rowwise_data": memory,
        "columnwise_data": memory,
        "rowwise_scale_inv": np.empty((64, 2), np.uint8),
        "columnwise_scale_inv": np.empty((2, 64), np.uint8),
    }


def over(x):
    """Codes over the values that they are made of."""
    return qg.quantize(x, "mxfp8", out=parts(rowwise_data=x.reshape(-1).view(np.uint8)[:4096].reshape(64, 64)))


class NoTensor:
    def __dlpack__(self, **arguments):
        raise RuntimeError("no")


class BadCapsule:
    def __dlpack__(self, **arguments):
        return 3

    def __dlpack_device__(self):
        return (1, 0)


class Endless:
    """A number that is none."""

    def __index__(self):
        return 2**70


def session(**options):
    return qg.session({"fc1": "linear"}, {"fc1.weight": W}, recipe="mxfp8", **options)


def closed_session():
    opened = session()
    opened.close()
    return opened


BAD, TYPE, STATE, NOT, MISSING = qg.InvalidArgument, TypeError, qg.FailedPrecondition, qg.Unimplemented, qg.NotFound

# Of each: the call, the class, and texts that the message has: the argument, the value, and words of the rule.
CALLS = {
    # --- what is no tensor, or of a dtype that the engine does not have
    "a text": (lambda: qg.quantize("x", "mxfp8"), TYPE, "tensor is", "'x'", "must be a tensor"),
    "nothing": (lambda: qg.quantize(None, "mxfp8"), TYPE, "tensor is", "None", "must be a tensor"),
    "a list": (lambda: qg.quantize([[1.0]], "mxfp8"), TYPE, "tensor is", "[[1.0]]", "must be a tensor"),
    "bytes": (lambda: qg.quantize(b"1234", "mxfp8"), TYPE, "tensor is", "b'1234'", "must be a tensor"),
    "bool": (lambda: qg.quantize(X > 0, "mxfp8"), TYPE, "tensor is", "bool", "no such dtype"),
    "complex": (lambda: qg.quantize(X.astype(np.complex64), "mxfp8"), TYPE, "tensor is", "complex64", "no such dtype"),
    "objects": (lambda: qg.quantize(X.astype(object), "mxfp8"), TYPE, "tensor is", "object", "no such dtype"),
    "texts": (lambda: qg.quantize(np.array([["a", "b"]]), "mxfp8"), TYPE, "tensor is", "str32", "no such dtype"),
    "dates": (lambda: qg.quantize(np.zeros((4, 4), "M8[s]"), "mxfp8"), TYPE, "tensor is", "datetime64", "no such dtype"),
    "long double": (lambda: qg.quantize(X.astype(np.longdouble), "mxfp8"), TYPE, "tensor is", "float128", "no such dtype"),
    "structured": (lambda: qg.quantize(np.zeros(3, [("a", "f4")]), "mxfp8"), TYPE, "tensor is", "'a'", "no such dtype"),
    "masked": (lambda: qg.quantize(np.ma.masked_array(X, X > 0), "mxfp8"), TYPE, "tensor is", "masked", "filled()"),
    "another e4m3": (
        lambda: qg.quantize(X.astype(ml_dtypes.float8_e4m3), "mxfp8"),
        TYPE,
        "tensor is",
        "float8_e4m3",
        "no such dtype",
    ),
    "integers to quantize": (
        lambda: qg.quantize(X.astype(np.int32), "mxfp8"),
        BAD,
        "tensor is",
        "i32[64x64]",
        "f32, bf16 and f16",
    ),
    "doubles to quantize": (
        lambda: qg.quantize(X.astype(np.float64), "mxfp8"),
        BAD,
        "tensor is",
        "f64[64x64]",
        "f32, bf16 and f16",
    ),
    "a library that fails": (lambda: qg.quantize(NoTensor(), "mxfp8"), TYPE, "tensor is", "NoTensor", "__dlpack__"),
    "a library with no capsule": (lambda: qg.quantize(BadCapsule(), "mxfp8"), TYPE, "tensor is", "BadCapsule", "__dlpack__"),
    "bytes of an unknown dtype": (lambda: qg.diff((X, "f9"), X), BAD, "a is", '"f9"', "known: f64"),
    "bytes that do not fit": (
        lambda: qg.diff((X.view(np.uint8)[:, :3], "f32"), X),
        BAD,
        "a is",
        "uint8[64, 3]",
        "no whole number of f32",
    ),
    "an odd number of codes": (
        lambda: qg.diff(X[:, :3].astype(ml_dtypes.float4_e2m1fn), X),
        BAD,
        "a is",
        "float4_e2m1fn[64, 3]",
        "last dim must be even",
    ),
    # --- shapes
    "no dims": (lambda: qg.quantize(np.float32(1), "mxfp8"), BAD, "tensor is", "f32[scalar]", "rank is at least 1"),
    "nine dims": (lambda: qg.quantize(np.zeros((1,) * 9, np.float32), "mxfp8"), BAD, "shape is", "of rank 9", "at most 8"),
    "no whole blocks": (lambda: qg.quantize(X[:, :63], "mxfp8"), BAD, "tensor is", "f32[64x63]", "multiple"),
    "no whole blocks of rows": (
        lambda: qg.quantize(X[:63], "mxfp8", columnwise=True),
        BAD,
        "tensor is",
        "f32[63x64]",
        "multiple",
    ),
    "a stack of no matrices": (
        lambda: qg.quantize(np.empty((0, 32, 64), np.float32), "mxfp8", role="weight"),
        BAD,
        "tensor is",
        "f32[0x32x64]",
        "at least one expert",
    ),
    "K that differ": (lambda: qg.gemm(X, X[:, :32]), BAD, "b", "32", "64"),
    "vectors": (lambda: qg.gemm(X[0], X), BAD, "a", "f32[64]", "2"),
    "no K": (lambda: qg.gemm(X[:, :0], X[:, :0]), BAD, "k is", "0", "at least 1"),
    "a bias of another N": (lambda: qg.gemm(X, X, bias=X[0, :3]), BAD, "bias is", "f32[3]", "64"),
    "c of another shape": (lambda: qg.gemm(X, X, c=X[:3], beta=1.0), BAD, "c is", "f32[3x64]", "64"),
    "a weight of another K": (
        lambda: qg.run(BF16, W[:, :32], recipe="mxfp8"),
        BAD,
        "x is",
        "bf16[64x64]",
        "K = 32 of weight bf16[32x32]",
    ),
    "a negative dim": (lambda: qg.generate("normal", (-1, 3)), BAD, "shape[0] is", "-1", "from 0"),
    "a dim that is no integer": (lambda: qg.generate("normal", (2.5,)), TYPE, "shape[0] is", "2.5", "integer"),
    "a dim beyond all": (lambda: qg.generate("normal", (Endless(),)), BAD, "shape[0] is", str(2**70), "from 0"),
    "dims whose product overflows": (
        lambda: qg.generate("normal", (2**40, 2**40)),
        BAD,
        "shape is",
        "1099511627776x1099511627776",
        "int64",
    ),
    "bytes that overflow": (lambda: qg.generate("normal", (2**61, 2)), BAD, "shape is", "2305843009213693952x2", "int64"),
    "more than memory": (
        lambda: qg.generate("zero", (2**40, 2**8)),
        qg.ResourceExhausted,
        "1125899906842624 bytes",
        "allocate",
        "",
    ),
    "a broadcast beyond memory": (
        lambda: qg.quantize(HUGE, "mxfp8"),
        qg.ResourceExhausted,
        "tensor is",
        "[2147483648, 1048576]",
        "copied",
    ),
    # --- recipes and knobs
    "an unknown recipe": (lambda: qg.quantize(X, "fp9"), BAD, "recipe.name is", '"fp9"', "known: bf16"),
    "an unknown knob": (lambda: qg.quantize(X, "mxfp8:speed=3"), BAD, "recipe.knobs", "speed", "mxfp8"),
    "a knob of another value": (
        lambda: qg.quantize(X, "fp8_current:power_2_scales=maybe"),
        BAD,
        "power_2_scales",
        '"maybe"',
        "true",
    ),
    "a knob twice": (lambda: qg.quantize(X, "fp8_current:a=1,a=2"), BAD, "recipe is", "a=1,a=2", "given twice"),
    "a knob without value": (lambda: qg.quantize(X, "fp8_current:a"), BAD, "recipe is", "fp8_current:a", "no key=value"),
    "a number as recipe": (lambda: qg.quantize(X, 8), TYPE, "recipe is", "8", "text, a dict"),
    "a recipe of other keys": (lambda: qg.quantize(X, {"name": "mxfp8", "speed": 3}), BAD, "recipe is", "speed", "no more"),
    "a recipe without name": (lambda: qg.quantize(X, {"knobs": {}}), BAD, "recipe is", "knobs", '"name"'),
    "knobs in a list": (lambda: qg.quantize(X, {"name": "mxfp8", "knobs": [1]}), TYPE, "recipe.knobs is", "[1]", "dict"),
    "a knob that is an object": (
        lambda: qg.recipe("mxfp8", speed=object()),
        TYPE,
        "knobs['speed'] is",
        "object",
        "must be text",
    ),
    "a knob in the name, too": (
        lambda: qg.recipe("fp8_current:power_2_scales=true", power_2_scales=False),
        BAD,
        "power_2_scales is",
        "False",
        "in the name already",
    ),
    "no recipes": (lambda: qg.compare(BF16, W, recipes=[]), BAD, "recipes is", "[]", "one at least"),
    # --- arguments of quantize
    "an unknown role": (lambda: qg.quantize(X, "mxfp8", role="bias"), BAD, "role is", '"bias"', "input, weight or grad_output"),
    "no copy": (lambda: qg.quantize(X, "mxfp8", rowwise=False), BAD, "rowwise", "absent", "columnwise"),
    "a number for a flag": (lambda: qg.quantize(X, "mxfp8", rowwise=1), TYPE, "rowwise is", "1", "True or False"),
    "a negative seed": (lambda: qg.quantize(X, "mxfp8", seed=-1), BAD, "seed is", "-1", "from 0"),
    "a seed of 65 bits": (lambda: qg.quantize(X, "mxfp8", seed=2**64), BAD, "seed is", str(2**64), "to 18446744073709551615"),
    "a seed that is no integer": (lambda: qg.quantize(X, "mxfp8", seed=1.5), TYPE, "seed is", "1.5", "integer"),
    "a seed for nothing": (lambda: qg.quantize(X, "mxfp8", seed=3), BAD, "seed is", "3", "stochastically"),
    "a scale for nothing": (lambda: qg.quantize(X, "mxfp8", scale=1.0), BAD, "scale is", "given", "fp8_delayed"),
    "half a state": (lambda: qg.quantize(X, "fp8_delayed", scale=1.0), BAD, "amax_history is", "absent", "must be f32[L]"),
    "a negative scale": (
        lambda: qg.quantize(X, "fp8_delayed", scale=-1.0, amax_history=[1.0]),
        BAD,
        "scale is",
        "-1",
        "positive",
    ),
    "a ragged list": (
        lambda: qg.quantize(X, "fp8_delayed", scale=1.0, amax_history=[[1.0], [1.0, 2.0]]),
        TYPE,
        "amax_history is",
        "[[1.0], [1.0, 2.0]]",
        "list of numbers",
    ),
    "a text for a number": (
        lambda: qg.quantize(X, "fp8_delayed", scale="1", amax_history=[1.0]),
        TYPE,
        "scale is",
        "'1'",
        "number",
    ),
    "an unknown layout of scales": (
        lambda: qg.quantize(X, "mxfp8", scale_layout="spiral"),
        BAD,
        "scale_layout is",
        '"spiral"',
        "must be one of",
    ),
    # --- out
    "out that is no dict": (lambda: qg.quantize(X, "mxfp8", out=X), TYPE, "out is", "array", "dict of tensors"),
    "out without the scales": (
        lambda: qg.quantize(X, "mxfp8", out=parts(rowwise_scale_inv=None)),
        BAD,
        "out['rowwise_scale_inv'] is",
        "absent",
        "exactly rowwise_data",
    ),
    "out with another part": (
        lambda: qg.quantize(X, "mxfp8", out=parts(scale=np.empty(1, np.float32))),
        BAD,
        "out['scale'] is",
        "given",
        "exactly rowwise_data",
    ),
    "out with an unknown part": (
        lambda: qg.quantize(X, "mxfp8", out=parts(speed=X.copy())),
        BAD,
        "out['speed'] is",
        "given",
        "must be one of",
    ),
    "out of another dtype": (
        lambda: qg.quantize(X, "mxfp8", out=parts(rowwise_data=np.empty((64, 64), ml_dtypes.float8_e5m2))),
        BAD,
        "out['rowwise_data'] is",
        "f8_e5m2[64x64]",
        "f8_e4m3[64x64]",
    ),
    "out of another shape": (
        lambda: qg.quantize(X, "mxfp8", out=parts(rowwise_data=np.empty((64, 32), np.uint8))),
        BAD,
        "out['rowwise_data'] is",
        "u8[64x32]",
        "f8_e4m3[64x64]",
    ),
    "out of the input": (lambda: over(X.copy()), BAD, "out['rowwise_data'] is", "memory of tensor", "share no memory"),
    "out of one memory": (
        lambda: qg.quantize(X, "mxfp8", columnwise=True, out=shared()),
        BAD,
        "out['columnwise_data'] is",
        "memory of out['rowwise_data']",
        "share no memory",
    ),
    "read-only out": (lambda: qg.dequantize(Q, out=read_only(X)), ValueError, "out is", "read-only", "writable"),
    "out of a broadcast": (
        lambda: qg.dequantize(Q, out=np.broadcast_to(X[:1], (64, 64))),
        ValueError,
        "out is",
        "read-only",
        "writable",
    ),
    "out with gaps": (
        lambda: qg.dequantize(Q, out=np.empty((64, 128), np.float32)[:, ::2]),
        BAD,
        "out is",
        "[512, 8]",
        "dense",
    ),
    "out transposed": (lambda: qg.dequantize(Q, out=np.empty((64, 64), np.float32).T), BAD, "out is", "[4, 256]", "dense"),
    "out reversed": (lambda: qg.dequantize(Q, out=np.empty((64, 64), np.float32)[::-1]), BAD, "out is", "[-256, 4]", "dense"),
    "big-endian out": (lambda: qg.dequantize(Q, out=np.empty((64, 64), ">f4")), BAD, "out is", ">f4", "byte order"),
    "unaligned out": (lambda: qg.dequantize(Q, out=unaligned((64, 64))), BAD, "out is", "unaligned", "aligned"),
    "objects as out": (lambda: qg.dequantize(Q, out=np.empty((64, 64), object)), TYPE, "out is", "object", "no such dtype"),
    "a list as out": (lambda: qg.dequantize(Q, out=[1.0]), TYPE, "out is", "[1.0]", "writable"),
    "out of the codes": (
        lambda: qg.dequantize({"rowwise_data": Q.rowwise_data, "rowwise_scale_inv": Q.rowwise_scale_inv}, out=Q.rowwise_data),
        BAD,
        "out is",
        "memory of rowwise_data",
        "share no memory",
    ),
    "out of dequantize too small": (
        lambda: qg.dequantize(Q, out=np.empty((64, 63), np.float32)),
        BAD,
        "out is",
        "f32[64x63]",
        "f32[64x64]",
    ),
    "out of a gemm that is c": (
        lambda: (lambda c: qg.gemm(X, X, c=c, beta=1.0, out=c))(X.copy()),
        BAD,
        "out is",
        "memory of c",
        "share no memory",
    ),
    "out of a gemm too small": (
        lambda: qg.gemm(X, X, out=np.empty((64, 32), np.float32)),
        BAD,
        "out is",
        "f32[64x32]",
        "f32[64x64]",
    ),
    "out of a gemm of another dtype": (
        lambda: qg.gemm(X, X, out=np.empty((64, 64), np.float16)),
        BAD,
        "out is",
        "f16[64x64]",
        "f32[64x64]",
    ),
    # --- dequantize
    "nothing to dequantize": (lambda: qg.dequantize(None), TYPE, "quantized is", "None", "Quantized"),
    "an unknown part": (lambda: qg.dequantize({"speed": X}), BAD, "quantized['speed'] is", "given", "must be one of"),
    "no codes": (lambda: qg.dequantize({"rowwise_scale_inv": X}), BAD, "_data", "absent", "codes"),
    "an unknown usage": (lambda: qg.dequantize(Q, usage="diagonal"), BAD, "usage is", '"diagonal"', "rowwise or columnwise"),
    "values of FP8": (lambda: qg.dequantize(Q, out_dtype="f8_e4m3"), BAD, "out_dtype is", '"f8_e4m3"', "f32, bf16 or f16"),
    "values of an unknown dtype": (lambda: qg.dequantize(Q, out_dtype="f9"), BAD, "out_dtype is", '"f9"', "known: f64"),
    "a dtype that is none": (lambda: qg.dequantize(Q, out_dtype=3), TYPE, "out_dtype is", "3", "name of a dtype"),
    "a format beside Quantized": (lambda: qg.dequantize(Q, format="mxfp8"), BAD, "format is", '"mxfp8"', "says it itself"),
    "an unknown field of a format": (
        lambda: qg.dequantize({"rowwise_data": X.view(np.uint8)}, format="mxfp8:speed=1"),
        BAD,
        "format is",
        "speed=1",
        "element=",
    ),
    "a format whose number is none": (
        lambda: qg.dequantize({"rowwise_data": X.view(np.uint8)}, format="nvfp4:e4m3_max=x"),
        BAD,
        "format is",
        "e4m3_max=x",
        "number",
    ),
    "an unknown format": (
        lambda: qg.dequantize({"rowwise_data": Q.rowwise_data, "rowwise_scale_inv": Q.rowwise_scale_inv}, format="fp9"),
        BAD,
        "format",
        '"fp9"',
        "must be one of",
    ),
    "columnwise nvfp4": (
        lambda: qg.dequantize(qg.quantize(BF16, "nvfp4", columnwise=True), usage="columnwise"),
        NOT,
        "usage is",
        "columnwise",
        "not dequantized",
    ),
    # --- gemm
    "an unknown layout": (lambda: qg.gemm(X, X, layout="tt"), BAD, "layout is", '"tt"', "tn, nn or nt"),
    "an unknown arithmetic": (lambda: qg.gemm(X, X, arithmetic="sm10"), BAD, "arithmetic is", '"sm10"', "known: auto"),
    "an arithmetic of a GPU": (
        lambda: qg.gemm(BF16, W, arithmetic="cublaslt"),
        (STATE, NOT),
        "arithmetic is",
        "cublaslt",
        "CUDA",
    ),
    "operands of two dtypes": (lambda: qg.gemm(X, W), BAD, "b", "bf16", "f32"),
    "alpha in text": (lambda: qg.gemm(X, X, alpha="1"), TYPE, "alpha is", "'1'", "number"),
    "alpha true": (lambda: qg.gemm(X, X, alpha=True), TYPE, "alpha is", "True", "number"),
    "beta without c": (lambda: qg.gemm(X, X, beta=1.0), BAD, "c is", "absent", "beta"),
    "an unknown scaling": (lambda: qg.gemm(Q, Q, a_scaling="7x7"), BAD, "a.scaling is", '"7x7"', "1x128"),
    "a group that is none": (lambda: qg.gemm(Q, Q, a_group="row of ducks"), BAD, "a.group is", "row of ducks", "row"),
    "an e4m3_max of another kind": (lambda: qg.gemm(Q, Q, a_e4m3_max=1000), BAD, "a_e4m3_max is", "1000", "from 0 to 448"),
    "scales beside Quantized": (lambda: qg.gemm(Q, Q, a_scale_inv=X), BAD, "a_scale_inv is", "given", "has its own"),
    "scales of high precision": (lambda: qg.gemm(X, X, a_scale_inv=1.0), BAD, "a", "f32", "scale"),
    "zero points of FP8": (
        lambda: qg.gemm(Q.rowwise_data, Q.rowwise_data, a_scale_inv=1.0, b_scale_inv=1.0, a_zero_point=1.0),
        BAD,
        "a.zero_point",
        "f32[1]",
        "operands of integers",
    ),
    "d_scale of a wide output": (lambda: qg.gemm(X, X, d_scale=2.0), BAD, "d_scale", "f32", "FP8"),
    "a flag that is text": (lambda: qg.gemm(X, X, in_place="yes"), TYPE, "in_place is", "'yes'", "True or False"),
    # --- generate
    "an unknown distribution": (lambda: qg.generate("cauchy", (3,)), BAD, "distribution is", '"cauchy"', "known distributions are normal"),
    "an unknown dtype": (lambda: qg.generate("normal", (3,), "f9"), BAD, "dtype is", '"f9"', "known: f64"),
    "an unknown library": (
        lambda: qg.generate("normal", (3,), kind="pandas"),
        BAD,
        "kind is",
        '"pandas"',
        "numpy, torch or jax",
    ),
    "a scale in text": (lambda: qg.generate("normal", (3,), scale="big"), TYPE, "scale is", "'big'", "number"),
    # --- clients
    "an unknown device": (lambda: qg.Local("tpu").generate("zero", (3,)), BAD, "device is", '"tpu"', "cpu, cuda and cuda:N"),
    "no text for a device": (lambda: qg.Local(3), TYPE, "device is", "3", "text"),
    "threads below none": (lambda: qg.Local(threads=-1), BAD, "threads is", "-1", "from 0"),
    # --- layers
    "an unknown layer": (
        lambda: qg.run(BF16, W, recipe="mxfp8", layer="cinema"),
        BAD,
        "layer.kind is",
        '"cinema"',
        "known: linear",
    ),
    "no weight": (lambda: qg.run(BF16, recipe="mxfp8"), BAD, "weight", "absent", ""),
    "an unknown argument": (lambda: qg.run(BF16, W, recipe="mxfp8", speed=3), TYPE, "speed", "no such argument", ""),
    "an unknown requirement": (
        lambda: qg.run(BF16, W, recipe="mxfp8", require="exact"),
        BAD,
        "require is",
        "'exact'",
        "bitwise or bound",
    ),
    "an unknown gradient": (
        lambda: qg.run(BF16, W, recipe="mxfp8", requires_grad=("y",)),
        BAD,
        "requires_grad is",
        "'y'",
        "x, weight, bias or norm",
    ),
    "parameters in a list": (
        lambda: qg.run(BF16, W, recipe="mxfp8", parameters=[W]),
        TYPE,
        "parameters is",
        "[",
        "dict of tensors",
    ),
    "a parameter twice": (
        lambda: qg.run(BF16, W, recipe="mxfp8", parameters={"weight": W}),
        BAD,
        "parameters['weight'] is",
        "given",
        "argument of its own",
    ),
    "m_splits of another sum": (
        lambda: qg.run(BF16, [W, W], recipe="mxfp8", layer="grouped_linear", m_splits=[32, 16]),
        BAD,
        "m_splits is",
        "48",
        "64",
    ),
    "m_splits that are no integers": (
        lambda: qg.run(BF16, [W, W], recipe="mxfp8", layer="grouped_linear", m_splits=["a", 1]),
        TYPE,
        "m_splits[0] is",
        "'a'",
        "integer",
    ),
    "an unknown norm": (
        lambda: qg.run(BF16, W, recipe="mxfp8", layer="layernorm_linear", norm="l3"),
        BAD,
        "norm.kind is",
        '"l3"',
        "known: layernorm",
    ),
    "a norm that is a number": (
        lambda: qg.run(BF16, W, recipe="mxfp8", layer="layernorm_linear", norm=3),
        TYPE,
        "norm is",
        "3",
        "kind",
    ),
    "an unknown field": (
        lambda: qg.run(BF16, W, recipe="mxfp8", layer="layernorm_linear", norm={"kind": "layernorm", "speed": 3}),
        BAD,
        "norm",
        "speed",
        "",
    ),
    "an unknown override": (
        lambda: qg.run(BF16, W, recipe="mxfp8", backward_override="some"),
        BAD,
        "backward_override is",
        '"some"',
        "known overrides",
    ),
    "a reference that is none": (
        lambda: qg.compare(BF16, W, recipes=["mxfp8"], reference=1),
        BAD,
        "reference is",
        "1",
        "from 0 to 0",
    ),
    "a gradient of another shape": (
        lambda: qg.run(BF16, W, recipe="mxfp8", grad_output=BF16[:, :3]),
        BAD,
        "grad_output is",
        "bf16[64x3]",
        "32",
    ),
    "ranks that do not divide": (
        lambda: qg.run(BF16, W, recipe="mxfp8", parallel_mode="column", parallel={"tensor_parallel": 7}),
        BAD,
        "parameters[weight] is",
        "bf16[32x64]",
        "a multiple of 7",
    ),
    "no subject": (lambda: qg.verify(3, BF16, W, recipe="mxfp8"), TYPE, "subject is", "3", "dict"),
    # --- sessions
    "no layers": (lambda: qg.session({}, {}, recipe="mxfp8"), TYPE, "layers is", "{}", "one at least"),
    "an unknown optimizer": (lambda: session(optimizer={"kind": "lion"}), BAD, "optimizer is", "lion", "adam"),
    "an unknown option": (lambda: session(speed=3), TYPE, "speed", "no such argument", ""),
    "a closed session": (lambda: closed_session().forward(BF16), STATE, "session_id is", "session-", "closed"),
    "a backward before its forward": (lambda: session().backward(BF16[:, :32]), (STATE, BAD), "microbatch", "", "forward"),
    "a checkpoint that is text": (
        lambda: qg.restore("x", {"fc1": "linear"}, recipe="mxfp8"),
        TYPE,
        "checkpoint is",
        "'x'",
        "bytes",
    ),
    "a checkpoint of other bytes": (
        lambda: qg.restore(b"12345678" * 4, {"fc1": "linear"}, recipe="mxfp8"),
        BAD,
        "checkpoint",
        "",
        "",
    ),
    # --- reports
    "an unknown scenario": (lambda: qg.run_scenarios(["sunrise"]), (BAD, MISSING), "names", "sunrise", ""),
    "a file of another kind": (
        lambda: qg.run(BF16, W, recipe="mxfp8").save("report.pdf"),
        ValueError,
        "report.pdf",
        ".html",
        "",
    ),
    "a negative distance": (lambda: qg.diff(X, X, max_ulp=-1), BAD, "max_ulp is", "-1", "from 0"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused(name):
    call, kinds, *texts = CALLS[name]
    with pytest.raises(kinds) as caught:
        call()
    message = str(caught.value)
    for text in texts:
        assert text in message, message
    assert message.split(":")[0].strip() and len(message) < 4000


def test_a_gpu_that_is_not_there_is_refused():
    """Builds without CUDA, without a driver and without that device say so in words of their own."""
    with pytest.raises((STATE, NOT), match="no CUDA engine|no CUDA device|device is cuda:97"):
        qg.Local("cuda:97").generate("zero", (3,))


def test_there_are_a_hundred():
    assert len(CALLS) >= 100


# Calls that could end the interpreter or hang it: each in a process of its own, which must end by itself, soon.
PREAMBLE = """
import gc, os, signal, sys, threading, time
import ml_dtypes, numpy as np
import quantgate as qg
X = (np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 97 - 48) / 8
LARGE = np.ones((2048, 2048), np.float32)

def refused(call, kinds, *texts):
    try:
        call()
    except kinds as error:
        for text in texts:
            assert text in str(error), str(error)
    else:
        raise AssertionError("not refused")

def in_child(call, seconds=60):
    \"\"\"The exit status of a forked child that makes the call; it is killed, and the test fails, where it hangs.\"\"\"
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = call() or 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(status)
    for _ in range(seconds * 20):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
"""

ALONE = {
    "sizes beyond int64": """
        for shape in ((2**62, 2), (2**62, 2**62), (0, 2**62, 2**62), (2**31, 2**31, 2)):
            refused(lambda: qg.generate("normal", shape), (qg.InvalidArgument, qg.ResourceExhausted), "int64")
        """,
    "an array that lies about its size": """
        from numpy.lib.stride_tricks import as_strided
        lying = as_strided(X, (2**40, 2**20), (0, 4))
        refused(lambda: qg.quantize(lying, "mxfp8"), qg.ResourceExhausted, "tensor is")
        """,
    "strides below zero": """
        x = X[::-1, ::-1]
        assert qg.quantize(x, "mxfp8").rowwise_data.tobytes() == qg.quantize(x.copy(), "mxfp8").rowwise_data.tobytes()
        """,
    "no elements": """
        for shape in ((0, 64), (64, 0), (0, 0), (0, 4, 64)):
            try:
                qg.quantize(np.empty(shape, np.float32), "mxfp8", columnwise=True)
            except qg.InvalidArgument:
                pass
        assert qg.gemm(np.empty((0, 32), np.float32), X[:, :32]).d.shape == (0, 64)
        out = {"rowwise_data": np.empty((0, 64), np.uint8), "rowwise_scale_inv": np.empty((0, 2), np.uint8)}
        qg.quantize(np.empty((0, 64), np.float32), "mxfp8", out=out)
        """,
    "an array whose memory is resized": """
        memory = bytearray(X.tobytes())
        x = np.frombuffer(memory, np.float32).reshape(64, 64)
        q = qg.quantize(x, "bf16")
        refused(lambda: memory.clear(), BufferError)
        x[:] = 0
        assert q.rowwise_data.tobytes() == X.tobytes()  # What is handed over shares no memory with what was given.
        """,
    "results of read-only memory": """
        x = np.frombuffer(X.tobytes(), np.float32).reshape(64, 64)
        q = qg.quantize(x, "bf16", columnwise=True)
        q.rowwise_data[:] = 0
        assert q.columnwise_data.tobytes() == x.tobytes() == X.tobytes()
        """,
    "arrays that go first": """
        for _ in range(50):
            q = qg.quantize(X.copy(), "mxfp8", columnwise=True)
            values = qg.dequantize(q)
            data = q.rowwise_data
            del q
            gc.collect()
            assert values.shape == data.shape == (64, 64)
        """,
    "interrupted in a long gemm": """
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            for _ in range(1000):
                qg.gemm(LARGE, LARGE, arithmetic="exact")
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("not interrupted")
        assert qg.gemm(X, X).d.shape == (64, 64)
        """,
    "interrupted in a thread's gemm": """
        done = []
        threads = [threading.Thread(target=lambda: done.append(qg.gemm(LARGE, LARGE).d.shape)) for _ in range(3)]
        for thread in threads:
            thread.start()
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                qg.quantize(LARGE, "mxfp8")
        except KeyboardInterrupt:
            pass
        for thread in threads:
            thread.join()
        assert done == [(2048, 2048)] * 3
        """,
    "a signal whose handler raises": """
        class Stop(Exception):
            pass
        def handler(*_):
            raise Stop
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            for _ in range(1000):
                qg.gemm(LARGE, LARGE, arithmetic="exact")
        except (Stop, KeyboardInterrupt):
            pass
        else:
            raise AssertionError("not ended")
        """,
    "the end of the interpreter during a call": """
        threading.Thread(target=lambda: [qg.gemm(LARGE, LARGE) for _ in range(3)], daemon=True).start()
        time.sleep(0.1)
        """,
    "a fork before the first call": """
        assert in_child(lambda: 0 if qg.quantize(LARGE, "mxfp8").rowwise_data.shape == (2048, 2048) else 1) == 0
        """,
    "a fork after a call": """
        expected = qg.gemm(LARGE, LARGE).d.tobytes(), qg.quantize(LARGE, "mxfp8").rowwise_data.tobytes()
        def call():
            got = qg.gemm(LARGE, LARGE).d.tobytes(), qg.quantize(LARGE, "mxfp8").rowwise_data.tobytes()
            w = LARGE[:256].astype(ml_dtypes.bfloat16)
            report = qg.run(w, w, recipe="mxfp8", require="bitwise")
            return 0 if got == expected and report.outputs["y"].shape == (256, 256) else 1
        assert in_child(call) == 0
        assert in_child(lambda: in_child(call)) == 0
        assert qg.gemm(LARGE, LARGE).d.tobytes() == expected[0]
        """,
    "a fork that ends as Python does": """
        qg.gemm(LARGE, LARGE)
        child = os.fork()
        if child == 0:
            qg.gemm(LARGE, LARGE)
            sys.exit(7)
        for _ in range(1200):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(child, signal.SIGKILL)
            raise AssertionError("hangs")
        assert os.waitstatus_to_exitcode(status) == 7
        """,
    "a fork during another thread's call": """
        stop = threading.Event()
        def work():
            while not stop.is_set():
                qg.gemm(LARGE, LARGE)
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.3)
        def call():
            try:
                qg.quantize(X, "mxfp8")
            except qg.FailedPrecondition as error:
                return 5 if error.field == "process" and "forked" in error.rule else 6
            return 0
        status = in_child(call)
        stop.set()
        thread.join()
        assert status in (0, 5), status  # 0: the fork fell between two calls.
        """,
    "a fork while another thread reads the package": """
        assert "quantgate._package" not in sys.modules
        thread = threading.Thread(target=lambda: qg.gemm(X, X))
        thread.start()
        while "quantgate._package" not in sys.modules:
            time.sleep(0)
        status = in_child(lambda: 0 if qg.Quantized else 1)
        thread.join()
        assert status == 0, status
        """,
    "a fork in a thread": """
        qg.gemm(LARGE, LARGE)
        statuses = []
        def work():
            statuses.append(in_child(lambda: 0 if qg.gemm(LARGE, LARGE).d.shape == (2048, 2048) else 1))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert statuses == [0], statuses
        """,
    "a pool of processes": """
        import multiprocessing
        expected = qg.quantize(LARGE, "mxfp8").rowwise_data.tobytes()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            made = pool.starmap_async(codes_of, [("mxfp8",)] * 4).get(120)
        assert made == [expected] * 4
        """,
}


@pytest.mark.parametrize("name", ALONE)
def test_a_call_that_could_end_the_interpreter(name):
    program = (
        PREAMBLE
        + "def codes_of(recipe):\n    return qg.quantize(LARGE, recipe).rowwise_data.tobytes()\n"
        + textwrap.dedent(ALONE[name])
    )
    done = subprocess.run(
        [sys.executable, "-B", "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_eight_threads_at_once():
    rng = np.random.default_rng(3)
    operands = [rng.standard_normal((96 + 32 * i, 256)).astype(np.float32) for i in range(8)]
    recipes = ["mxfp8", "fp8_current", "fp8_block", "nvfp4", "int8", "fp8_rowwise", "mxfp4", "bf16"]

    def work(i):
        product = qg.gemm(operands[i], operands[i]).d
        q = qg.quantize(operands[i].astype(ml_dtypes.bfloat16), recipes[i])
        values = qg.dequantize(q)
        return product.tobytes(), *(np.asarray(tensor).tobytes() for tensor in q.tensors.values()), values.tobytes()

    expected = [work(i) for i in range(8)]
    found = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def repeat(i):
        barrier.wait()
        for _ in range(20):
            found[i].append(work(i) == expected[i])

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[True] * 20] * 8


def test_threads_share_a_client_and_an_input():
    client = qg.Local(threads=2)
    x = np.random.default_rng(5).standard_normal((256, 512)).astype(np.float32)
    expected = client.quantize(x, "mxfp8", columnwise=True).tensors
    wrong = []

    def work():
        for _ in range(20):
            memory = {name: np.empty_like(tensor) for name, tensor in expected.items()}
            q = client.quantize(x, "mxfp8", columnwise=True, out=memory)
            wrong.extend(name for name, tensor in q.tensors.items() if tensor.tobytes() != expected[name].tobytes())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
