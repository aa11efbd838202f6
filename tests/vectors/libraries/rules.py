"""The rule of each stored case, in numpy: from a source and the case's arguments to the codes and scales, bit for bit.

Every rule is written here from what its library computes; none of their code is used. t is the dtype of the source, f32
unless it is said otherwise; t(.) rounds to it. `a / b` of torch's tensors in bf16 or f16 is t(f32(a / b)); `number /
tensor` is t(number * t(1 / tensor)), two roundings. Each rule returns the tensors of a case by kind, as (safetensors
dtype, array).
"""

import numpy as np

from formats import (F32, QUIET, bits_of, decode, encode, largest, log2_f32, magnitude_codes, magnitudes, nibbles,
                     power_of_two, round_to, sign_bit, stored)

FP8 = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2", "e4m3fnuz": "U8", "e5m2fnuz": "U8"}
TINY = {"f32": F32(2.0**-126), "bf16": F32(2.0**-126), "f16": F32(2.0**-14)}  # Smallest normal.
EPSILON = {"f32": F32(2.0**-23), "bf16": F32(2.0**-7), "f16": F32(2.0**-10)}  # From 1 to the next.
MX_EXPONENT = {"e4m3": 8, "e5m2": 15, "e2m3": 2, "e3m2": 4, "e2m1": 2}  # floor(log2(largest))
TINY_E4M3 = F32(2.0**-6)
NF4_OF_FOUR_DIGITS = np.array([-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609, 0.2461,
                               0.3379, 0.4407, 0.5626, 0.723, 1], F32)
MANTISSA_BITS = {"e4m3": 3, "e5m2": 2, "e2m3": 3, "e3m2": 2, "e2m1": 1}


class Blocks:
    """The blocks of a tensor: "tensor", "row", "column" or ROWSxCOLUMNS of the last two dims, partial ones included."""

    def __init__(self, shape, block):
        self.shape, self.whole = shape, block == "tensor"
        if not self.whole:
            sizes = {"row": (1, shape[-1]), "column": (shape[-2], 1)}
            self.rows, self.columns = sizes.get(block) or tuple(int(size) for size in block.split("x"))

    def reduce(self, function, values):
        """`function` (np.max, np.min) over each block; one number for a whole tensor. Elements beyond the end are 0."""
        if self.whole:
            return np.asarray(function(values), F32)
        pad = [(0, 0)] * (len(self.shape) - 2) + [(0, -self.shape[-2] % self.rows), (0, -self.shape[-1] % self.columns)]
        padded = np.pad(values, pad)
        m, k = padded.shape[-2:]
        tiles = padded.reshape(*self.shape[:-2], m // self.rows, self.rows, k // self.columns, self.columns)
        return function(tiles, axis=(-3, -1)).astype(F32)

    def amax(self, values):
        return self.reduce(np.max, np.abs(values))

    def spread(self, per_block):
        """What each block has, at each of its elements."""
        if self.whole:
            return np.broadcast_to(per_block, self.shape)
        wide = np.repeat(np.repeat(per_block, self.rows, axis=-2), self.columns, axis=-1)
        return wide[..., : self.shape[-2], : self.shape[-1]]


def divided(a, b, dtype="f32"):
    """t(f32(a / b))"""
    with np.errstate(**QUIET):
        return round_to(np.asarray(a, F32) / np.asarray(b, F32), dtype)


def times(a, b, dtype="f32"):
    """t(f32(a * b))"""
    with np.errstate(**QUIET):
        return round_to(np.asarray(a, F32) * np.asarray(b, F32), dtype)


def number_over(number, tensor, dtype="f32"):
    """torch's number / tensor: t(number * t(1 / tensor))."""
    return times(F32(number), divided(F32(1), tensor, dtype), dtype)


def clamped(values, element):
    return np.clip(values, -largest(element), largest(element))


def eight_bits(codes, element):
    return FP8[element], codes


def swizzle(scales):
    """As tensor cores read block scales: tiles of 128 rows by 4, of which 32 rows hold four 4-byte pieces each."""
    rows, columns = scales.shape
    padded = np.pad(scales, ((0, -rows % 128), (0, -columns % 4)))
    tiles = padded.reshape(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)  # Row tile, piece, row, column tile.
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


# torchao 0.18, quantization/quant_primitives.py (_choose_scale_float8, _quantize_affine_float8), for Float8Tensor:
# s = f32(t(amax / max)); codes = cast(f32(f32(x) / s)), saturated. Zeros divide 0 by 0 unless amax has a floor.
def torchao_float8(x, case, element, smallest_amax):
    blocks = Blocks(x.values.shape, case["block"])
    amax = np.maximum(blocks.amax(x.values), round_to(F32(smallest_amax), x.dtype))
    scale = divided(amax, largest(element), x.dtype)
    codes = encode(clamped(divided(x.values, blocks.spread(scale)), element), element)
    return dict(codes=eight_bits(codes, element), scale=("F32", scale))


# torchao 0.18, float8/float8_utils.py (amax_to_scale) and float8_training_tensor.py: in binary64 s = max * (1 /
# amax), amax at least 1e-12, then fp32; with power_of_two 2^floor(log2 s); codes = cast(f32(f32(x) * s)), saturated.
# s is kept.
def torchao_training(x, case, element, power_of_two):
    blocks = Blocks(x.values.shape, case["block"])
    amax = np.maximum(blocks.amax(x.values).astype(np.float64), 1e-12)
    scale = (np.float64(largest(element)) * (1 / amax)).astype(F32)
    if power_of_two:
        scale = np.exp2(np.floor(log2_f32(scale)).astype(np.float64)).astype(F32)
    codes = encode(clamped(times(x.values, blocks.spread(scale)), element), element)
    return dict(codes=eight_bits(codes, element), scale=("F32", scale))


# torchao 0.18, prototype/blockwise_fp8_training/kernels.py (torch_blockwise_scale_*): the same s; 1 / s is kept.
def torchao_blockwise(x, case):
    blocks = Blocks(x.values.shape, case["block"])
    amax = np.maximum(blocks.amax(x.values).astype(np.float64), 1e-12)
    scale = (np.float64(448) * (1 / amax)).astype(F32)
    codes = encode(clamped(times(x.values, blocks.spread(scale)), "e4m3"), "e4m3")
    return dict(codes=eight_bits(codes, "e4m3"), scale=("F32", divided(F32(1), scale)))


def mx_elements(values, element):
    """Codes of scaled values as torchao writes them: FP8 and FP6 one to a byte, FP4 two."""
    codes = encode(values, element)
    if element in FP8:
        return eight_bits(codes, element)
    return "U8", nibbles(codes) if element == "e2m1" else codes


# torchao 0.18, prototype/mx_formats/mx_tensor.py (to_mx). rceil: code = ceil(log2(amax / max)) + 127, that log2 in
# fp32, at least 0; NaN 255, infinite 254; x * 2^(127 - code), but x * 1 where the code is 0. The others: from the
# exponent field e and mantissa m of amax, for `even` after adding half a unit of the element's last mantissa place,
# for `ceil` plus 1 where m > 0, minus floor(log2(max)), at least 0; 255 for NaN alone; x / max(2^(code - 127),
# 2^-126), where code 255 is infinite.
def torchao_mx(x, case, element, mode, swizzled):
    blocks = Blocks(x.values.shape, "1x32")
    with np.errstate(**QUIET):
        amax = blocks.amax(x.values)  # NaN where a block has one.
        if mode == "rceil":
            ratio = divided(amax, largest(element))
            exponent = np.clip(np.ceil(log2_f32(ratio)), -127, 127) + 127
            code = np.where(np.isnan(ratio), 255, np.where(np.isinf(ratio), 254, exponent)).astype(np.uint8)
            factor = np.where(code == 0, F32(1), power_of_two(127 - code.astype(np.int64)))
            factor = np.where(code == 255, F32(np.nan), factor).astype(F32)
            scaled = clamped(times(x.values, blocks.spread(factor)), element)
        else:
            bits = bits_of(np.where(np.isnan(amax), F32(1), amax))
            if mode == "even":
                bits = (bits + np.uint32(1 << (22 - MANTISSA_BITS[element]))) & np.uint32(0xFF800000)
            exponent = (bits >> np.uint32(23)).astype(np.int64) & 0xFF
            if mode == "ceil":
                exponent = exponent + ((bits & np.uint32(0x7FFFFF)) > 0)
            code = np.maximum(exponent - MX_EXPONENT[element], 0)
            code = np.where(np.isnan(amax), 255, code).astype(np.uint8)
            scale = (code.astype(np.uint32) << np.uint32(23)).view(F32)  # 255: infinity.
            scaled = divided(x.values, blocks.spread(np.maximum(scale, TINY["f32"])))
    return dict(codes=mx_elements(clamped(scaled, element), element),
                scale=("F8_E8M0", swizzle(code) if swizzled else code))


# torchao 0.18, prototype/mx_formats/nvfp4_tensor.py (nvfp4_quantize). G = A / 2688; s8 = e4m3(clamp((amax_b / 6) / G,
# 2^-6, 448)); codes of x * ((1 / G) / s8). One level: G is left out: x * (1 / s8). Nearest even; a zero keeps its
# sign.
def torchao_nvfp4(x, case, levels, swizzled):
    blocks = Blocks(x.values.shape, "1x16")
    unit = divided(blocks.amax(x.values), F32(6))
    tensor_scale = divided(np.abs(x.values).max(), F32(2688))
    if levels == 2:
        unit = divided(unit, tensor_scale)
    code = encode(np.clip(unit, TINY_E4M3, F32(448)), "e4m3")
    first = divided(F32(1), tensor_scale) if levels == 2 else F32(1)
    factor = divided(first, decode(code, "e4m3"))
    codes = nibbles(encode(times(x.values, blocks.spread(factor)), "e2m1"))
    made = dict(codes=("U8", codes), scale=("F8_E4M3", swizzle(code) if swizzled else code))
    if levels == 2:
        made["tensor_scale"] = "F32", np.asarray(tensor_scale, F32)
    return made


# torchao 0.18, quantization/quant_primitives.py (choose_qparams_affine, quantize_affine). Of the least and the
# largest value, 0 among them. Symmetric: scale = t(max(-min, max) / ((high - low) / 2)), zero point 0; asymmetric:
# scale = t(t(max - min) / (high - low)), zero point low - round(t(min / scale)). scale is at least epsilon. codes =
# round(x * (1 / scale)) + zero point, clamped: in fp32 where the scale was widened to it (Int8Tensor), else each step
# in t.
def torchao_int(x, case, mapping, low, high, scale_in_f32):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    least = np.minimum(blocks.reduce(np.min, x.values), F32(0))
    most = np.maximum(blocks.reduce(np.max, x.values), F32(0))
    smallest = F32(2.0**-23) if scale_in_f32 else TINY[t]
    if mapping == "SYMMETRIC":
        scale = np.maximum(divided(np.maximum(-least, most), F32((high - low) / 2), t), smallest)
        zero = np.zeros(scale.shape, F32)
    else:
        scale = np.maximum(divided(round_to(most - least, t), F32(high - low), t), smallest)
        zero = np.clip(round_to(F32(low) - np.rint(divided(least, scale, t)), t), low, high)
    width = "f32" if scale_in_f32 else t
    steps = np.rint(times(x.values, blocks.spread(divided(F32(1), scale, width)), width))
    codes = np.clip(round_to(steps + blocks.spread(zero), width), low, high).astype(np.int8)
    return dict(codes=("I8", codes), scale=stored(scale, width), zero_point=("I8", zero.astype(np.int8)))


# torchao 0.18, the same file (*_tinygemm): scale = t(t(max - min) / 15), at least epsilon; zero point = t(min +
# t(scale * 8)), a number, not a code; codes = round(t(t(x - t(zero point - t(scale * 8))) / scale)), 0 to 15.
def torchao_tinygemm(x, case):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    least, most = blocks.reduce(np.min, x.values), blocks.reduce(np.max, x.values)
    scale = np.maximum(divided(round_to(most - least, t), F32(15), t), TINY[t])
    middle = times(scale, F32(8), t)
    zero = round_to(least + middle, t)
    start = round_to(zero - middle, t)
    codes = np.rint(divided(round_to(x.values - blocks.spread(start), t), blocks.spread(scale), t))
    codes = np.clip(codes, 0, 15).astype(np.uint8)
    return dict(codes=("U8", codes), scale=stored(scale, t), zero_point=stored(zero, t))


# torchao 0.18, quantization/quantize_/workflows/nf4/nf4_tensor.py, and ModelOpt 0.47, torch/quantization/qtensor/
# nf4_tensor.py: the quotient t(x / amax) of a block of 64; the code is the level, of the NF4 levels of four digits,
# with the least t(|quotient - level|), of equal ones the first. torchao rounds the levels to t, ModelOpt to bf16. The
# even column is the high nibble.
def nf4_of_rounded_quotient(x, case, levels_in):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    amax = blocks.amax(x.values)
    quotient = divided(x.values, blocks.spread(amax), t)
    distance = np.abs(round_to(quotient[..., None] - round_to(NF4_OF_FOUR_DIGITS, levels_in), t))
    codes = nibbles(np.argmin(distance, axis=-1), low_first=False)
    return dict(codes=("U8", codes), scale=stored(amax, t))


# compressed-tensors 0.20, quantization/utils/helpers.py (calculate_qparams) and lifecycle/forward_helpers.py
# (_quantize): scale = t(amax / 448), of zeros epsilon; codes = cast(t(x / scale)), saturated. With a zero point
# (dynamic scales) 0 is added before the cast, which makes -0 to +0.
def compressed_fp8(x, case, with_zero_point):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    scale = divided(blocks.amax(x.values), F32(448), t)
    scale = np.where(scale == 0, EPSILON[t], scale)
    quotient = divided(x.values, blocks.spread(scale), t)
    if with_zero_point:
        quotient = quotient + F32(0)
    return dict(codes=eight_bits(encode(clamped(quotient, "e4m3"), "e4m3"), "e4m3"), scale=stored(scale, t))


# compressed-tensors 0.20, the same files (generate_gparam, calculate_qparams) and utils/fp4_utils.py: gs = t(2688 *
# t(1 / A)), then fp32; s8 = e4m3(f32(gs * t(amax_b / 6))), of zeros 0.125; codes of f32(x / f32(s8 / gs)), nearest
# even; a zero has no sign, what is rounded to zero keeps its own.
def compressed_nvfp4(x, case):
    t = x.dtype
    blocks = Blocks(x.values.shape, "1x16")
    tensor_scale = number_over(2688, np.maximum(np.abs(x.values).max(), TINY[t]), t)
    unit = np.minimum(times(tensor_scale, divided(blocks.amax(x.values), F32(6), t)), F32(448))
    code = encode(unit, "e4m3")
    code = np.where(code == 0, encode(F32(0.125), "e4m3"), code)
    scale = divided(decode(code, "e4m3"), tensor_scale)
    quotient = divided(x.values, blocks.spread(scale)) + F32(0)
    codes = nibbles(encode(clamped(quotient, "e2m1"), "e2m1"))
    return dict(codes=("U8", codes), scale=("F8_E4M3", code), tensor_scale=("F32", np.asarray(tensor_scale, F32)))


def packed_by_six(codes):
    """Four codes of six bits in three bytes, the first in the lowest bits."""
    four = codes.reshape(*codes.shape[:-1], -1, 4).astype(np.uint32)
    word = four[..., 0] | four[..., 1] << 6 | four[..., 2] << 12 | four[..., 3] << 18
    three = np.stack([word, word >> 8, word >> 16], axis=-1) & 0xFF
    return three.astype(np.uint8).reshape(*codes.shape[:-1], -1)


# compressed-tensors 0.20, quantization/utils/mxfp_utils.py (generate_mx_scales): the bits of amax in t, plus half a
# unit of the last of its first m mantissa places, m = 1 for FP8 and FP4, 3 for FP6: of fp32 2^21 or 2^19; of that the
# exponent, minus floor(log2(max)), at least -127. codes of t(x / 2^exponent); FP4 drops the sign of a zero. A scale
# that is 0 in t is epsilon.
def compressed_mx(x, case, element):
    t = x.dtype
    blocks = Blocks(x.values.shape, "1x32")
    amax = blocks.amax(x.values)
    kept_bits = 3 if element == "e2m3" else 1
    rounded = bits_of(amax) + np.uint32(1 << (22 - kept_bits))
    power = (rounded & np.uint32(0xFF800000)).view(F32)
    with np.errstate(**QUIET):
        exponent = np.floor(log2_f32(power)) - MX_EXPONENT[element]
    code = np.clip(exponent + 127, 0, 255)
    scale = round_to(power_of_two(code - 127), t)
    scale = np.where(scale == 0, EPSILON[t], scale)
    quotient = clamped(divided(x.values, blocks.spread(scale), t), element)
    kept = np.floor(log2_f32(scale)) + 127
    if element == "e2m1":
        codes = "U8", nibbles(encode(quotient + F32(0), element))
    else:
        codes = encode(quotient, element)
        codes = eight_bits(codes, element) if element == "e4m3" else ("U8", packed_by_six(codes))
    return dict(codes=codes, scale=("U8", kept.astype(np.uint8)))


# compressed-tensors 0.20, quantization/utils/helpers.py (calculate_qparams): scale = t(amax / (2^bits - 1) * 2), or
# t(t(max - min) / (2^bits - 1)) with the zero point round(clamp(t(low - t(min / scale)))); of zeros epsilon. codes =
# round(clamp(t(t(x / scale) + zero point))).
def compressed_int(x, case, bits, symmetric, packed):
    t = x.dtype
    low, high = F32(-(2 ** (bits - 1))), F32(2 ** (bits - 1) - 1)
    blocks = Blocks(x.values.shape, case["block"])
    least = np.minimum(blocks.reduce(np.min, x.values), F32(0))
    most = np.maximum(blocks.reduce(np.max, x.values), F32(0))
    made = {}
    if symmetric:
        scale = divided(np.maximum(-least, most), (high - low) / 2, t)
    else:
        scale = divided(round_to(most - least, t), high - low, t)
        zero = np.rint(np.clip(round_to(low - divided(least, scale, t), t), low, high))
        made["zero_point"] = "I8", zero.astype(np.int8)
    scale = np.where(scale == 0, EPSILON[t], scale)
    quotient = divided(x.values, blocks.spread(scale), t)
    if not symmetric:
        quotient = round_to(quotient + blocks.spread(zero), t)
    codes = np.rint(np.clip(quotient, low, high)).astype(np.int8)
    made["codes"] = "I8", codes
    if packed:
        eight = (codes.reshape(codes.shape[0], -1, 8).astype(np.int64) + 8).astype(np.uint32)
        words = (eight << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)
        made["codes"] = "I32", words.view(np.int32)
    return dict(made, scale=stored(scale, t))


# ModelOpt 0.47, torch/quantization/qtensor/fp8_tensor.py: scale = t(amax / 448); codes = cast(t(x / scale)).
def modelopt_fp8(x, case):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    scale = divided(blocks.amax(x.values), F32(448), t)
    codes = encode(divided(x.values, blocks.spread(scale), t), "e4m3")
    return dict(codes=eight_bits(codes, "e4m3"), scale=stored(scale, t))


# ModelOpt 0.47, torch/quantization/qtensor/int8_tensor.py: scale = t(amax / 127); codes = round(t(x / scale)), -128
# to 127.
def modelopt_int8(x, case):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    scale = divided(blocks.amax(x.values), F32(127), t)
    codes = np.clip(np.rint(divided(x.values, blocks.spread(scale), t)), -128, 127)
    return dict(codes=("I8", codes.astype(np.int8)), scale=stored(scale, t))


# ModelOpt 0.47, torch/quantization/qtensor/int4_tensor.py: scale = t(7 * t(1 / amax)) is kept; codes = round(t(x *
# scale)), -8 to 7, plus 8; the even column is the high nibble.
def modelopt_int4(x, case):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    scale = number_over(7, blocks.amax(x.values), t)
    codes = np.clip(np.rint(times(x.values, blocks.spread(scale), t)), -8, 7) + 8
    return dict(codes=("U8", nibbles(codes.astype(np.uint8), low_first=False)), scale=stored(scale, t))


# ModelOpt 0.47, torch/quantization/qtensor/mxfp4_tensor.py: exponent = ceil(log2(amax / 6)), that log2 in fp32, at
# least -127; magnitudes of x / 2^exponent to nearest, ties toward zero; the sign bit is that of every x that is not
# positive, zeros of both signs among them.
def modelopt_mxfp4(x, case):
    blocks = Blocks(x.values.shape, "1x32")
    exponent = np.ceil(np.maximum(log2_f32(divided(blocks.amax(x.values), F32(6))), F32(-127)))
    quotient = divided(x.values, blocks.spread(power_of_two(exponent)))
    codes = magnitude_codes(quotient, "e2m1", "zero") | np.where(quotient > 0, 0, 8).astype(np.uint8)
    return dict(codes=("U8", nibbles(codes)), scale=("U8", (exponent + 127).astype(np.uint8)))


# ModelOpt 0.47, torch/quantization/qtensor/mxfp8_tensor.py: exponent = ceil(log2(amax / 448)), that log2 in fp32,
# within +-127; codes = cast(f32(x * 2^-exponent)), saturated.
def modelopt_mxfp8(x, case):
    blocks = Blocks(x.values.shape, "1x32")
    exponent = np.clip(np.ceil(np.maximum(log2_f32(divided(blocks.amax(x.values), F32(448))), F32(-127))), -127, 127)
    codes = encode(clamped(times(x.values, blocks.spread(power_of_two(-exponent))), "e4m3"), "e4m3")
    return dict(codes=eight_bits(codes, "e4m3"), scale=("U8", (exponent + 127).astype(np.uint8)))


# ModelOpt 0.47, torch/quantization/qtensor/nvfp4_tensor.py: G = f32(A / 2688); s8 = e4m3(clamp(amax_b / f32(6 * G),
# 2^-9, 448)), of zeros 1; codes of f32(x / f32(s8 * G)), nearest even; the sign bit is that of x < 0.
def modelopt_nvfp4(x, case):
    blocks = Blocks(x.values.shape, "1x16")
    tensor_scale = divided(np.abs(x.values).max(), F32(2688))
    unit = divided(blocks.amax(x.values), times(F32(6), tensor_scale))
    unit = np.where(unit == 0, F32(1), unit)
    code = encode(np.clip(unit, F32(2.0**-9), F32(448)), "e4m3")
    quotient = divided(x.values, blocks.spread(times(decode(code, "e4m3"), tensor_scale)))
    codes = magnitude_codes(quotient, "e2m1") | np.where(quotient < 0, 8, 0).astype(np.uint8)
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % 16)])
    return dict(codes=("U8", nibbles(padded)), scale=("F8_E4M3", code),
                tensor_scale=("F32", np.asarray(tensor_scale, F32)))


# optimum-quanto 0.2.7, tensor/optimizers/absmax_optimizer.py and library/quantize.py (quantize_symmetric): scale =
# t(amax / max), max 127 or the largest of the FP8 format; codes = clamp(t(x / scale)), integers rounded before that.
def quanto_eight_bits(x, case, element):
    t = x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    most = F32(127) if element == "int8" else largest(element)
    scale = divided(blocks.amax(x.values), most, t)
    quotient = divided(x.values, blocks.spread(scale), t)
    if element == "int8":
        codes = "I8", np.clip(np.rint(quotient), -128, 127).astype(np.int8)
    else:
        codes = eight_bits(encode(clamped(quotient, element), element), element)
    return dict(codes=codes, scale=stored(scale, t))


# optimum-quanto 0.2.7, tensor/optimizers/max_optimizer.py, affine_optimizer.py, library/quantize.py (quantize_affine)
# and tensor/packed.py: scale = t(t(max - min) / (2^bits - 1)), shift = -min; codes = round(t(t(x + shift) / scale)),
# or with an integer shift s = round(t(shift / scale)), round(t(x / scale)) + s; 0 to 2^bits - 1. Groups are rows; a
# byte has the codes of rows r, r + n, ..., n the number of groups over the codes in a byte.
def quanto_few_bits(x, case, bits, integer_shift):
    t = x.dtype
    most = 2**bits - 1
    groups = x.values.reshape(-1, int(case["block"].split("x")[1]))
    least, largest_value = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    scale = divided(round_to(largest_value - least, t), F32(most), t)
    if integer_shift:
        shift = np.clip(np.rint(divided(-least, scale, t)), 0, most)
        codes = np.rint(divided(groups, scale, t)) + shift
        kept_shift = "U8", shift.astype(np.uint8)
    else:
        codes = np.rint(divided(round_to(groups - least, t), scale, t))
        kept_shift = stored(-least, t)
    codes = np.clip(codes, 0, most).astype(np.uint8).reshape(8 // bits, -1, groups.shape[1])
    packed = np.zeros(codes.shape[1:], np.uint8)
    for place, part in enumerate(codes):
        packed |= part << (bits * place)
    return dict(codes=("U8", packed), scale=stored(scale, t), zero_point=kept_shift)


# Transformers 5.24, integrations/finegrained_fp8.py (Fp8Quantize): s = f32(448 * f32(1 / amax)), of zeros 1; codes =
# cast(f32(x * s)), saturated; f32(1 / s) is kept. ue8m0: that rounded up to a power of two by ceil of an fp32 log2 is
# kept, and s is one over it.
def transformers_fp8(x, case, power_of_two):
    blocks = Blocks(x.values.shape, case["block"])
    amax = blocks.amax(x.values)
    amax = amax.reshape(1, 1) if blocks.whole else amax
    scale = np.where(amax > 0, number_over(448, np.where(amax > 0, amax, F32(1))), F32(1))
    inverse = divided(F32(1), scale)
    kept = "F32", inverse
    if power_of_two:
        exponent = np.ceil(log2_f32(np.maximum(inverse, TINY["f32"])))
        kept = "F8_E8M0", np.clip(exponent + 127, 0, 254).astype(np.uint8)
        scale = np.exp2(-exponent.astype(np.float64)).astype(F32)
    codes = encode(clamped(times(x.values, blocks.spread(scale)), "e4m3"), "e4m3")
    return dict(codes=eight_bits(codes, "e4m3"), scale=kept)


# DeepGEMM, commit 54e2261, deep_gemm/utils/math.py (per_token_cast_to_fp8, per_channel_cast_to_fp8,
# per_block_cast_to_fp8): s = f32(amax / 448), amax at least 1e-4; with use_ue8m0 the power of two that is not below s;
# codes = cast(f32(x * f32(1 / s))). Packed: four exponents of s along a row in an i32, the first lowest.
def deepgemm_fp8(x, case, power_of_two, packed):
    blocks = Blocks(x.values.shape, case["block"])
    scale = divided(np.maximum(blocks.amax(x.values), F32(1e-4)), F32(448))
    if power_of_two:
        exponent = (bits_of(scale) >> 23) + ((bits_of(scale) & 0x7FFFFF) != 0)
        scale = (np.clip(exponent, 1, 254).astype(np.uint32) << np.uint32(23)).view(F32).reshape(scale.shape)
    codes = encode(times(x.values, blocks.spread(divided(F32(1), scale))), "e4m3")
    kept = "F32", scale
    if packed:
        kept = "I32", (bits_of(scale) >> 23).astype(np.uint8).view(np.int32)
    return dict(codes=eight_bits(codes, "e4m3"), scale=kept)


# Transformers 5.24, integrations/bitnet.py (activation_quant), not compiled: s = t(127 * t(1 / amax)), amax at least
# 1e-5; codes = round(t(x * s)), -128 to 127; s is kept.
def transformers_bitnet(x, case):
    t = x.dtype
    blocks = Blocks(x.values.shape, "row")
    scale = number_over(127, np.maximum(blocks.amax(x.values), round_to(F32(1e-5), t)), t)
    codes = np.clip(np.rint(times(x.values, blocks.spread(scale), t)), -128, 127)
    return dict(codes=("I8", codes.astype(np.int8)), scale=stored(scale, t))


FOUR_BIT_LEVELS = {
    # Dettmers and others, QLoRA, appendix E.
    "nf4": np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                     0.7229568362236023, 1.0], F32),
    # Sign and magnitude, in the order of the codes; zero has one sign.
    "fp4": np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], F32) / F32(12),
}


def runs(values, size):
    """Runs of `size` elements in row-major order, the last one filled up with zeros, and where that run begins."""
    flat = values.reshape(-1)
    return np.pad(flat, (0, -flat.size % size)).reshape(-1, size), flat.size - flat.size % size


def scaled_by_amax(values, size):
    """(x * f32(1 / amax) of each run of `size`, a last partial run x / amax; amax), within +-1; amax at least 1e-38."""
    blocks, tail = runs(values, size)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    safe = np.maximum(amax, F32(1e-38))
    scaled = times(blocks, divided(F32(1), safe)).reshape(-1)
    scaled[tail:] = divided(blocks, safe).reshape(-1)[tail:]
    if tail < values.size:
        amax[-1] = safe[-1]
    return np.clip(scaled, F32(-1), F32(1))[: values.size], amax.reshape(-1)


# bitsandbytes 0.50.2, backends/default/ops.py (quantize_4bit): x * f32(1 / amax) over runs in row-major order; the
# level is how many of the midpoints f32((a + b) / 2) of neighbouring levels lie below; the even element is the high
# nibble. amax is kept.
def bitsandbytes_four_bits(x, case, size, kind):
    scaled, amax = scaled_by_amax(x.values, size)
    levels = FOUR_BIT_LEVELS[kind]
    order = np.argsort(levels, kind="stable")
    middles = ((levels[order][:-1] + levels[order][1:]) / F32(2)).astype(F32)
    codes = order[np.searchsorted(middles, scaled, side="left")].astype(np.uint8)
    packed = nibbles(codes, low_first=False).reshape(-1, 1)
    return dict(codes=("U8", packed), scale=("F32", amax), table=("F32", levels))


# bitsandbytes 0.50.2, backends/default/ops.py (int8_vectorwise_quant): values of at least the threshold, if there is
# one, count as 0, and their columns' codes are 0; codes = round(f32(x * f32(127 * f32(1 / amax)))); amax is kept.
def bitsandbytes_int8(x, case, threshold):
    values = x.values
    outliers = np.abs(values) >= threshold if threshold else np.zeros(values.shape, bool)
    values = np.where(outliers, F32(0), values)
    amax = np.abs(values).max(axis=1, keepdims=True)
    codes = np.rint(times(values, number_over(127, amax))).astype(np.int8)
    codes[:, outliers.any(axis=0)] = 0
    return dict(codes=("I8", codes), scale=("F32", amax.reshape(-1)))


# torch 2.11: number / tensor is t(number * t(1 / tensor)); x * scale and the cast of it, saturated here by clamp.
def torch_number_over_amax(x, case, element, in_f32):
    t = "f32" if in_f32 else x.dtype
    blocks = Blocks(x.values.shape, case["block"])
    scale = number_over(largest(element), blocks.amax(x.values), t)
    codes = encode(clamped(times(x.values, blocks.spread(scale), t), element), element)
    return dict(codes=eight_bits(codes, element), scale=stored(scale, t))


# torch 2.11, Tensor.to of an FP8 dtype: nearest even, not saturated. What lies beyond the largest value becomes NaN,
# in E5M2 infinity; a NaN has all bits set under its sign; an FNUZ format has one NaN and no signed zero.
def torch_cast(x, case, element):
    ladder = magnitudes(element)
    size = np.abs(x.values).astype(np.float64)
    limit = ladder[-1] + (ladder[-1] - ladder[-2]) / 2  # A tie goes to the even code.
    with np.errstate(**QUIET):
        beyond = size > limit if len(ladder) % 2 else size >= limit
    sign = np.where(np.signbit(x.values), 0x80, 0).astype(np.uint8)
    codes = encode(np.where(np.isnan(x.values), F32(0), clamped(x.values, element)), element)
    outside = {"e4m3": 0x7F | sign, "e5m2": 0x7C | sign}.get(element, np.full(sign.shape, 0x80, np.uint8))
    codes = np.where(beyond, outside, codes)
    codes = np.where(np.isnan(x.values), 0x80 if element.endswith("fnuz") else 0x7F | sign, codes)
    return dict(codes=eight_bits(codes.astype(np.uint8), element))


# torch 2.11, ao/quantization/observer.py and quantize_per_tensor, quantize_per_channel: symmetric: scale = max(-min,
# max) / ((high - low) / 2), zero point 0; affine: scale = (max - min) / (high - low), zero point low - round(min /
# scale); scale at least 2^-23. codes = clamp(round(x * (1 / scale)) + zero point).
def torch_affine(x, case, low, high):
    blocks = Blocks(x.values.shape, case["block"])
    least = np.minimum(blocks.reduce(np.min, x.values), F32(0))
    most = np.maximum(blocks.reduce(np.max, x.values), F32(0))
    if low < 0:
        scale = np.maximum(divided(np.maximum(-least, most), F32((high - low) / 2)), F32(2.0**-23))
        zero = np.zeros(scale.shape, F32)
    else:
        scale = np.maximum(divided((most - least).astype(F32), F32(high - low)), F32(2.0**-23))
        zero = np.clip(F32(low) - np.rint(divided(least, scale)), low, high)
    steps = np.rint(times(x.values, blocks.spread(divided(F32(1), scale))))
    codes = np.clip(steps + blocks.spread(zero), low, high)
    kind = ("U8", codes.astype(np.uint8)) if low == 0 else ("I8", codes.astype(np.int8))
    return dict(codes=kind, scale=("F32", scale), zero_point=("I32", zero.astype(np.int32)))


def flushed(values, dtype):
    """Subnormal results of fp32 operations are zeros of their sign, as JAX's CPU backend has it; f16 has subnormals."""
    values = round_to(values, dtype)
    return np.where(np.abs(values) < TINY["f32"], np.copysign(F32(0), values), values)


def natural_log_ratio(values, dtype):
    """JAX's log2: t(t(ln x) / t(ln 2))."""
    with np.errstate(**QUIET):
        logarithm = round_to(np.log(values.astype(np.float64)).astype(F32), dtype)
    return divided(logarithm, round_to(F32(np.log(2)), dtype), dtype)


def jax_over(values, others, dtype, is_broadcast):
    """JAX's array / array on its CPU backend. By one that is broadcast XLA divides as a product with its reciprocal: in
    f16 both rounded to f16, else both in fp32, which bf16 cannot tell from a division. Arrays of one shape are
    divided."""
    if not is_broadcast:
        return divided(values, others, dtype)
    width = "f16" if dtype == "f16" else "f32"
    return times(values, divided(F32(1), others, width), dtype)


QWIX_BOUNDS = {"mxfp8": 448.0, "mxfp4": 6.0, "nvfp4": 6.0, "nf4": 1.0, "int8": 127.5, "int4": 7.5}
QWIX_ELEMENTS = {"mxfp8": "e4m3", "mxfp4": "e2m1", "nvfp4": "e2m1"}


# qwix 0.1.8, _src/core/qarray.py (calibrate, compute_scale_zero_point, quantize_with_scale_zero_point) and
# numerics.py, on JAX's CPU backend, where subnormals are zeros; quotients are those of jax_over. absmax: scale =
# t(amax / bound), bound 448, 57344, 6, 127.5, 7.5 or, of NF4, 1; minmax: t(t(max - min) / (high - low)), 0 among min
# and max. A scale below the root of the smallest normal of t (2^-63, in f16 2^-7) is 1. mxfp8, mxfp4: 2^ceil(t(t(ln
# scale) / t(ln 2))); nvfp4: t(e4m3(scale)), which may be 0. codes of t(x / scale), plus the zero point round(t(low -
# t(min / scale))); integers saturate; nf4 takes the level with the least f32(|level - quotient|).
def qwix(x, case, kind, method):
    t = x.dtype
    values = flushed(x.values, "f32")
    blocks = Blocks(values.shape, case["block"])
    element = QWIX_ELEMENTS.get(kind, kind)
    least_scale = F32(2.0**-7) if t == "f16" else F32(2.0**-63)
    bound = F32(QWIX_BOUNDS.get(kind) or largest(element))
    made = {}
    if method == "minmax":
        low, high = (F32(-128), F32(127)) if kind == "int8" else (F32(-8), F32(7))
        least = np.minimum(blocks.reduce(np.min, values), F32(0))
        most = np.maximum(blocks.reduce(np.max, values), F32(0))
        scale = jax_over(round_to(most - least, t), high - low, t, not blocks.whole)
    else:
        scale = jax_over(blocks.amax(values), bound, t, not blocks.whole)
    scale = np.where(scale < least_scale, F32(1), scale)
    if kind.startswith("mx"):
        scale = round_to(power_of_two(np.ceil(natural_log_ratio(scale, t))), t)
    elif kind == "nvfp4":
        scale = decode(encode(clamped(scale, "e4m3"), "e4m3"), "e4m3")
    quotient = flushed(jax_over(values, blocks.spread(scale), t, True), t)
    if method == "minmax":
        zero = np.clip(np.rint(round_to(low - jax_over(least, scale, t, False), t)), low, high)
        quotient = round_to(quotient + blocks.spread(zero), t)
        made["zero_point"] = "I8", zero.astype(np.int8)
    if kind == "nf4":
        codes = "U8", np.argmin(np.abs(FOUR_BIT_LEVELS["nf4"] - quotient[..., None]), axis=-1).astype(np.uint8)
    elif kind in ("int8", "int4"):
        bound = 128 if kind == "int8" else 8
        codes = "I8", np.clip(np.rint(quotient), -bound, bound - 1).astype(np.int8)
    else:
        nan = 0x08 if element == "e2m1" else None  # 0 / 0, under a scale of 0.
        codes = FP8.get(element, "U8"), encode(clamped(quotient, element), element, nan=nan)
    return dict(made, codes=codes, scale=stored(scale, t))


def f16_bytes(values):
    """The two bytes of each value rounded to f16, along a new last dim."""
    with np.errstate(**QUIET):
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8).reshape(*values.shape[:-1], -1)


def ggml_blocks(x, size):
    return x.values.reshape(-1, size)


def reciprocal_or_zero(scale):
    return np.where(scale == 0, F32(0), divided(F32(1), scale)).astype(F32)


def halves(codes):
    """Element i in the low and element i + 16 in the high nibble of a byte."""
    return (codes[:, :16] & 15) | (codes[:, 16:] & 15) << 4


def as_ggml(x, blocks):
    return dict(codes=("U8", blocks.astype(np.uint8).reshape(*x.values.shape[:-1], -1)))


def round_half_away(values):
    size = np.abs(values)
    return np.copysign(np.floor(size.astype(np.float64) + 0.5), values)


# gguf 0.19, quants.py (Q8_0): d = f32(amax / 127), kept as f16; codes = round(f32(x * f32(1 / d))) with d in fp32,
# half away from zero.
def gguf_q8_0(x, case):
    blocks = ggml_blocks(x, 32)
    d = divided(np.abs(blocks).max(axis=1, keepdims=True), F32(127))
    codes = round_half_away(times(blocks, reciprocal_or_zero(d))).astype(np.int8).view(np.uint8)
    return as_ggml(x, np.concatenate([f16_bytes(d), codes], axis=1))


def ggml_symmetric(x, levels):
    """Q4_0, Q5_0: d = f32(m / -(levels / 2)), m the first value of the largest magnitude; codes = floor(f32(f32(x *
    f32(1 / d)) + levels / 2 + 0.5)), at most levels - 1."""
    blocks = ggml_blocks(x, 32)
    first = np.abs(blocks).argmax(axis=1)[:, None]
    d = divided(np.take_along_axis(blocks, first, axis=1), F32(-levels / 2))
    codes = np.trunc(times(blocks, reciprocal_or_zero(d)) + F32(levels / 2 + 0.5))
    return d, np.clip(codes, 0, levels - 1).astype(np.uint8)


def ggml_affine(x, levels):
    """Q4_1, Q5_1: d = f32(f32(max - min) / (levels - 1)); codes = floor(f32(f32(f32(x - min) * f32(1 / d)) + 0.5))."""
    blocks = ggml_blocks(x, 32)
    least, most = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    d = divided((most - least).astype(F32), F32(levels - 1))
    codes = np.trunc(times((blocks - least).astype(F32), reciprocal_or_zero(d)) + F32(0.5))
    return d, least, np.clip(codes, 0, levels - 1).astype(np.uint8)


def fifth_bits(codes):
    """Bit i of 32 is the fifth of element i."""
    fifth = (codes.astype(np.uint32) >> 4) << np.arange(32, dtype=np.uint32)
    return fifth.sum(axis=1, dtype=np.uint32)[:, None].view(np.uint8)


# gguf 0.19, quants.py (Q4_0, Q4_1, Q5_0, Q5_1): above; d and min are kept as f16.
def gguf_q4_0(x, case):
    d, codes = ggml_symmetric(x, 16)
    return as_ggml(x, np.concatenate([f16_bytes(d), halves(codes)], axis=1))


def gguf_q4_1(x, case):
    d, least, codes = ggml_affine(x, 16)
    return as_ggml(x, np.concatenate([f16_bytes(d), f16_bytes(least), halves(codes)], axis=1))


def gguf_q5_0(x, case):
    d, codes = ggml_symmetric(x, 32)
    return as_ggml(x, np.concatenate([f16_bytes(d), fifth_bits(codes), halves(codes)], axis=1))


def gguf_q5_1(x, case):
    d, least, codes = ggml_affine(x, 32)
    return as_ggml(x, np.concatenate([f16_bytes(d), f16_bytes(least), fifth_bits(codes), halves(codes)], axis=1))


# gguf 0.19, quants.py (MXFP4): exponent = floor(log2(amax)) - 2, that log2 in fp32; the nearest of the sixteen values
# of x / 2^exponent, of equal distances the first: toward zero; zeros and what becomes zero are +0. It saturates at 6.
def gguf_mxfp4(x, case):
    blocks = ggml_blocks(x, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    exponent = np.where(amax > 0, np.floor(log2_f32(amax)) - 2, F32(-127))
    quotient = divided(blocks, power_of_two(exponent))
    codes = magnitude_codes(quotient, "e2m1", "zero")
    codes = codes | np.where((quotient < 0) & (codes > 0), 8, 0).astype(np.uint8)
    return as_ggml(x, np.concatenate([(exponent + 127).astype(np.uint8), halves(codes)], axis=1))


# gguf 0.19, quants.py (TQ2_0): d = amax of 256, kept as f16; codes = round(f32(x * f32(1 / d))) + 1, half away from
# zero; byte j of each 128 elements has elements j, j + 32, j + 64 and j + 96, the first lowest.
def gguf_tq2_0(x, case):
    blocks = ggml_blocks(x, 256)
    d = np.abs(blocks).max(axis=1, keepdims=True)
    codes = (round_half_away(times(blocks, reciprocal_or_zero(d))) + 1).astype(np.uint8).reshape(-1, 2, 4, 32)
    packed = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
    return as_ggml(x, np.concatenate([packed.reshape(-1, 64), f16_bytes(d)], axis=1))


def rounded_by(values, element, mode):
    """Codes in one of three modes: nearest with ties to even or away from zero, or toward zero; saturated."""
    if mode != "zero":
        return encode(values, element, mode)
    size = np.searchsorted(magnitudes(element), np.abs(values).astype(np.float64), side="right") - 1
    return size.astype(np.uint8) | np.where(np.signbit(values), sign_bit(element), 0).astype(np.uint8)


# gfloat 0.5.2, block.py (compute_scale_amax, encode_block): exponent = floor(log2(amax)) - floor(log2(max)) within
# +-127, of zeros -127; codes of x / 2^exponent in binary64, saturated; MXINT8: 64ths, nearest even, two's complement,
# exponent of the amax itself.
def gfloat_mx(x, case, element, rows, mode):
    values = x.values.reshape(-1, x.values.shape[-1])[:rows]
    blocks = Blocks(values.shape, "1x32")
    amax = blocks.amax(values).astype(np.float64)
    emax = 0 if element == "int8" else MX_EXPONENT[element]
    exponent = np.where(amax > 0, np.frexp(np.where(amax > 0, amax, 1))[1] - 1 - emax, -127)
    exponent = np.clip(exponent, -127, 127)
    scaled = values.astype(np.float64) * np.exp2(-blocks.spread(exponent).astype(np.float64))
    if element == "int8":
        codes = np.clip(np.rint(scaled * 64), -128, 127).astype(np.int8).view(np.uint8)
    else:
        codes = rounded_by(scaled, element, mode)
    return dict(codes=("U8", codes), scale=("F8_E8M0", (exponent + 127).astype(np.uint8)))


# gfloat 0.5.2, round_ndarray.py, encode_ndarray.py: a cast, saturated, in three modes.
def gfloat_cast(x, case, element, mode):
    return dict(codes=("U8", rounded_by(x.values, element, mode)))


# vLLM, tests/kernels/quantization/test_nvfp4_quant.py (ref_nvfp4_quant, commit 07b13497), which its kernels are held
# to: gs = f32(2688 * f32(1 / A)); s8 = e4m3(f32(gs * f32(amax_b * f32(1 / 6)))); r = f32(1 / f32(s8 * f32(1 / gs))),
# 0 where s8 is 0; codes of f32(x * r), nearest even; a zero is +0. No stored case: vLLM has no such call on a CPU.
def vllm_nvfp4(x, case):
    blocks = Blocks(x.values.shape, "1x16")
    tensor_scale = number_over(2688, np.abs(x.values).max())
    code = encode(times(tensor_scale, times(blocks.amax(x.values), F32(1 / 6))), "e4m3")
    step = times(decode(code, "e4m3"), divided(F32(1), tensor_scale))
    factor = np.where(code == 0, F32(0), divided(F32(1), step))
    scaled = times(x.values, blocks.spread(factor)) + F32(0)
    return dict(codes=("U8", nibbles(encode(clamped(scaled, "e2m1"), "e2m1"))), scale=("F8_E4M3", code),
                tensor_scale=("F32", np.asarray(tensor_scale, F32)))


WITHOUT_CASES = ("vllm_nvfp4",)
