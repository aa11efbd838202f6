"""Number formats in numpy alone: rounding to bf16 and f16, codes of 8, 6 and 4 bits. Values are held as float32."""

import numpy as np

F32 = np.float32
QUIET = dict(over="ignore", under="ignore", invalid="ignore", divide="ignore")

# Name: exponent bits, mantissa bits, bias, number of codes of finite magnitudes, code of NaN (None: there is none).
ELEMENTS = {
    "e4m3": (4, 3, 7, 0x7F, 0x7F),
    "e5m2": (5, 2, 15, 0x7C, 0x7E),
    "e4m3fnuz": (4, 3, 8, 0x80, 0x80),
    "e5m2fnuz": (5, 2, 16, 0x80, 0x80),
    "e2m3": (2, 3, 1, 32, None),
    "e3m2": (3, 2, 3, 32, None),
    "e2m1": (2, 1, 1, 8, None),
}


def magnitudes(element):
    """Finite magnitudes in the order of their codes, in binary64, where all are exact."""
    _, mantissa_bits, bias, count, _ = ELEMENTS[element]
    codes = np.arange(count)
    field, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    normal = (1 + mantissa / 2.0**mantissa_bits) * np.exp2(np.maximum(field, 1) - float(bias))
    subnormal = mantissa / 2.0**mantissa_bits * 2.0 ** (1 - bias)
    return np.where(field > 0, normal, subnormal)


def largest(element):
    return F32(magnitudes(element)[-1])


def sign_bit(element):
    exponent_bits, mantissa_bits = ELEMENTS[element][:2]
    return 1 << (exponent_bits + mantissa_bits)


def magnitude_codes(values, element, ties="even"):
    """Codes of |values| rounded to nearest and saturated; ties to even, or toward zero, or away from it."""
    ladder = magnitudes(element)
    middles = (ladder[1:] + ladder[:-1]) / 2
    size = np.abs(np.asarray(values, F32)).astype(np.float64)
    below = np.searchsorted(middles, size, side="left")  # How many midpoints lie strictly below.
    above = np.searchsorted(middles, size, side="right")  # Ties count as below.
    if ties == "zero":
        return below.astype(np.uint8)
    if ties == "away":
        return above.astype(np.uint8)
    return np.where((below != above) & (below % 2 == 1), above, below).astype(np.uint8)


def encode(values, element, ties="even", nan=None):
    """Codes with the sign of each value, of zeros too (an FNUZ format has one zero). NaN takes the code `nan`, or the
    format's own under the NaN's sign."""
    values = np.asarray(values, F32)
    is_nan = np.isnan(values)
    codes = magnitude_codes(np.where(is_nan, F32(0), values), element, ties)
    sign = np.where(np.signbit(values), sign_bit(element), 0).astype(np.uint8)
    if element.endswith("fnuz"):
        sign = np.where(codes == 0, 0, sign).astype(np.uint8)
    codes = codes | sign
    if not is_nan.any():
        return codes
    own = ELEMENTS[element][4] if nan is None else nan
    return np.where(is_nan, own | sign if nan is None else own, codes).astype(np.uint8)


def decode(codes, element):
    codes = np.asarray(codes, np.uint8)
    bit = sign_bit(element)
    size = np.append(magnitudes(element), np.nan)[np.minimum(codes & (bit - 1), ELEMENTS[element][3])]
    return np.where(codes & bit, -size, size).astype(F32)


def round_to(values, dtype):
    """Round to nearest even to f32, bf16 or f16; held as float32. Beyond the largest value: infinity."""
    values = np.asarray(values, F32)
    if dtype == "f32":
        return values
    with np.errstate(**QUIET):
        if dtype == "f16":
            return values.astype(np.float16).astype(F32)
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        kept = np.isnan(values)
        return np.where(kept, values, rounded.view(F32).reshape(values.shape)).astype(F32)


def bits_of(values):
    return np.ascontiguousarray(values, F32).view(np.uint32)


def stored(values, dtype):
    """(safetensors dtype, array of that width): values that f32, bf16 or f16 hold exactly."""
    values = np.ascontiguousarray(values, F32)
    if dtype == "bf16":
        return "BF16", (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if dtype == "f16":
        return "F16", values.astype(np.float16)
    return "F32", values


def log2_f32(values):
    """Binary logarithm rounded to fp32, by way of binary64, accurate enough wherever no tie of fp32 is near."""
    with np.errstate(**QUIET):
        return np.log2(np.asarray(values, F32).astype(np.float64)).astype(F32)


def power_of_two(exponent):
    """2^exponent in fp32, subnormals included."""
    return np.ldexp(1.0, np.asarray(exponent, np.int64)).astype(F32)


def nibbles(codes, low_first=True):
    """Two codes of four bits to a byte, along the last dim."""
    first, second = codes[..., 0::2].astype(np.uint8), codes[..., 1::2].astype(np.uint8)
    return (first | (second << 4) if low_first else (first << 4) | second).astype(np.uint8)
