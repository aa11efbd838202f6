#!/usr/bin/env python3
"""Writes tests/data/exact_scaled_dots.txt: dot products of FP8, FP6 and FP4 operands, most of them under block scales, in
rational arithmetic, rounded once.

    python3 tests/vectors/exact_scaled_reference.py > tests/data/exact_scaled_dots.txt

Formats and roundings are those of exact_reference.py. One case a line, codes hexadecimal (FP4: one code, not packed):
a b scaling_a scaling_b out k | alpha beta c bias d_scale amax_a amax_b | max_a max_b | a... | b... | scales_a... | scales_b... | d amax
Bias and amaxes are f32 codes, or - where absent; c has the type of the output, bf16 for FP8.
"""
import itertools
import random
from fractions import Fraction

from exact_reference import NAN, ONE, OUTPUTS, c_type, decode, encode, is_fp8, max_finite, plus, times

SMALL = ["f8_e4m3", "f8_e5m2", "f6_e2m3", "f6_e3m2", "f4_e2m1x2"]
BLOCK = {"1x128": 128, "128x128": 128, "mx32": 32, "nv16": 16}
rng = random.Random(20241121)


def decode_scale(mode, code):
    if mode == "mx32":
        return NAN if code == 0xFF else Fraction(2) ** (code - 127)
    if mode == "nv16":
        return decode("f8_e4m3", code & 0x7F)
    return decode("f32", code)


def f32(code):
    return decode("f32", code)


class Case:
    def __init__(self, types, modes, out, codes, scales, **epilogue):
        self.types, self.modes, self.out, self.codes, self.scales = types, modes, out, codes, scales
        self.k = len(codes[0])
        self.alpha = epilogue.get("alpha", ONE)
        self.beta = epilogue.get("beta", 0)
        self.c = epilogue.get("c", 0)
        self.bias = epilogue.get("bias")
        self.d_scale = epilogue.get("d_scale", ONE)
        self.amax = epilogue.get("amax", (None, None))
        self.e4m3_max = epilogue.get("e4m3_max", (448, 448))

    def element(self, side, k):
        value = decode(self.types[side], self.codes[side][k])
        if self.modes[side] == "none":
            return value
        return times(value, decode_scale(self.modes[side], self.scales[side][k // BLOCK[self.modes[side]]]))

    def line(self):
        value = plus([times(self.element(0, k), self.element(1, k)) for k in range(self.k)])
        factors = [f32(self.alpha)]
        for side in (0, 1):
            if self.amax[side] is not None:
                factors += [f32(self.amax[side]), Fraction(1, 6 * self.e4m3_max[side])]
        terms = [times(*factors, value)]
        if f32(self.beta) != 0:
            terms.append(times(f32(self.beta), decode(c_type(self.out), self.c)))
        if self.bias is not None:
            terms.append(f32(self.bias))
        value = plus(terms)
        amax = encode("f32", value) & 0x7FFFFFFF if is_fp8(self.out) else 0
        code = encode(self.out, times(value, f32(self.d_scale)) if is_fp8(self.out) else value)
        join = lambda codes: " ".join("-" if x is None else f"{x:x}" for x in codes)
        return " | ".join([
            " ".join([*self.types, *self.modes, self.out, str(self.k)]),
            join([self.alpha, self.beta, self.c, self.bias, self.d_scale, *self.amax]),
            " ".join(map(str, self.e4m3_max)), join(self.codes[0]), join(self.codes[1]), join(self.scales[0]),
            join(self.scales[1]), join([code, amax])])


def element_codes(name, k):
    bits = max_finite(name).bit_length()
    return [rng.randint(0, max_finite(name)) | rng.getrandbits(1) << bits for _ in range(k)]


def negate(name, code):
    return code ^ (max_finite(name) + 1 if name[1] in "64" else 0x80)


def scale(mode, wide, special):
    if special and rng.randrange(3) == 0:
        return {"mx32": 0xFF, "nv16": 0x7F}.get(mode) or rng.choice([0x7FC00000, 0x7F800000, 0xFF800000])
    if mode == "mx32":
        return rng.randrange(255) if wide else rng.randrange(124, 131)
    if mode == "nv16":
        return rng.randrange(0x7F) | rng.getrandbits(1) << 7
    exponent = rng.choice([0, rng.randrange(1, 255)]) if wide else rng.randrange(122, 132)
    return exponent << 23 | rng.getrandbits(23) | (rng.randrange(4) == 0) << 31


def scales_for(mode, k, wide, special=False):
    if mode == "none":
        return []
    return [scale(mode, wide, special) for _ in range((k + BLOCK[mode] - 1) // BLOCK[mode])]


def scalar(low=-4, high=4):
    code = encode("f32", Fraction(rng.uniform(1, 2)) * Fraction(2) ** rng.randint(low, high))
    return code | rng.getrandbits(1) << 31


def epilogue(mode, out):
    options = dict(alpha=rng.choice([ONE, scalar()]), beta=rng.choice([0, 0, ONE, scalar()]),
                   bias=rng.choice([None, scalar(-8, 8)]))
    if options["beta"]:
        options["c"] = encode(c_type(out), Fraction(rng.gauss(0, 4)))
    if is_fp8(out):
        options["d_scale"] = scalar(-6, 6) & 0x7FFFFFFF
    if mode == "nv16":
        amax = lambda: rng.choice([None, scalar(-20, 20) & 0x7FFFFFFF])
        options["amax"] = (amax(), amax())
        options["e4m3_max"] = (rng.choice([448, 256]), rng.choice([448, 256]))
    return options


def length(modes):
    if "mx32" in modes:
        return rng.choice([32, 64, 96])
    if "nv16" in modes:
        return rng.choice([16, 32, 80])
    return rng.choice([2, 20, 128, 130, 200]) if "none" not in modes else rng.choice([2, 8, 34])


def cases(types, modes, out):
    for wide in (False, True):
        k = length(modes)
        codes = [element_codes(name, k) for name in types]
        scales = [scales_for(mode, k, wide) for mode in modes]
        yield Case(types, modes, out, codes, scales)
        yield Case(types, modes, out, codes, scales, **epilogue(modes[0], out))
    # The second half takes the first away, but for one product.
    block = BLOCK.get(modes[0], 2)
    codes = [element_codes(name, block) for name in types]
    codes = [codes[0] + [negate(types[0], x) for x in codes[0]], codes[1] * 2]
    codes[0][rng.randrange(block)] = element_codes(types[0], 1)[0]
    scales = [scales_for(mode, block, True) * 2 for mode in modes]
    yield Case(types, modes, out, codes, scales)
    if modes[0] != "none":
        k = length(modes)
        yield Case(types, modes, out, [element_codes(name, k) for name in types],
                   [scales_for(mode, k, False, special=True) for mode in modes])


def rational_ties(out):
    """nv16 whose divisor leaves an exact value, a tie, or a hair beside one: 21 and 441 divide 6 * 448 and its square."""
    types, modes = ("f4_e2m1x2", "f4_e2m1x2"), ("nv16", "nv16")
    mantissa_bits = {"f32": 23, "bf16": 7, "f16": 10, "f8_e4m3": 3, "f8_e5m2": 2}[out]
    one_hot = [2] + [0] * 15  # 1.0
    for odd, beside in itertools.product((0, 1), (0, 1, -1)):
        # alpha * 21 * 2^7 / 2688 = alpha; the tie lies between alpha's bits and the bias.
        tie = 1 + Fraction(2 * odd + 1, 2 ** (mantissa_bits + 1))
        if out != "f32":
            amax = encode("f32", Fraction(2688) * tie)
            bias = encode("f32", beside * Fraction(2) ** -90)
            yield Case(types, modes, out, [one_hot, one_hot], [[0x38], [0x38]], amax=(amax, None), bias=bias)
            # A third of 3: alpha 1/3 rounded is beside the tie, the quotient is not.
            yield Case(types, modes, out, [one_hot, one_hot], [[0x38], [0x38]],
                       amax=(amax, encode("f32", Fraction(1536))), e4m3_max=(448, 256), bias=bias)
        third = encode("f32", Fraction(2 ** 23 + 2 * rng.getrandbits(20) + odd))
        yield Case(types, modes, out, [one_hot, one_hot], [[0x38], [0x38]], amax=(third, encode("f32", Fraction(7))),
                   alpha=scalar())


def main():
    print("# Exact dot products under block scales by tests/vectors/exact_scaled_reference.py (Python fractions).")
    fp8 = list(itertools.product(SMALL[:2], SMALL[:2]))
    every = list(itertools.product(SMALL, SMALL))
    groups = [([p for p in every if p not in fp8], ("none", "none")), (fp8, ("1x128", "1x128")),
              (fp8, ("1x128", "128x128")), (fp8, ("128x128", "1x128")), (every, ("mx32", "mx32")),
              ([(SMALL[4], SMALL[4])] * 4, ("nv16", "nv16"))]
    for pairs, modes in groups:
        for i, types in enumerate(pairs):
            for j, out in enumerate(OUTPUTS):
                # Every pair to two outputs, every output with every fifth pair.
                if len(pairs) <= 4 or (i + j) % 5 in (0, 2):
                    for case in cases(types, modes, out):
                        print(case.line())
    for out in OUTPUTS:
        for case in rational_ties(out):
            print(case.line())


if __name__ == "__main__":
    main()
