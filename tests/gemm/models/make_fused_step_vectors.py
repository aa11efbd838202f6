#!/usr/bin/env python3
"""Writes fused_step_vectors.txt: fused steps computed from their definition with exact fractions.

Independent of the C++ code: values are fractions, exponents come from the definition of each
format, truncation is integer division of fractions. Run without arguments; the seed is fixed, so
the output is reproducible.

Line: format_a format_b align_bits out_mantissa c_hex result_hex a_hex,... b_hex,...
"""
import random
from fractions import Fraction
from pathlib import Path

# name: exponent bits, mantissa bits, bias, has infinities
FORMATS = {"f32": (8, 23, 127, True), "bf16": (8, 7, 127, True), "f16": (5, 10, 15, True),
           "e4m3": (4, 3, 7, False), "e5m2": (5, 2, 15, True)}
NAN = 0x7FFFFFFF
EXPONENT_FLOOR = -133  # Seen on an H200: the largest exponent of a step counts as at least this.


def decode(name, code):
    """('nan' | 'inf' | 'zero' | 'finite', negative, exponent, signed Fraction)."""
    exponent_bits, mantissa_bits, bias, has_inf = FORMATS[name]
    negative = bool(code >> (exponent_bits + mantissa_bits))
    field = (code >> mantissa_bits) % (1 << exponent_bits)
    mantissa = code % (1 << mantissa_bits)
    all_ones = field == (1 << exponent_bits) - 1
    if all_ones and has_inf:
        return ("nan" if mantissa else "inf"), negative, 0, None
    if all_ones and mantissa == (1 << mantissa_bits) - 1:
        return "nan", negative, 0, None
    exponent = max(field, 1) - bias
    significand = Fraction(mantissa + ((1 << mantissa_bits) if field else 0), 1 << mantissa_bits)
    if significand == 0:
        return "zero", negative, 0, Fraction(0)
    value = significand * Fraction(2) ** exponent
    return "finite", negative, exponent, -value if negative else value


def toward_zero(x):
    return -((-x).__floor__()) if x < 0 else x.__floor__()


def to_f32(value, out_mantissa):
    if value == 0:
        return 0
    sign = 0x80000000 if value < 0 else 0
    magnitude = abs(value)
    if magnitude >= Fraction(2) ** 128:
        return sign | 0x7F800000
    exponent = -126
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    quantum = Fraction(2) ** (exponent - out_mantissa)
    truncated = (magnitude / quantum).__floor__() * quantum
    in_f32_quanta = truncated / Fraction(2) ** (exponent - 23)
    assert in_f32_quanta.denominator == 1
    bits = in_f32_quanta.numerator
    if bits == 0:
        return 0  # Underflow gives +0 whatever the sign, as an H200 does.
    return sign | (bits if bits < 1 << 23 else ((exponent + 127) << 23) | (bits - (1 << 23)))


def fused_step(fa, fb, align, out_mantissa, a, b, c):
    terms = []  # (exponent, value)
    infinities = set()
    kind, negative, exponent, value = decode("f32", c)
    if kind == "nan":
        return NAN
    if kind == "inf":
        infinities.add(negative)
    if kind == "finite":
        terms.append((exponent, value))
    for x, y in zip(a, b):
        kx, nx, ex, vx = decode(fa, x)
        ky, ny, ey, vy = decode(fb, y)
        kinds = {kx, ky}
        if "nan" in kinds or kinds == {"inf", "zero"}:
            return NAN
        if "inf" in kinds:
            infinities.add(nx != ny)
        elif "zero" not in kinds:
            terms.append((ex + ey, vx * vy))
    if len(infinities) == 2:
        return NAN
    if infinities:
        return 0xFF800000 if True in infinities else 0x7F800000
    if not terms:
        return 0
    quantum = Fraction(2) ** (max(EXPONENT_FLOOR, *(e for e, _ in terms)) - align)
    return to_f32(sum(toward_zero(v / quantum) for _, v in terms) * quantum, out_mantissa)


def bits_of(name):
    return 1 + FORMATS[name][0] + FORMATS[name][1]


def tf32(code):
    return code & ~0x1FFF


def draw(rng, name, style):
    exponent_bits, mantissa_bits, bias, has_inf = FORMATS[name]
    bits = bits_of(name)
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    largest = infinity - 1 if has_inf else (1 << (bits - 1)) - 2
    sign = rng.getrandbits(1) << (bits - 1)
    if style == "codes":
        code = rng.getrandbits(bits)
    elif style == "finite":
        code = sign | rng.randint(0, largest)
    elif style == "near":  # Exponents within four of the middle, so that terms cancel and align.
        field = bias + rng.randint(-2, 2)
        code = sign | (field << mantissa_bits) | rng.getrandbits(mantissa_bits)
    elif style == "small":
        code = sign | rng.getrandbits(mantissa_bits + 1)
    elif style == "tiny":  # Products around the exponent floor, where the format reaches it.
        field = rng.randint(max(1, bias - 80), max(1, bias - 62))
        code = sign | (field << mantissa_bits) | rng.getrandbits(mantissa_bits)
    elif style == "sparse":
        code = sign | (rng.randint(0, largest) if rng.random() < 0.2 else 0)
    elif style == "maximal":
        code = largest
    elif style == "negative_maximal":
        code = largest | 1 << (bits - 1)
    else:
        raise ValueError(style)
    return tf32(code) if name == "f32" else code


def hexes(name, codes):
    return ",".join(f"{code:0{bits_of(name) // 4}x}" for code in codes)


def main():
    rng = random.Random(20240607)
    cases = [("bf16", "bf16", 25, 23, 16), ("f16", "f16", 25, 23, 16), ("f32", "f32", 25, 23, 8),
             ("e4m3", "e4m3", 13, 13, 32), ("e5m2", "e4m3", 13, 13, 32),
             ("e4m3", "e5m2", 13, 13, 32), ("e5m2", "e5m2", 13, 13, 32)]
    styles = [  # Of a, b and c, and how many steps.
        ("finite", "finite", "finite", 12), ("near", "near", "near", 16),
        ("codes", "codes", "codes", 8), ("small", "finite", "zero", 6), ("tiny", "tiny", "zero", 8),
        ("small", "small", "small", 6), ("sparse", "near", "near", 6),
        ("sparse", "sparse", "zero", 4), ("maximal", "maximal", "maximal", 1),
        ("maximal", "negative_maximal", "negative_maximal", 1), ("maximal", "maximal", "zero", 1)]
    lines = ["# Fused steps from exact fractions; written by make_fused_step_vectors.py."]
    for fa, fb, align, out, length in cases:
        for style_a, style_b, style_c, count in styles:
            for _ in range(count):
                a = [draw(rng, fa, style_a) for _ in range(length)]
                b = [draw(rng, fb, style_b) for _ in range(length)]
                if style_c == "zero":
                    c = rng.choice([0, 0x80000000])
                elif "maximal" in style_c:  # As large as this step makes it, all of one sign.
                    c = fused_step(fa, fb, align, out, a, b, 0)
                else:
                    c = draw(rng, "bf16", style_c) << 16 | rng.getrandbits(16)
                result = fused_step(fa, fb, align, out, a, b, c)
                lines.append(f"{fa} {fb} {align} {out} {c:08x} {result:08x} "
                             f"{hexes(fa, a)} {hexes(fb, b)}")
    Path(__file__).with_name("fused_step_vectors.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
