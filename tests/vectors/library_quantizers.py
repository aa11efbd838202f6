"""Codes and scales of libraries' quantizers, for `quantgate explain --source --codes --scale-inv`.

Each formula is written here, in numpy and ml_dtypes, from the public source that its comment names; none of that code is
used. Writes tests/data/explain_libraries.safetensors: sources, and per case NAME.codes, NAME.scale_inv and, where a
format has one, NAME.amax; metadata "cases" says as JSON what made them. Run by hand from the repository root:
python3 tests/vectors/library_quantizers.py
"""

import json
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from other_rules import E2M1, E4M3, E8M0, F32, QUIET, blocks_of, clamped, packed, write_safetensors

BF16 = ml_dtypes.bfloat16
E2M1_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], F32)


def amax_of(x):
    return np.abs(x.astype(F32)).max()


def scale_codes(unit, smallest):
    return np.clip(unit, F32(smallest), F32(448)).astype(F32).astype(E4M3)


# torchao 0.18, prototype/mx_formats/nvfp4_tensor.py: s = amax / (448 * 6); block scale = e4m3(clamp((amax_b / 6) / s,
# 2^-6, 448)); x * ((1 / s) / block scale), RNE. `divides` is its form before that: x / (s * block scale).
def torchao_nvfp4(x, divides):
    blocks = blocks_of(x, 16)
    s = F32(amax_of(x) / F32(448 * 6))
    stored = scale_codes((np.abs(blocks).max(axis=2) / F32(6)).astype(F32) / s, 2.0**-6)
    block_scale = stored.astype(F32)
    if divides:
        scaled = blocks / (s * block_scale).astype(F32)[:, :, None]
    else:
        scaled = blocks * ((F32(1) / s) / block_scale).astype(F32)[:, :, None]
    return packed(clamped(scaled.astype(F32), E2M1, 6.0).reshape(x.shape)), stored


# NVIDIA ModelOpt 0.47, torch/quantization/qtensor/mxfp4_tensor.py: exponent = ceil(log2(amax_b / 6)), at least -127; the
# code of |x| / 2^exponent is how many midpoints lie strictly below it, so that ties go toward zero; the sign bit is that
# of every x that is not positive, zeros among them. log2 of fp32 rounds: here, of a number just above a power of two,
# down to it; the exact ceiling is used, and asserted to be the same wherever a correctly rounded log2 is.
def modelopt_mxfp4(x):
    blocks = blocks_of(x, 32)
    ratio = (np.abs(blocks).max(axis=2) / F32(6)).astype(F32)
    with np.errstate(**QUIET):
        exponent = np.ceil(np.maximum(np.log2(ratio.astype(np.float64)).astype(F32), F32(-127)))
    exact = np.where(ratio > 0, np.frexp(ratio.astype(np.float64))[1] - (np.frexp(ratio.astype(np.float64))[0] == 0.5), -127)
    assert np.array_equal(np.maximum(exact, -127), exponent.astype(np.int64))
    scaled = (blocks / np.exp2(exponent).astype(F32)[:, :, None]).astype(F32).reshape(x.shape)
    magnitude = (np.abs(scaled)[..., None] > E2M1_MIDPOINTS).sum(axis=-1)
    codes = (magnitude | np.where(scaled > 0, 0, 8)).astype(np.uint8)
    return packed(codes), (exponent + 127).astype(np.uint8).view(E8M0)


# NVIDIA ModelOpt 0.47, torch/quantization/qtensor/nvfp4_tensor.py: s = amax / (6 * 448); block scale = e4m3(clamp(amax_b /
# (6 * s), 2^-9, 448)), of zeros 1; x / (block scale * s), RNE; the sign bit is that of x < 0.
def modelopt_nvfp4(x):
    blocks = blocks_of(x, 16)
    s = F32(amax_of(x) / F32(6 * 448))
    unit = (np.abs(blocks).max(axis=2) / F32(F32(6) * s)).astype(F32)
    stored = scale_codes(np.where(unit == 0, F32(1), unit), 2.0**-9)
    scaled = (blocks / (stored.astype(F32) * s).astype(F32)[:, :, None]).astype(F32).reshape(x.shape)
    codes = clamped(np.abs(scaled), E2M1, 6.0).view(np.uint8) | np.where(scaled < 0, 8, 0).astype(np.uint8)
    return packed(codes.astype(np.uint8)), stored


# compressed-tensors 0.20, quantization/utils/helpers.py (generate_gparam, calculate_qparams), lifecycle/forward_helpers.py
# and utils/fp4_utils.py: g = 448 * 6 * (1 / amax), each in the type of the source, then fp32; block scale = e4m3(g * (amax_b / 6)), the
# quotient in the type of the source, of zeros 0.125; x / (block scale / g), RNE; a zero keeps no sign, a negative number
# that becomes zero does.
def compressed_tensors_nvfp4(x):
    kind = x.dtype.type
    amax = np.abs(x.astype(F32)).max()
    # torch divides a number by a tensor as the number times the rounded reciprocal.
    g = F32(F32(2688) * F32((F32(1) / amax).astype(kind))).astype(kind).astype(F32)
    blocks = blocks_of(x, 16)
    sixth = (np.abs(blocks).max(axis=2) / F32(6)).astype(kind).astype(F32)
    stored = np.minimum((g * sixth).astype(F32), F32(448)).astype(E4M3)
    stored = np.where(stored.astype(F32) == 0, F32(0.125), stored.astype(F32)).astype(E4M3)
    scaled = (blocks / (stored.astype(F32) / g).astype(F32)[:, :, None]).astype(F32).reshape(x.shape)
    codes = clamped(np.abs(scaled), E2M1, 6.0).view(np.uint8) | np.where(scaled < 0, 8, 0).astype(np.uint8)
    return packed(codes.astype(np.uint8)), stored


# No library's: a per-tensor cast whose scale is 448 * (1 / amax), each step rounded to fp32; scale_inv = 1 / scale.
def fp8_times_reciprocal_of_amax(x):
    scale = F32(F32(448) * F32(F32(1) / amax_of(x)))
    return clamped((x.astype(F32) * scale).astype(F32), E4M3, 448.0), F32(F32(1) / scale).reshape(1)


def sources():
    real = load_file("data/bytegpt_block1.safetensors")
    x = real["fc1.x"][:128, :256]
    yield "x", x
    yield "w", real["fc1.weight"][:64, :256]
    yield "x_f32", x[:64].astype(F32) * F32(1.1)  # Not bf16's values.
    # Half of it zeros, of which every other one is negative.
    sparse = np.where(x[:64] > 0, x[:64], BF16(0))
    sparse[:, 1::2] = np.where(sparse[:, 1::2] == 0, BF16(-0.0), sparse[:, 1::2])
    yield "x_sparse", sparse.astype(BF16)


def cases(inputs):
    """(name, source, (codes, scale_inv), has an amax, what made them)"""
    torchao = dict(block="1x16", scale_rule="two_level_clamped", zeros="", of="torchao, NVFP4 with a tensor scale")
    yield "torchao_nvfp4", "x", torchao_nvfp4(inputs["x"], False), True, dict(
        torchao, elements="x * ((1 / tensor scale) / block scale), nearest_even")
    yield "torchao_nvfp4_f32", "x_f32", torchao_nvfp4(inputs["x_f32"], False), True, dict(
        torchao, elements="x * ((1 / tensor scale) / block scale), nearest_even")
    yield "torchao_nvfp4_divided", "x", torchao_nvfp4(inputs["x"], True), True, dict(
        torchao, elements="x / (tensor scale * block scale), nearest_even")
    modelopt = dict(block="1x32", scale_rule="round_up", elements="x * scale, nearest_toward_zero",
                    of="NVIDIA ModelOpt, MXFP4")
    yield "modelopt_mxfp4", "x", modelopt_mxfp4(inputs["x"]), False, dict(modelopt, zeros="")
    yield "modelopt_mxfp4_w", "w", modelopt_mxfp4(inputs["w"]), False, dict(modelopt, zeros="")
    yield "modelopt_mxfp4_sparse", "x_sparse", modelopt_mxfp4(inputs["x_sparse"]), False, dict(
        modelopt, zeros="zeros negative")
    of_nvfp4 = dict(block="1x16", of="NVIDIA ModelOpt, NVFP4", scale_rule="two_level_floored",
                    elements="x / (tensor scale * block scale), nearest_even")
    yield "modelopt_nvfp4", "x", modelopt_nvfp4(inputs["x"]), True, dict(of_nvfp4, zeros="")
    yield "modelopt_nvfp4_sparse", "x_sparse", modelopt_nvfp4(inputs["x_sparse"]), True, dict(
        of_nvfp4, zeros="zeros positive")
    compressed = dict(block="1x16", scale_rule="two_level_global", of="compressed-tensors, NVFP4",
                      elements="x / (block scale / global scale), nearest_even")
    for source in ("x", "w", "x_f32"):
        yield f"compressed_tensors_nvfp4_{source}", source, compressed_tensors_nvfp4(inputs[source]), True, dict(
            compressed, zeros="")
    yield "compressed_tensors_nvfp4_sparse", "x_sparse", compressed_tensors_nvfp4(inputs["x_sparse"]), True, dict(
        compressed, zeros="zeros positive")
    for source in ("x", "w"):
        yield f"fp8_times_reciprocal_{source}", source, fp8_times_reciprocal_of_amax(inputs[source]), False, dict(
            block="tensor", scale_rule="", zeros="", of="", elements="")


def main():
    inputs = {name: np.ascontiguousarray(values) for name, values in sources()}
    tensors, described = {f"{name}.source": x for name, x in inputs.items()}, []
    for name, source, (codes, scale_inv), has_amax, made_by in cases(inputs):
        tensors[f"{name}.codes"], tensors[f"{name}.scale_inv"] = codes, scale_inv
        if has_amax:
            tensors[f"{name}.amax"] = amax_of(inputs[source]).reshape(1)
        described.append({"name": name, "source": f"{source}.source", **made_by})
    path = pathlib.Path("tests/data/explain_libraries.safetensors")
    write_safetensors(path, tensors, {
        "origin": f"tests/vectors/library_quantizers.py, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}; "
                  "sources: windows of data/bytegpt_block1.safetensors",
        "cases": json.dumps(described)})
    print(len(described), "cases", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
