#!/usr/bin/env python3
"""Writes tests/data/rule_dots.txt: dot products under every tensor-core arithmetic, in rational arithmetic.

    python3 tests/vectors/rule_reference.py > tests/data/rule_dots.txt

Independent of the engine: docs/tensor-cores.md sections 1 to 3 restated over fractions.Fraction. One case a line, codes
hexadecimal (FP4: one code, not packed):
arithmetic a b scaling_a scaling_b out k | alpha amax_a amax_b max_a max_b | a... | b... | scales_a... | scales_b... | d
amaxes are f32 codes, or - where absent.
"""
import random
from fractions import Fraction

# exponent bits, mantissa bits, bias, kind of specials
FORMATS = {
    "f32": (8, 23, 127, "ieee"), "bf16": (8, 7, 127, "ieee"), "f16": (5, 10, 15, "ieee"),
    "f8_e4m3": (4, 3, 7, "nan"), "f8_e5m2": (5, 2, 15, "ieee"),
    "f6_e2m3": (2, 3, 1, "none"), "f6_e3m2": (3, 2, 3, "none"), "f4_e2m1x2": (2, 1, 1, "none"),
}
SMALL = ["f8_e4m3", "f8_e5m2", "f6_e2m3", "f6_e3m2", "f4_e2m1x2"]
NAN, INF = "nan", "inf"


def power(e):
    return Fraction(2) ** e


def unpack(name, code):
    """(kind, negative, exponent, magnitude): the exponent is the format's, not normalised."""
    eb, mb, bias, specials = FORMATS[name]
    negative = bool(code >> (eb + mb) & 1)
    field, mantissa = code >> mb & ((1 << eb) - 1), code & ((1 << mb) - 1)
    if field == (1 << eb) - 1:
        if specials == "ieee":
            return (NAN if mantissa else INF, negative, 0, None)
        if specials == "nan" and mantissa == (1 << mb) - 1:
            return (NAN, negative, 0, None)
    exponent = (field or 1) - bias
    significand = mantissa + ((1 << mb) if field else 0)
    return ("zero" if significand == 0 else "finite", negative, exponent, significand * power(exponent - mb))


def trunc(x):
    return int(x) if x >= 0 else -int(-x)


def nearest_even(x):
    return round(x)  # Fractions round half to even.


def leading(x):
    """floor(log2 |x|)."""
    x = abs(x)
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if power(e) <= x else e - 1


def encode(x, mb, emin, emax, rounding):
    """x rounded to a binary format as a Fraction; INF beyond it."""
    e = max(leading(x), emin)
    units = rounding(x / power(e - mb))
    value = units * power(e - mb)
    return (INF, value < 0) if abs(value) >= power(emax + 1) else value


class Rule:
    def __init__(self, L, F, outman=23, **options):
        self.L, self.F, self.outman = L, F, outman
        self.f16 = options.get("f16", False)
        self.group = options.get("group", 1)
        self.order = options.get("order")
        self.promote = options.get("promote")  # (k, kind)


def step(rule, terms, c):
    """terms: (kind, negative, exponent, magnitude); c: a Fraction, NAN or (INF, negative)."""
    if c == NAN or any(t[0] == NAN for t in terms):
        return NAN
    infinities = {t[1] for t in terms if t[0] == INF}
    if isinstance(c, tuple):
        infinities.add(c[1])
    if infinities:
        return NAN if len(infinities) == 2 else (INF, infinities.pop())
    parts = [(t[2], -t[3] if t[1] else t[3]) for t in terms if t[0] == "finite"]
    if c:
        parts.append((max(leading(c), -14 if rule.f16 else -126), c))
    E = max([-133] + [p[0] for p in parts])
    quantum = power(E - rule.F)
    total = sum(trunc(value / quantum) for _, value in parts) * quantum
    if total == 0:
        return Fraction(0)
    if rule.f16:
        return encode(total, 10, -14, 15, nearest_even)
    result = encode(total, rule.outman, -126, 127, trunc)
    return (INF, total < 0) if abs(total) >= power(128) else result


def product(x, y, shift=0):
    negative = x[1] != y[1]
    kinds = {x[0], y[0]}
    if NAN in kinds or kinds == {INF, "zero"}:
        return (NAN, negative, 0, None)
    if INF in kinds:
        return (INF, negative, 0, None)
    if "zero" in kinds:
        return ("zero", negative, 0, None)
    return ("finite", negative, x[2] + y[2] + shift, x[3] * y[3] * power(shift))


def f32(x):
    """RNE to fp32 of a Fraction or special."""
    if not isinstance(x, Fraction) or x == 0:
        return x
    return encode(x, 23, -126, 127, nearest_even)


def tf32(code):
    if (code & 0x7FFFFFFF) > 0x7F800000:
        return 0x7FFFFFFF
    low = code & 0x1FFF
    code -= low
    if low > 0x1000 or (low == 0x1000 and code & 0x2000):
        code += 0x2000
    return code


def number(x):
    """A special or Fraction of an unpacked number."""
    kind, negative, _, magnitude = x
    if kind == NAN:
        return NAN
    if kind == INF:
        return (INF, negative)
    return Fraction(0) if kind == "zero" else (-magnitude if negative else magnitude)


def times(x, y):
    if NAN in (x, y):
        return NAN
    if isinstance(x, tuple) or isinstance(y, tuple):
        if x == 0 or y == 0:
            return NAN
        sign = lambda v: v[1] if isinstance(v, tuple) else v < 0
        return (INF, sign(x) != sign(y))
    return x * y


def plus(x, y):
    if NAN in (x, y):
        return NAN
    infinities = [v for v in (x, y) if isinstance(v, tuple)]
    if infinities:
        return NAN if len(infinities) == 2 and infinities[0] != infinities[1] else infinities[0]
    return x + y


def e8m0(code):
    return NAN if code == 0xFF else code - 127


def pow2_exponent(code):
    return (code >> 23) - 127


def chain(case, rule, begin, end):
    """Fused steps over k in [begin, end)."""
    ks = list(range(begin, end))
    if rule.order:
        padded = range(begin, begin + 32)
        ks = [k for k in padded if k % 4 < 2] + [k for k in padded if k % 4 >= 2]
    c = Fraction(0)
    for first in range(0, len(ks), rule.L):
        c = step(rule, case.terms(ks[first:first + rule.L], rule), c)
    return c


def dot(case, rule):
    if not rule.promote:
        return chain(case, rule, 0, case.k)
    interval, kind = rule.promote
    total = Fraction(0)
    for begin in range(0, case.k, interval):
        part = chain(case, rule, begin, min(case.k, begin + interval))
        if kind == "add":
            total = plus(total, part)
            if isinstance(total, Fraction) and total != 0:
                total = encode(total, 10, -14, 15, nearest_even) if rule.f16 else f32(total)
            continue
        sa, sb = (number(unpack("f32", s[begin // 128])) for s in (case.scales_a, case.scales_b))
        if kind == "tile":
            total = f32(plus(times(part, f32(times(sa, sb))), total))
        else:
            total = f32(plus(times(f32(times(part, sa)), sb), total))
    return total


class Case:
    def __init__(self, arithmetic, types, scaling, out, a, b, scales_a=(), scales_b=(), **extra):
        self.arithmetic, self.types, self.scaling, self.out = arithmetic, types, scaling, out
        self.a, self.b, self.k = a, b, len(a)
        self.scales_a, self.scales_b = scales_a, scales_b
        self.alpha = extra.get("alpha", 0x3F800000)
        self.amax = extra.get("amax", (None, None))
        self.e4m3_max = extra.get("e4m3_max", (448, 448))

    def element(self, side, k):
        codes, name = (self.a, self.types[0]) if side == 0 else (self.b, self.types[1])
        code = codes[k] if k < self.k else 0
        return unpack(name, tf32(code) if name == "f32" else code)

    def f16_element(self, side, k):
        """The element as the fp16 number of the same value, with that number's exponent."""
        kind, negative, exponent, magnitude = self.element(side, k)
        return (kind, negative, max(leading(magnitude), -14) if kind == "finite" else 0, magnitude)

    def terms(self, ks, rule):
        if rule.group > 1:
            return [self.group(ks[i:i + rule.group]) for i in range(0, len(ks), rule.group)]
        element = self.f16_element if rule.order else self.element
        return [product(element(0, k), element(1, k), self.shift(k)) if self.shift(k) != NAN
                else (NAN, False, 0, None) for k in ks]

    def shift(self, k):
        if self.scaling[0] == "mx32":
            parts = [e8m0(self.scales_a[k // 32]), e8m0(self.scales_b[k // 32])]
        elif "x" in self.scaling[0] and self.arithmetic != "sm90":
            length = int(self.scaling[0].split("x")[1])
            parts = [pow2_exponent(self.scales_a[k // length]), pow2_exponent(self.scales_b[k // length])]
        else:
            return 0
        return NAN if NAN in parts else sum(parts)

    def group(self, ks):
        scale = product(*(unpack("f8_e4m3", s[ks[0] // 16] & 0x7F) for s in (self.scales_a, self.scales_b)))
        if scale[0] != "finite":
            return scale
        total = sum((number(product(self.element(0, k), self.element(1, k))) for k in ks), Fraction(0))
        return ("finite" if total else "zero", total < 0, scale[2], abs(total) * scale[3])

    def coefficient(self):
        value = number(unpack("f32", self.alpha))
        largest = 1
        for side in (1, 0):
            if self.amax[side] is not None:
                value = f32(times(value, number(unpack("f32", self.amax[side]))))
                largest *= 6 * self.e4m3_max[side]
        return f32(times(value, f32(Fraction(1, largest))))

    def output(self, rule):
        acc = dot(self, rule)
        value = f32(times(acc, self.coefficient()))
        if value == NAN:
            return {"f32": 0x7FFFFFFF, "bf16": 0x7FFF, "f16": 0x7FFF}[self.out]
        eb, mb, bias, _ = FORMATS[self.out]
        if isinstance(value, Fraction) and value != 0:
            value = encode(value, mb, 1 - bias, bias, nearest_even)
        if isinstance(value, tuple):
            return ((1 << eb) - 1) << mb | (value[1] << (eb + mb))
        if value == 0:
            return 0  # The signs of zero products are not drawn here: results of -tiny are left out.
        e = max(leading(value), 1 - bias)
        units = abs(value) / power(e - mb)
        code = ((e + bias - 1) << mb) + int(units)
        return code | ((value < 0) << (eb + mb))

    def line(self, rule):
        join = lambda codes: " ".join(f"{c:x}" for c in codes)
        scalars = [f"{self.alpha:x}"] + ["-" if x is None else f"{x:x}" for x in self.amax]
        scalars += [str(x) for x in self.e4m3_max]
        return " | ".join([
            " ".join([self.arithmetic, *self.types, *self.scaling, self.out, str(self.k)]), " ".join(scalars),
            join(self.a), join(self.b), join(self.scales_a), join(self.scales_b), f"{self.output(rule):x}"])


rng = random.Random(20241120)


def max_finite(name):
    eb, mb, _, specials = FORMATS[name]
    top = (1 << (eb + mb)) - 1
    return top - (1 << mb) if specials == "ieee" else top - 1 if specials == "nan" else top


def draw(name, pattern):
    eb, mb, bias, specials = FORMATS[name]
    sign = rng.getrandbits(1) << (eb + mb)
    top = max_finite(name)
    if pattern == "all" and rng.randrange(24) == 0 and specials != "none":
        return top + 1 + (rng.getrandbits(mb) % max(1, (1 << mb) - 1) if specials == "ieee" else 0) | sign
    if pattern == "maximal":
        return top
    if pattern == "wide" or pattern == "all":
        return rng.randint(0, top) | sign
    if pattern == "sparse" and rng.randrange(3):
        return sign
    if pattern == "small":
        return rng.randrange(2 << mb) | sign
    spread = min(4, (1 << eb) - 2)
    field = max(0, min(bias - rng.randrange(spread), top >> mb))
    return min(field << mb | rng.getrandbits(mb), top) | sign


def codes(name, k, pattern):
    return [draw(name, pattern) for _ in range(k)]


def scale_e8m0(pattern):
    if pattern == "all" and rng.randrange(6) == 0:
        return 0xFF
    if pattern == "wide":
        return rng.randrange(255)
    if pattern == "small":
        return rng.randrange(40, 80)
    return rng.randrange(120, 134)


def scale_e4m3(pattern):
    if pattern == "all" and rng.randrange(6) == 0:
        return 0x7F | rng.getrandbits(1) << 7
    if pattern == "maximal":
        return 0x7E
    if pattern == "small":
        return rng.randrange(10)
    if pattern in ("wide", "sparse"):
        return rng.choice([0, rng.randrange(0x7F), rng.randrange(0x7F) | 0x80])
    return rng.randrange(0x28, 0x48)


def scale_f32(pattern):
    if pattern == "all" and rng.randrange(5) == 0:
        return rng.choice([0x7FC00000, 0x7F800000, 0, 0x80000000, 0xFF800000])
    exponent = rng.randrange(60, 190) if pattern == "wide" else rng.randrange(118, 130)
    return exponent << 23 | rng.getrandbits(23) | (rng.randrange(8) == 0) << 31


PATTERNS = ["near", "wide", "small", "sparse", "maximal", "all"]


def lengths(L):
    return [1, L - 1 or 1, L, 2 * L + 3, 4 * L + 1]


def plain(arithmetic, pairs, rule, f16=False):
    out = "f16" if f16 else "f32"
    for pair in pairs:
        for i, pattern in enumerate(PATTERNS):
            for k in {lengths(rule.L)[i % 5], lengths(rule.L)[(i + 2) % 5]}:
                yield Case(arithmetic, pair, ("none", "none"), out, codes(pair[0], k, pattern),
                           codes(pair[1], k, pattern)), rule


def small_pairs():
    return [(x, y) for x in SMALL for y in SMALL if not (x.startswith("f8") and y.startswith("f8"))]


FP8 = [(x, y) for x in SMALL[:2] for y in SMALL[:2]]


def blocks(arithmetic, rule_of, pow2, length=128):
    lines, tiles = f"1x{length}", f"{length}x{length}"
    for pair in FP8:
        for modes in ((lines, lines), (lines, tiles), (tiles, lines)):
            for pattern in ("near", "wide", "all") if not pow2 else ("near", "wide"):
                k = rng.choice([length, length + 2, 2 * length + 44])
                blocks = (k + length - 1) // length
                scales = [[scale_f32(pattern) for _ in range(blocks)] for _ in range(2)]
                if pow2:
                    scales = [[rng.choice([1, rng.randrange(90, 160), 254]) << 23 for _ in range(blocks)]
                              for _ in range(2)]
                yield Case(arithmetic, pair, modes, "f32", codes(pair[0], k, pattern), codes(pair[1], k, pattern),
                           *scales), rule_of(modes)


def mx32(arithmetic):
    rule = Rule(32, 25)
    for pair in FP8 + small_pairs():
        for pattern in rng.sample(PATTERNS, 3):
            k = rng.choice([32, 64, 96])
            scales = [[scale_e8m0(pattern) for _ in range(k // 32)] for _ in range(2)]
            yield Case(arithmetic, pair, ("mx32", "mx32"), "f32", codes(pair[0], k, pattern),
                       codes(pair[1], k, pattern), *scales), rule


def nv16(arithmetic):
    rule = Rule(64, 35, group=16)
    pair = ("f4_e2m1x2", "f4_e2m1x2")
    for repeat in range(6):
        for pattern in PATTERNS:
            k = rng.choice([16, 48, 64, 80, 208])
            scales = [[scale_e4m3(pattern) for _ in range(k // 16)] for _ in range(2)]
            draw_amax = lambda: rng.randrange(100, 140) << 23 | rng.getrandbits(23)
            amax = rng.choice([(None, None), (draw_amax(), draw_amax()), (draw_amax(), draw_amax()),
                               (None, draw_amax())])
            yield Case(arithmetic, pair, ("nv16", "nv16"), rng.choice(["f32", "bf16"]), codes(pair[0], k, pattern),
                       codes(pair[1], k, pattern), *scales, amax=amax,
                       e4m3_max=(rng.choice([448, 256]), rng.choice([448, 256])),
                       alpha=rng.choice([0x3F800000, 0xBFA00001])), rule


def nv16_cancelling(arithmetic):
    """A group that cancels under large scales beside a tiny one: an exponent that took part would leave nothing."""
    pair = ("f4_e2m1x2", "f4_e2m1x2")
    for _ in range(12):
        half = codes(pair[0], 8, "wide")
        zero_sum = (half + [x ^ 8 for x in half], codes(pair[1], 8, "wide") * 2)
        tiny = ([1] + [0] * 15, [1 | rng.getrandbits(1) << 3] + [0] * 15)
        order = rng.choice([(zero_sum, tiny), (tiny, zero_sum), (tiny, zero_sum, tiny, tiny, tiny)])
        sides = [[c for group in order for c in group[side]] for side in (0, 1)]
        scales = [[rng.randrange(0x70, 0x7F) if group is zero_sum else rng.randrange(1, 8) for group in order]
                  for _ in range(2)]
        yield Case(arithmetic, pair, ("nv16", "nv16"), "f32", *sides, *scales), Rule(64, 35, group=16)


def fp8_as_f16(name, rule, f16):
    """Few e4m3 subnormals, as large as can be beside wide e5m2: fp16 gives them other exponents."""
    pairs = [("f8_e4m3", "f8_e5m2"), ("f8_e5m2", "f8_e4m3")]
    for i in range(24):
        k = rng.choice([4, 16, 32])
        subnormal = [rng.choice([0, 0, rng.randrange(1, 8) | rng.getrandbits(1) << 7]) for _ in range(k)]
        wide = [rng.choice([rng.randrange(1, 8), rng.randrange(0x60, 0x7C)]) | rng.getrandbits(1) << 7
                for _ in range(k)]
        sides = (subnormal, wide) if i % 2 == 0 else (wide, subnormal)
        yield Case(name, pairs[i % 2], ("none", "none"), "f16" if f16 else "f32", *sides), rule


def main():
    print("# Dot products under tensor-core arithmetics, by tests/vectors/rule_reference.py (Python fractions).")
    sixteen = [("f16", "f16"), ("bf16", "bf16")]
    f16, tf = [("f16", "f16")], [("f32", "f32")]
    emulated = dict(order=True, promote=(32, "add"))
    groups = [
        plain("sm70", f16, Rule(4, 23)), plain("sm70:acc=f16", f16, Rule(4, 23, f16=True), True),
        plain("sm75", f16, Rule(8, 24)), plain("sm75:acc=f16", f16, Rule(8, 24, f16=True), True),
        plain("sm80", sixteen, Rule(8, 24)), plain("sm80", tf, Rule(4, 24)),
        plain("sm80:acc=f16", f16, Rule(8, 24, f16=True), True),
        plain("sm86", sixteen, Rule(8, 24)), plain("sm89", sixteen, Rule(8, 24)), plain("sm89", tf, Rule(4, 24)),
        plain("sm89", FP8, Rule(16, 13, 13)), plain("sm89:acc=f16", FP8, Rule(16, 13, f16=True), True),
        plain("sm90", sixteen, Rule(16, 25)), plain("sm90", tf, Rule(8, 25)),
        plain("sm90:fast", FP8, Rule(32, 13, 13)),
        plain("sm90:split", FP8, Rule(32, 13, 13, promote=(128, "add"))),
        plain("sm90_mma_fp8", FP8, Rule(16, 25, **emulated)),
        plain("sm90_mma_fp8:acc=f16", FP8, Rule(16, 25, f16=True, **emulated), True),
        plain("sm100", sixteen, Rule(16, 25)), plain("sm100:acc=f16", f16, Rule(16, 25, f16=True), True),
        plain("sm100", tf, Rule(8, 25)), plain("sm100", FP8 + small_pairs(), Rule(32, 25)),
        plain("sm120", FP8, Rule(32, 25)),
        blocks("sm90", lambda modes: Rule(32, 13, 13, promote=(128, "tile" if "128x128" in modes else "twice")),
                 False),
        blocks("sm100", lambda modes: Rule(32, 25), True),
        mx32("sm100"), mx32("sm120"), nv16("sm100"), nv16("sm120"),
        nv16_cancelling("sm100"),
        fp8_as_f16("sm90_mma_fp8", Rule(16, 25, **emulated), False),
        fp8_as_f16("sm90_mma_fp8:acc=f16", Rule(16, 25, f16=True, **emulated), True),
        *(blocks("sm100", lambda modes: Rule(32, 25), True, length) for length in (32, 64, 256)),
        plain("sm100:mma", FP8, Rule(16, 25, **emulated)),
        plain("sm100:mma,acc=f16", FP8, Rule(16, 25, f16=True, **emulated), True),
    ]
    for group in groups:
        for case, rule in group:
            print(case.line(rule))


main()
