#!/usr/bin/env python3
"""Writes tests/data/exact_dots.txt: dot products with epilogues in rational arithmetic, rounded once.

    python3 tests/vectors/exact_reference.py > tests/data/exact_dots.txt

Independent of the engine: formats are decoded from their definitions, sums are fractions.Fraction. One case a line,
all codes hexadecimal: a b out bias_type k | alpha scale_a scale_b beta c bias d_scale | a... | b... | d amax
"""
import itertools
import random
from fractions import Fraction

# name: exponent bits, mantissa bits, bias, has infinities (None: only finite codes), canonical NaN
FORMATS = {
    "f32": (8, 23, 127, True, 0x7FFFFFFF),
    "bf16": (8, 7, 127, True, 0x7FFF),
    "f16": (5, 10, 15, True, 0x7FFF),
    "f8_e4m3": (4, 3, 7, False, 0x7F),
    "f8_e5m2": (5, 2, 15, True, 0x7F),
    "f6_e2m3": (2, 3, 1, None, None),
    "f6_e3m2": (3, 2, 3, None, None),
    "f4_e2m1x2": (2, 1, 1, None, None),
}
OUTPUTS = ["f32", "bf16", "f16", "f8_e4m3", "f8_e5m2"]
PAIRS = [("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("f8_e4m3", "f8_e4m3"),
         ("f8_e4m3", "f8_e5m2"), ("f8_e5m2", "f8_e4m3"), ("f8_e5m2", "f8_e5m2")]
NAN, INF = float("nan"), float("inf")
ONE = 0x3F800000  # 1.0 in f32


def is_fp8(name):
    return name.startswith("f8")


def c_type(out):
    """The type of c: that of the output, but bf16 for FP8 outputs, as cuBLASLt has it."""
    return "bf16" if is_fp8(out) else out


def bits_of(name):
    return 1 + FORMATS[name][0] + FORMATS[name][1]


def decode(name, code):
    """A Fraction, or a float NaN or infinity."""
    exponent_bits, mantissa_bits, bias, has_inf, _ = FORMATS[name]
    sign = -1 if code >> (exponent_bits + mantissa_bits) else 1
    field = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if field == (1 << exponent_bits) - 1 and has_inf is not None:
        if has_inf:
            return NAN if mantissa else sign * INF
        if mantissa == (1 << mantissa_bits) - 1:
            return NAN
    if field == 0:
        return sign * Fraction(mantissa) * Fraction(2) ** (1 - bias - mantissa_bits)
    return sign * Fraction(mantissa + (1 << mantissa_bits)) * Fraction(2) ** (field - bias - mantissa_bits)


def max_finite(name):
    exponent_bits, mantissa_bits, _, has_inf, _ = FORMATS[name]
    if has_inf is None:
        return (1 << (exponent_bits + mantissa_bits)) - 1
    return (((1 << exponent_bits) - 1) << mantissa_bits) - 1 if has_inf else (1 << (exponent_bits + mantissa_bits)) - 2


def encode(name, value):
    """Round to nearest even; FP8 saturates, the others go to infinity; exact zero is +0."""
    exponent_bits, mantissa_bits, bias, _, nan = FORMATS[name]
    top = max_finite(name)
    beyond = top if is_fp8(name) else top + 1
    sign_bit = 1 << (exponent_bits + mantissa_bits)
    if isinstance(value, float):
        if value != value:
            return nan
        if value in (INF, -INF):
            return beyond | (sign_bit if value < 0 else 0)
        value = Fraction(value)
    if value == 0:
        return 0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    units = round(magnitude / Fraction(2) ** (exponent - mantissa_bits))  # Fraction rounds half to even.
    code = ((exponent + bias - 1) << mantissa_bits) + units
    return (beyond if code > top else code) | (sign_bit if value < 0 else 0)


def as_class(value):
    """Sign only, so that NaN and infinities follow IEEE rules without rounding."""
    if isinstance(value, float):
        return value
    return float((value > 0) - (value < 0))


def times(*factors):
    if all(isinstance(f, Fraction) for f in factors):
        product = Fraction(1)
        for f in factors:
            product *= f
        return product
    product = 1.0
    for f in factors:
        product *= as_class(f)
    return product


def plus(terms):
    special = [t for t in terms if isinstance(t, float)]
    return sum(special) if special else sum(terms, Fraction(0))


class Case:
    def __init__(self, pair, out, a, b, **epilogue):
        self.pair, self.out, self.a, self.b = pair, out, a, b
        self.alpha = epilogue.get("alpha", ONE)
        self.scale_a = epilogue.get("scale_a", ONE)
        self.scale_b = epilogue.get("scale_b", ONE)
        self.beta = epilogue.get("beta", 0)
        self.c = epilogue.get("c", 0)
        self.bias_type = epilogue.get("bias_type", "none")
        self.bias = epilogue.get("bias", 0)
        self.d_scale = epilogue.get("d_scale", ONE)

    def line(self):
        f32 = lambda code: decode("f32", code)
        dot = plus([times(decode(self.pair[0], x), decode(self.pair[1], y)) for x, y in zip(self.a, self.b)])
        terms = [times(f32(self.alpha), f32(self.scale_a), f32(self.scale_b), dot)]
        if f32(self.beta) != 0:
            terms.append(times(f32(self.beta), decode(c_type(self.out), self.c)))
        if self.bias_type != "none":
            terms.append(decode(self.bias_type, self.bias))
        value = plus(terms)
        amax = encode("f32", value) & 0x7FFFFFFF if is_fp8(self.out) else 0
        code = encode(self.out, times(value, f32(self.d_scale)) if is_fp8(self.out) else value)
        scalars = [self.alpha, self.scale_a, self.scale_b, self.beta, self.c, self.bias, self.d_scale]
        parts = [[*self.pair, self.out, self.bias_type, str(len(self.a))], [f"{x:x}" for x in scalars],
                 [f"{x:x}" for x in self.a], [f"{x:x}" for x in self.b], [f"{code:x}", f"{amax:x}"]]
        return " | ".join(" ".join(p) for p in parts)


rng = random.Random(20240607)


def negate(name, code):
    return code ^ (1 << (bits_of(name) - 1))


def random_finite(name):
    return rng.randint(0, max_finite(name)) | (rng.getrandbits(1) << (bits_of(name) - 1))


def random_normal(name, spread=1.0):
    return encode(name, Fraction(rng.gauss(0, spread)))


def power_of_two(name, exponent):
    """The code of 2^exponent, or None."""
    value = Fraction(2) ** exponent
    code = encode(name, value)
    return code if decode(name, code) == value else None


def spelled(pair, value):
    """Terms of powers of two whose products add up to value, or None where the formats cannot reach."""
    a, b = [], []
    units = abs(value)
    while units:
        exponent = units.numerator.bit_length() - units.denominator.bit_length()
        if Fraction(2) ** exponent > units:
            exponent -= 1
        for half in (exponent // 2, exponent // 2 + 4, exponent // 2 - 4, exponent, 0):
            x, y = power_of_two(pair[0], exponent - half), power_of_two(pair[1], half)
            if x is not None and y is not None:
                break
        else:
            return None
        a.append(negate(pair[0], x) if value < 0 else x)
        b.append(y)
        units -= Fraction(2) ** exponent
    return (a, b) if a else None


def scale_code(low=-20, high=20):
    return encode("f32", Fraction(rng.uniform(1, 2)) * Fraction(2) ** rng.randint(low, high))


def random_epilogue(pair, out):
    fp8 = is_fp8(pair[0])
    bias_type = rng.choice(["none", "f32", "bf16", "f16"])
    beta = rng.choice([0, ONE, scale_code(-3, 3)])
    return dict(alpha=rng.choice([ONE, scale_code(-4, 4), scale_code(-4, 4) | 0x80000000]),
                scale_a=scale_code() if fp8 else ONE, scale_b=scale_code() if fp8 else ONE,
                beta=beta, c=random_normal(c_type(out), 4) if beta else 0,
                bias_type=bias_type, bias=random_normal(bias_type, 4) if bias_type != "none" else 0,
                d_scale=scale_code(-6, 6) if is_fp8(out) else ONE)


def length():
    return rng.choice([1, 2, 3, 7, 8, 16, 31, 32, 33])


def random_cases(pair, out):
    for _ in range(4):
        k = length()
        yield Case(pair, out, [random_finite(pair[0]) for _ in range(k)], [random_finite(pair[1]) for _ in range(k)])
    for _ in range(6):
        k = length()
        yield Case(pair, out, [random_normal(pair[0]) for _ in range(k)], [random_normal(pair[1]) for _ in range(k)],
                   **random_epilogue(pair, out))


def cancellation_cases(pair, out):
    """Large terms cancel down to a small rest, to zero, or to zero only with the bias."""
    for rest in (2, 1, 0):
        a = [random_finite(pair[0]) for _ in range(8)]
        b = [random_finite(pair[1]) for _ in range(8)]
        a, b = a + [negate(pair[0], x) for x in a], b + b
        a += [random_normal(pair[0], 0.01) for _ in range(rest)]
        b += [random_normal(pair[1], 0.01) for _ in range(rest)]
        order = list(range(len(a)))
        rng.shuffle(order)
        yield Case(pair, out, [a[i] for i in order], [b[i] for i in order],
                   alpha=rng.choice([ONE, 0xBF800000, 0xC0490FDB]))
    three = spelled(pair, Fraction(3))
    yield Case(pair, out, *three, alpha=0xBF800000, bias_type="f32", bias=encode("f32", Fraction(3)))
    zero = 1 << (bits_of(pair[0]) - 1)
    yield Case(pair, out, [zero, zero], [power_of_two(pair[1], 0)] * 2)


def tie_cases(pair, out):
    """Exactly half an ulp of the output, and the smallest amounts beside it; even and odd neighbours."""
    mantissa_bits, bias = FORMATS[out][1], FORMATS[out][2]
    for parity, beside, subnormal in itertools.product((0, 1), (0, 1, -1), (False, True)):
        implicit = 0 if subnormal else 1 << mantissa_bits
        kept = implicit | rng.getrandbits(mantissa_bits - 1) << 1 | parity
        half_units = Fraction(2 * kept + 1)
        # Powers of two only move the tie: first so that the operands can spell it, then back by alpha.
        down = -8 if is_fp8(pair[0]) else -12
        value = (half_units + Fraction(beside, 4)) * Fraction(2) ** down
        sign = rng.choice([1, -1])
        terms = spelled(pair, sign * value)
        if terms is None:
            continue
        exponent = (1 - bias if subnormal else rng.choice([1 - bias, 0, 3])) - mantissa_bits - 1 - down
        yield Case(pair, out, *terms, alpha=encode("f32", Fraction(2) ** exponent))
        # The half ulp comes from the bias, the rest from the dot product.
        terms = spelled(pair, sign * Fraction(2 * kept) * Fraction(2) ** down)
        if terms is not None:
            bias_value = sign * (1 + Fraction(beside, 4)) * Fraction(2) ** down
            yield Case(pair, out, *terms, bias_type="f32", bias=encode("f32", bias_value))


def beyond_fp64_cases(pair, out):
    """Ties that only amounts below the last bit of an fp64 number decide; each case leaves them to one step."""
    power = lambda exponent: Fraction(2) ** exponent
    f32 = lambda value: encode("f32", value)
    half_ulp = power(-FORMATS[out][1] - 1)
    for tie, tiny in ((1 + half_ulp, power(-80)), (1 + 3 * half_ulp, -power(-80))):
        # The addition of the bias, then the dot product itself, which loses 2^-54 of its largest term.
        terms = spelled(pair, tie)
        if terms is not None:
            yield Case(pair, out, *terms, bias_type="f32", bias=f32(tiny))
        terms = spelled(pair, (tie + (power(-54) if tiny > 0 else -power(-54))) * power(24))
        if terms is not None:
            yield Case(pair, out, *terms, alpha=f32(power(-24)))
    if out == "f32":
        # (1 + 2^-23) (1 + 2^-30) = 1 + 2^-23 + 2^-30 + 2^-53, whose middle is taken away by beta * c.
        terms = spelled(pair, 1 + power(-30))
        if terms is not None:
            yield Case(pair, out, *terms, alpha=f32(1 + power(-23)), beta=f32(-power(-30)), c=f32(Fraction(129)),
                       bias_type="f32", bias=f32(half_ulp))
        # (1 + 2^-23)^3 = 1 + 3 * 2^-46 (2^23 + 1) + 2^-69: the last part of the coefficient decides.
        if is_fp8(pair[0]):
            factor = f32(1 + power(-23))
            yield Case(pair, out, *spelled(pair, Fraction(1)), alpha=factor, scale_a=factor, scale_b=factor,
                       beta=f32(-3 * power(-46)), c=f32(Fraction(2 ** 23 + 1)), bias_type="f32", bias=f32(half_ulp))
    if is_fp8(out):
        # tie (1 - 2^-23 + 2^-46) (1 + 2^-23) = tie (1 + 2^-69): the multiplication by d_scale decides.
        terms = spelled(pair, (1 + half_ulp) * (1 - power(-23) + power(-46)))
        if terms is not None:
            yield Case(pair, out, *terms, d_scale=f32(1 + power(-23)))
        # The amax is a rounding of its own: a tie in f32, decided by the bias.
        terms = spelled(pair, 1 + power(-24))
        if terms is not None:
            yield Case(pair, out, *terms, bias_type="f32", bias=f32(power(-80)))
    zero = 1 << (bits_of(pair[0]) - 1)
    yield Case(pair, out, [zero], [power_of_two(pair[1], 0)], alpha=0xBF800000, beta=ONE,
               c=1 << (bits_of(c_type(out)) - 1), bias_type="f32", bias=0x80000000)


def range_cases(pair, out):
    """Subnormal outputs, outputs that round to a zero with a sign, and overflow on both sides of the limit."""
    _, mantissa_bits, bias, _, _ = FORMATS[out]
    for shift in (0, 1, mantissa_bits // 2, mantissa_bits, mantissa_bits + 1, mantissa_bits + 2):
        exponent = 1 - bias - shift
        k = length()
        a = [random_normal(pair[0]) for _ in range(k)]
        b = [random_normal(pair[1]) for _ in range(k)]
        first, second = max(exponent, -140), min(0, exponent + 140)
        options = dict(alpha=encode("f32", Fraction(2) ** first))
        if is_fp8(pair[0]):
            options["scale_a"] = encode("f32", Fraction(2) ** second)
        yield Case(pair, out, a, b, **options)
    top = decode(out, max_finite(out))
    ulp = top - decode(out, max_finite(out) - 1)
    for quarters in (1, 2, 3):
        value = top + ulp * Fraction(quarters, 4)
        scale = Fraction(2) ** (120 if out in ("f32", "bf16") else 0)
        terms = spelled(pair, value / scale)
        if terms is not None:
            yield Case(pair, out, *terms, alpha=encode("f32", rng.choice([1, -1]) * scale))
    big = max_finite(pair[0])
    yield Case(pair, out, [big, big], [max_finite(pair[1])] * 2, alpha=encode("f32", Fraction(2) ** 127))


def special_cases(pair, out):
    nan = [FORMATS[p][4] for p in pair]
    inf = [max_finite(p) + 1 if FORMATS[p][3] else None for p in pair]
    one = [power_of_two(p, 0) for p in pair]
    yield Case(pair, out, [nan[0], one[0]], [one[1], one[1]])
    yield Case(pair, out, [one[0], 0], [one[1], negate(pair[1], nan[1])])
    if inf[0] is not None:
        yield Case(pair, out, [inf[0], one[0]], [one[1], one[1]])
        yield Case(pair, out, [inf[0], one[0]], [one[1], one[1]], alpha=0xBF800000)
        yield Case(pair, out, [inf[0], one[0]], [0, one[1]])
        yield Case(pair, out, [inf[0], inf[0]], [one[1], negate(pair[1], one[1])])
        yield Case(pair, out, [inf[0], one[0]], [one[1], one[1]], alpha=0)
        yield Case(pair, out, [inf[0]], [one[1]], bias_type="f32", bias=0xFF800000)
    if is_fp8(pair[0]):
        for scale in (0x7FC00000, 0x7F800000, 0xFF800000, 0, 0x80000000, 1):
            yield Case(pair, out, one[:1], one[1:], scale_a=scale)
        yield Case(pair, out, [0], one[1:], scale_b=0x7F800000)
        a, b = [max_finite(pair[0])] * 3, [max_finite(pair[1])] * 3
        a[1] = negate(pair[0], a[1])
        tiny = [x | 1 for x in (0, 1 << (bits_of(pair[0]) - 1))]
        yield Case(pair, out, a[:2] + [tiny[1]], b[:2] + [1], scale_b=0x7F800000)
    for bias in (0x7FC00001, 0x7F800000, 0xFF800000):
        yield Case(pair, out, one[:1], one[1:], bias_type="f32", bias=bias)
    yield Case(pair, out, one[:1], one[1:], beta=ONE, c=FORMATS[c_type(out)][4])
    yield Case(pair, out, one[:1], one[1:], beta=0xBF800000, c=power_of_two(c_type(out), 0))
    if is_fp8(out):
        for d_scale in (0x7FC00000, 0x7F800000, 0xFF800000, 0, 0x80000000, 1):
            yield Case(pair, out, one[:1], one[1:], d_scale=d_scale)
        yield Case(pair, out, [0], one[1:], d_scale=0x7F800000)


def long_cases(pair, out):
    """Past one block of the fp64 kernel."""
    for k in (257, 300):
        yield Case(pair, out, [random_finite(pair[0]) for _ in range(k)], [random_finite(pair[1]) for _ in range(k)])


def main():
    print("# Exact dot products by tests/vectors/exact_reference.py (Python fractions); format in its first lines.")
    for pair in PAIRS:
        for out in OUTPUTS:
            kinds = [random_cases, cancellation_cases, tie_cases, beyond_fp64_cases, range_cases, special_cases]
            if out == "f32":
                kinds.append(long_cases)
            for kind in kinds:
                for case in kind(pair, out):
                    print(case.line())


if __name__ == "__main__":
    main()
