"""An independent fp8_current quantizer in numpy and ml_dtypes, and the vectors made with it.

Written from the specification of per-tensor current scaling alone; nothing is shared with the C++ code. Writes
tests/data/fp8_current_vectors.txt. Run by hand from the repository root: python3 tests/vectors/fp8_current_reference.py
"""

import hashlib
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

F32 = np.float32
FORMATS = {"f8_e4m3": (ml_dtypes.float8_e4m3fn, F32(448)), "f8_e5m2": (ml_dtypes.float8_e5m2, F32(57344))}
SOURCES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def compute_scale(amax, max_fp8, rule, pow2, eps):
    if amax < eps:
        amax = eps
    if np.isinf(amax) or amax == 0 or np.isnan(amax):
        return F32(1)
    with np.errstate(over="ignore", divide="ignore"):
        scale = F32(max_fp8 / amax) if rule == "divide" else F32(F32(1) / F32(amax * F32(F32(1) / max_fp8)))
    if np.isinf(scale):
        scale = np.finfo(F32).max
    if pow2:
        scale = (np.array([scale], F32).view(np.uint32) & np.uint32(0xFF800000)).view(F32)[0]
    return scale


def round_half_away(values, dtype, max_fp8):
    """Codes of finite values, ties away from zero, by exact search among the format's values."""
    magnitudes = np.arange(0, 0x7F, dtype=np.uint8).view(dtype).astype(np.float64)
    magnitudes = magnitudes[np.isfinite(magnitudes)]
    # The value one step beyond the maximum, where clamping or NaN begins.
    ladder = np.append(magnitudes, 2 * magnitudes[-1] - magnitudes[-2])
    middles = (ladder[1:] + ladder[:-1]) / 2
    return np.searchsorted(middles, np.abs(values.astype(np.float64)), side="right")


def quantize(x, element, rule, pow2, eps, rounding, overflow):
    """Codes (canonical NaN), scale, scale_inv, amax of a tensor of any shape."""
    dtype, max_fp8 = FORMATS[element]
    wide = x.astype(F32)
    numbers = np.abs(wide[~np.isnan(wide)])
    amax = F32(numbers.max()) if numbers.size else F32(0)
    scale = compute_scale(amax, max_fp8, rule, pow2, F32(eps)) if x.size else F32(1)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (wide * scale).astype(F32)
    nan = np.isnan(scaled)
    safe = np.where(nan, F32(0), scaled)
    sign = (np.signbit(safe) * 0x80).astype(np.uint8)
    max_code = np.array([max_fp8]).astype(dtype).view(np.uint8)[0]
    if rounding == "nearest_even":
        with np.errstate(over="ignore"):
            free = np.abs(safe).astype(dtype)  # ml_dtypes goes to NaN (E4M3) or infinity (E5M2) beyond the maximum.
        magnitude = free.view(np.uint8).copy()
        beyond = ~np.isfinite(free.astype(F32))
    else:
        magnitude = round_half_away(np.where(np.isinf(safe), F32(0), safe), dtype, max_fp8)
        beyond = (magnitude > max_code) | np.isinf(safe)
    if overflow == "saturate":
        magnitude = np.where(beyond, max_code, magnitude)
        codes = magnitude.astype(np.uint8) | sign
    elif element == "f8_e4m3":
        codes = np.where(beyond, 0x7F, magnitude.astype(np.uint8) | sign)
    else:
        codes = np.where(beyond, 0x7C, magnitude).astype(np.uint8) | sign
    codes = np.where(nan, 0x7F, codes).astype(np.uint8)
    scale_inv = F32(1) / scale
    code_magnitude = codes & 0x7F
    is_inf, is_nan, is_zero = np.isinf(wide), np.isnan(wide), wide == 0
    min_normal = 0x08 if element == "f8_e4m3" else 0x04
    rest = ~(is_inf | is_nan | is_zero)
    saturated = rest & beyond
    flushed = rest & (code_magnitude == 0)
    subnormal = rest & (code_magnitude != 0) & (code_magnitude < min_normal)
    normal = rest & ~saturated & ~flushed & ~subnormal
    counts = [int(c.sum()) for c in (normal, is_zero, subnormal, flushed, saturated, is_inf, is_nan)]
    return codes, scale, scale_inv, amax, counts


def dequantize(codes, element, scale_inv, out):
    wide = codes.view(FORMATS[element][0]).astype(F32) * scale_inv
    rounded = wide.astype(SOURCES[out])
    if out == "f32":
        return np.where(np.isnan(rounded), np.uint32(0x7FFFFFFF), rounded.view(np.uint32)).astype(np.uint32)
    return np.where(np.isnan(rounded.astype(F32)), np.uint16(0x7FFF), rounded.view(np.uint16)).astype(np.uint16)


def hex32(value):
    return f"{np.array([value], F32).view(np.uint32)[0]:08x}"


def adversarial(rng):
    """Name -> f32 values, all of them exact in bf16 and f16 unless the name says so."""
    inf, nan = np.inf, np.nan
    values = {
        "zeros": np.zeros((3, 5)),
        "negative_zeros": -np.zeros((3, 5)),
        "one": np.array([[1.0]]),
        "ones": np.ones((17, 33)),
        "with_inf": np.array([[1.0, -2.5, inf], [0.0, -0.0, 300.0], [-inf, 1e-3, 6e4]]),
        "with_nan": np.array([[nan, 1.0], [-3.0, 0.25], [-nan, 0.0]]),
        "only_nan": np.full((2, 3), nan),
        "only_inf": np.full((2, 3), -inf),
        "one_huge": np.concatenate([np.full((1, 40), 2.0**-6), np.array([[6e4]])], axis=1),
        "ties": (np.arange(-200, 200).reshape(8, 50) / 8.0),
        "vector": np.linspace(-2, 2, 131),
        "three_dims": rng.standard_normal((2, 3, 67)),
        "tall": rng.standard_normal((130, 3)),
        "wide": rng.standard_normal((3, 130)),
        "odd": rng.standard_normal((61, 77)) * np.exp2(rng.integers(-12, 12, (61, 77))),
    }
    for exponent in (-14, -8, 0, 7, 15):
        values[f"amax_2^{exponent}"] = np.linspace(-1, 1, 65).reshape(5, 13) * 2.0**exponent
    return {name: v.astype(F32) for name, v in values.items()}


def adversarial_f32():
    tiny = np.float32(2.0**-149)
    return {
        "amax_min_subnormal": np.array([[tiny, 0, -tiny]], F32),
        "amax_subnormal": (np.arange(-50, 50) * 2.0**-149).astype(F32).reshape(10, 10),
        "amax_2^-126": (np.linspace(-1, 1, 33) * 2.0**-126).astype(F32).reshape(3, 11),
        "scale_overflows": (np.linspace(-1, 1, 33) * 2.0**-120).astype(F32).reshape(11, 3),
        "amax_flt_max": np.array([[np.finfo(F32).max, 1.0, -np.finfo(F32).max]], F32),
        "amax_2^127": np.array([[2.0**127, 2.0**100, -3.0]], F32),
        "below_448": np.nextafter(np.full((2, 2), 448, F32), F32(0)),
    }


def knob_sets():
    base = dict(rule="divide", pow2=False, eps=0.0, rounding="nearest_even", overflow="saturate")
    yield base
    for change in (dict(pow2=True), dict(eps=0.5), dict(eps=1e-30), dict(rule="reciprocal"), dict(rounding="nearest_away"),
                   dict(overflow="nan"), dict(rounding="nearest_away", overflow="nan"),
                   dict(rule="reciprocal", pow2=True, eps=3.0)):
        yield {**base, **change}


def digest(*arrays):
    """The first 128 bits of SHA-256 over the arrays' bytes, one after another."""
    joined = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.sha256(joined).hexdigest()[:32]


def write_tensor(out, name, source, x):
    shape = "x".join(str(d) for d in x.shape)
    out.write(f"tensor {name} {source} {shape} {x.tobytes().hex()}\n")


def write_case(out, name, source, x, element, knobs):
    codes, scale, scale_inv, amax, counts = quantize(x, element, **knobs)
    matrix = codes.reshape(-1, codes.shape[-1]) if codes.ndim > 1 else codes.reshape(1, -1)
    with np.errstate(over="ignore"):
        values = [dequantize(codes, element, scale_inv, dtype) for dtype in ("bf16", "f16", "f32")]
    out.write(
        f"case {name} {source} {element} {knobs['rule']} {int(knobs['pow2'])} {hex32(knobs['eps'])} "
        f"{knobs['rounding']} {knobs['overflow']} {hex32(amax)} {hex32(scale)} {hex32(scale_inv)} {digest(codes)} "
        f"{digest(matrix.T)} {digest(*values)} {','.join(map(str, counts))} "
        f"{codes.tobytes().hex() if codes.size <= 15 else '-'}\n")


def tensors():
    """(name, source, values, whether the values go into the file)"""
    real = load_file("data/bytegpt_block1.safetensors")
    for name in ("fc1.x", "fc1.weight", "fc1.dy", "ln2.x", "ln2.dy"):
        for source in SOURCES:
            yield name, source, real[name].astype(F32).astype(SOURCES[source]), False
    for name, x in adversarial(np.random.default_rng(7)).items():
        for source in ("bf16", "f16") if x.size > 200 else SOURCES:
            with np.errstate(over="ignore"):
                yield name, source, x.astype(SOURCES[source]), True
    for name, x in adversarial_f32().items():
        yield name, "f32", x, True


def main():
    path = pathlib.Path("tests/data/fp8_current_vectors.txt")
    with path.open("w") as out:
        out.write(
            f"# fp8_current by an independent implementation (tests/vectors/fp8_current_reference.py, numpy "
            f"{np.__version__}, ml_dtypes {ml_dtypes.__version__})\n"
            "# tensor NAME SOURCE SHAPE BYTES; tensors without such a line are those of data/bytegpt_block1.safetensors, "
            "cast to SOURCE\n"
            "# case NAME SOURCE ELEMENT RULE POW2 EPS ROUNDING OVERFLOW AMAX SCALE SCALE_INV DIGEST(codes) "
            "DIGEST(transposed codes) DIGEST(dequantized bf16, f16, f32) COUNTS CODES|-\n"
            "# COUNTS: normal,zero,subnormal,flushed_to_zero,saturated,infinite,nan; DIGEST: 128 bits of SHA-256\n")
        cases = 0
        for name, source, x, is_kept in tensors():
            if is_kept:
                write_tensor(out, name, source, x)
            for element in FORMATS:
                for knobs in knob_sets():
                    write_case(out, name, source, x, element, knobs)
                    cases += 1
        print(cases, "cases", out.tell(), "bytes")


if __name__ == "__main__":
    main()
