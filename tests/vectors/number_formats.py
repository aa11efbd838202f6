"""Number formats, scale rules, random bits and tensors for the independent quantizers beside this file.

Written from the specification of the formats (OCP FP8 and Microscaling, Transformer Engine's rules) and from ml_dtypes;
nothing is shared with the C++ code.
"""

import hashlib

import ml_dtypes
import numpy as np

F32 = np.float32
FLT_MAX = np.finfo(np.float32).max
SOURCES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
# Largest finite value of a source type: 0x1.FEp127, 65504, FLT_MAX.
SOURCE_MAX = {"bf16": F32(float.fromhex("0x1.FEp127")), "f16": F32(65504), "f32": FLT_MAX}
ELEMENTS = {
    "f8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0),
    "f8_e5m2": (ml_dtypes.float8_e5m2, 57344.0),
    "f6_e2m3": (ml_dtypes.float6_e2m3fn, 7.5),
    "f6_e3m2": (ml_dtypes.float6_e3m2fn, 28.0),
    "f4_e2m1": (ml_dtypes.float4_e2m1fn, 6.0),
}


def bits_of(values):
    return np.ascontiguousarray(values, F32).view(np.uint32)


def floats_of(bits):
    return np.ascontiguousarray(bits, np.uint32).view(F32)


def magnitudes(element):
    """Finite magnitudes of a format in code order, in binary64."""
    dtype, _ = ELEMENTS[element]
    count = {"f8_e4m3": 0x7F, "f8_e5m2": 0x7C, "f6_e2m3": 32, "f6_e3m2": 32, "f4_e2m1": 8}[element]
    return np.arange(count, dtype=np.uint8).view(dtype).astype(np.float64)


def cast(values, element, rounding="nearest_even", overflow="saturate"):
    """Codes of f32 values. NaN is canonical: 0x7F, and the largest positive code where a format has no NaN."""
    dtype, max_finite = ELEMENTS[element]
    values = np.asarray(values, F32)
    nan = np.isnan(values)
    safe = np.where(nan, F32(0), values)
    ladder = magnitudes(element)
    max_code = len(ladder) - 1
    sign_bit = {"f8": 0x80, "f6": 0x20, "f4": 0x08}[element[:2]]
    with np.errstate(over="ignore"):
        if rounding == "nearest_even":
            # Beyond the last midpoint everything is clamped, so ml_dtypes sees what it rounds as the formats say.
            last_step = ladder[-1] - ladder[-2]
            limit = ladder[-1] + last_step / 2
            size = np.abs(safe).astype(np.float64)
            # Half a step beyond the maximum is a tie: the maximum's code is even in E4M3 alone (0x7E).
            beyond = size > limit if max_code % 2 == 0 else size >= limit
            clamped = np.minimum(size, max_finite).astype(F32)
            codes = clamped.astype(dtype).view(np.uint8).astype(np.uint8)
        else:
            steps = np.append(ladder, 2 * ladder[-1] - ladder[-2])
            middles = (steps[1:] + steps[:-1]) / 2
            codes = np.searchsorted(middles, np.abs(safe).astype(np.float64), side="right")
            beyond = codes > max_code
    codes = np.where(beyond, max_code, codes).astype(np.uint8)
    sign = np.where(np.signbit(safe), sign_bit, 0).astype(np.uint8)
    if overflow == "nan" and element == "f8_e4m3":
        codes = np.where(beyond, 0x7F, codes | sign)
    elif overflow == "nan" and element == "f8_e5m2":
        codes = np.where(beyond, 0x7C, codes) | sign
    else:
        codes = codes | sign
    canonical = 0x7F if element.startswith("f8") else max_code
    return np.where(nan, canonical, codes).astype(np.uint8)


def decode(codes, element):
    return np.asarray(codes, np.uint8).view(ELEMENTS[element][0]).astype(F32)


def amax_of(blocks, axis):
    """max |x| along `axis`; NaN elements are ignored."""
    sizes = np.abs(np.asarray(blocks).astype(F32))
    return np.where(np.isnan(sizes), F32(0), sizes).max(axis=axis, initial=F32(0)).astype(F32)


def compute_scale(amax, max_finite, power_2, epsilon, value_for_infinity, rule="divide"):
    """The fp32 factor of a block, for an array of amaxes."""
    amax = np.asarray(amax, F32)
    amax = np.where(amax < F32(epsilon), F32(epsilon), amax).astype(F32)
    special = np.isinf(amax) | (amax == 0) | np.isnan(amax)
    safe = np.where(special, F32(1), amax).astype(F32)
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        if rule == "divide":
            scale = F32(max_finite) / safe
        else:
            scale = F32(1) / (safe * (F32(1) / F32(max_finite)))
    scale = np.where(np.isinf(scale), value_for_infinity, scale).astype(F32)
    if power_2:
        scale = floats_of(bits_of(scale) & np.uint32(0xFF800000))
    return np.where(special, F32(1), scale).astype(F32)


def e8m0_round_up(value):
    """float_to_e8m0: toward plus infinity, saturating at 0xFE."""
    bits = bits_of(value)
    exponent, mantissa = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    bump = (mantissa > 0) & (exponent != 0xFE) & ~((exponent == 0) & (mantissa <= 0x400000))
    code = exponent + bump
    code = np.where(np.isinf(value), 0xFE, code)
    return np.where(np.isnan(value), 0xFF, code).astype(np.uint8)


def frexp_of(amax):
    """(k, m) with amax = m * 2^(k - 23), m a 24-bit integer with its top bit set; exact, subnormals too."""
    fraction, exponent = np.frexp(np.asarray(amax, np.float64))
    return exponent - 1, (fraction * 2.0**24).astype(np.int64)


def e8m0_of(blocks, element, rule):
    """The E8M0 codes of blocks along the last axis. A NaN element makes its block NaN but for round_up, as does an infinity."""
    amax = amax_of(blocks, axis=-1)
    max_finite = F32(ELEMENTS[element][1])
    if rule == "round_up":
        with np.errstate(over="ignore", under="ignore"):
            return e8m0_round_up(amax * (F32(1) / max_finite))
    finite = np.isfinite(amax) & (amax > 0)
    k, m = frexp_of(np.where(finite, amax, F32(1)))
    mantissa_bits = {"f8_e4m3": 3, "f8_e5m2": 2, "f6_e2m3": 3, "f6_e3m2": 2, "f4_e2m1": 1}[element]
    element_exponent = {"f8_e4m3": 8, "f8_e5m2": 15, "f6_e2m3": 2, "f6_e3m2": 4, "f4_e2m1": 2}[element]
    power = 1 << 23
    if rule == "floor":
        up = np.zeros_like(m)
    elif rule == "ceil":
        up = (m > power).astype(np.int64)
    elif rule == "even":  # The amax as the element format would round it, were its exponent unbounded.
        up = (m + (1 << (23 - mantissa_bits - 1)) >= 2 * power).astype(np.int64)
    else:  # nearest in log2: m / 2^23 >= sqrt(2).
        up = (m * m >= 2 * power * power).astype(np.int64)
    code = np.clip(k + up - element_exponent + 127, 0, 254)
    code = np.where(amax == 0, 0, code)
    past_binary32 = (rule == "even") & ((k + up) > 127)  # The rounded amax is 2^128.
    is_nan = np.isinf(amax) | np.isnan(blocks.astype(F32)).any(axis=-1) | past_binary32
    return np.where(is_nan, 0xFF, code).astype(np.uint8)


def e8m0_reciprocal(code):
    """2^(127 - code) as f32: 254 gives the subnormal 2^-127, 255 a NaN."""
    return np.where(code == 255, F32(np.nan), np.ldexp(F32(1), 127 - code.astype(np.int32))).astype(F32)


def e8m0_value(code):
    return np.where(code == 255, F32(np.nan), np.ldexp(F32(1), code.astype(np.int32) - 127)).astype(F32)


def philox4x32_10(counter, key):
    """Salmon et al., SC 2011. counter: (..., 4) uint32, key: two uint32."""
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & mask, (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return np.stack(c, axis=-1).astype(np.uint32)


def to_output(values, name):
    """RNE to an output type, NaN canonical, as integers of its width."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(values, F32).astype(SOURCES[name])
    nan = np.isnan(rounded.astype(F32))
    if name == "f32":
        return np.where(nan, np.uint32(0x7FFFFFFF), rounded.view(np.uint32)).astype("<u4")
    return np.where(nan, np.uint16(0x7FFF), rounded.view(np.uint16)).astype("<u2")


def digest(*arrays):
    """The first 64 bits of SHA-256 over the arrays' bytes, one after another."""
    joined = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.sha256(joined).hexdigest()[:16]


def hex_of(array):
    """Little-endian bytes."""
    return np.ascontiguousarray(array).tobytes().hex()
