"""Attention beside its GEMMs in numpy and ml_dtypes, and the vectors made with them.

Written from docs/numerics.md section 9 and from Hugging Face's eager attention (apply_rotary_pos_emb, rotate_half);
nothing is shared with the C++ code. exp is correctly rounded (docs/numerics.md section 7), here from binary64 or, near
the middle of two numbers, from mpmath; cosines, sines and powers of rotary tables are mpmath's, rounded once. Writes
tests/data/attention_vectors.txt. Run by hand from the repository root: python3 tests/vectors/attention_reference.py
"""

import pathlib

import ml_dtypes
import mpmath
import numpy as np

from norm_reference import digest, pairwise, stored
from number_formats import F32, SOURCES
from vector_tensors import TensorWriter

FLOATS = ("f32", "bf16", "f16")
SMALLEST = float(np.finfo(F32).smallest_subnormal)


def rounded_once(value):
    """An mpmath number as float32, rounded to nearest even, subnormals too."""
    if value == 0:
        return F32(0)
    exponent = max(mpmath.frexp(abs(value))[1] - 24, -149)
    with mpmath.workprec(200):
        steps = mpmath.ldexp(value, -exponent)
        whole = int(mpmath.nint(steps))  # Ties to even.
    return F32(np.ldexp(float(whole), exponent))


def exp_of(values):
    """exp of float32 values, correctly rounded to float32."""
    flat = values.astype(np.float64).ravel()
    wide = np.exp(flat)
    result = wide.astype(F32)
    # The distance from the middle between two float32 numbers, in units of the wide value's last place.
    spacing = np.maximum(np.spacing(np.abs(result)).astype(np.float64), SMALLEST)
    off = np.abs(np.abs(wide - result.astype(np.float64)) - spacing / 2)
    below = np.abs(np.abs(wide - result.astype(np.float64)) - spacing / 4)
    unsure = np.isfinite(flat) & (np.minimum(off, below) < 16 * np.spacing(np.abs(wide))) & (result != 1)
    for i in np.flatnonzero(unsure):
        with mpmath.workprec(120):
            result[i] = rounded_once(mpmath.exp(mpmath.mpf(float(flat[i]))))
    return result.reshape(values.shape)


def to(values, source):
    """float32 values rounded to a type and back."""
    return values.astype(F32).astype(SOURCES[source]).astype(F32)


def taken_of(shape, mask):
    queries, keys = shape[-2:]
    last = np.arange(queries)[:, None] + (keys - queries)
    taken = np.arange(keys)[None, :] <= last if mask == "causal" else np.ones((queries, keys), bool)
    return np.broadcast_to(taken, shape)


def softmax(scores, source, scale, mask):
    taken = taken_of(scores.shape, mask)
    z = to(scores.astype(F32) * F32(scale), source)
    largest = np.where(taken, z, F32(-np.inf)).max(axis=-1, keepdims=True)
    terms = np.where(taken, exp_of(np.where(taken, z - largest, F32(0))), F32(0))
    return np.where(taken, terms / pairwise(terms)[..., None], F32(0))


def softmax_gradient(gradient, probabilities, source, scale, mask):
    taken = taken_of(gradient.shape, mask)
    g = gradient.astype(F32)
    terms = np.where(taken, g * probabilities, F32(0))
    slope = to((g - pairwise(terms)[..., None]) * probabilities, source)
    return np.where(taken, slope * F32(scale), F32(0))


def rotate_half(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def rotate(x, cosines, sines, backward):
    """In the type of x, whose operations ml_dtypes and numpy round one by one."""
    cos, sin = np.concatenate([cosines, cosines], axis=-1), np.concatenate([sines, sines], axis=-1)
    if backward:
        return x * cos - rotate_half(x * sin)  # The transpose of rotate_half is its negative.
    return x * cos + rotate_half(x) * sin


def rotary_table(base, positions, columns):
    pairs = columns // 2
    cosines, sines = np.zeros((positions, pairs), F32), np.zeros((positions, pairs), F32)
    for i in range(pairs):
        with mpmath.workprec(200):
            power = rounded_once(mpmath.mpf(float(F32(base))) ** mpmath.mpf(float(F32(2 * i) / F32(columns))))
        frequency = F32(1) / power
        for p in range(positions):
            with mpmath.workprec(300):
                angle = mpmath.mpf(float(F32(p) * frequency))
                cosines[p, i], sines[p, i] = rounded_once(mpmath.cos(angle)), rounded_once(mpmath.sin(angle))
    return cosines, sines


class Cases:
    def __init__(self):
        self.writer, self.lines = TensorWriter(), []

    def add(self, *words):
        self.lines.append("case " + " ".join(map(str, words)) + "\n")

    def mix(self, name, source, shape, seed, around, span, specials=0):
        """Biased exponents of which the middle one is 2^around."""
        bias = 15 if source == "f16" else 127
        self.writer.mix(name, source, shape, seed, bias + around - span // 2, span, specials)
        return self.writer.tensors[name, source]

    def softmax(self, name, gradient_name, source, scale, mask):
        scores, gradient = (self.writer.tensors[n, source] for n in (name, gradient_name))
        with np.errstate(all="ignore"):
            p = softmax(scores, source, scale, mask)
            saved = np.frombuffer(stored(p, "f32"), F32).reshape(p.shape)
            slope = softmax_gradient(gradient, saved, source, scale, mask)
        self.add("softmax", name, gradient_name, source, F32(scale).tobytes().hex(), mask, digest(stored(p, "f32")),
                 digest(stored(p, source)), digest(stored(slope, source)))

    def rotation(self, name, source, period, rotated, backward):
        heads, cosines, sines = (self.writer.tensors[n, source] for n in (name, name + "_cos", name + "_sin"))
        with np.errstate(all="ignore"):
            turned = rotate(heads, cosines, sines, backward)
        width = heads.shape[1] * heads.shape[2] * heads.dtype.itemsize
        whole = bytearray(heads.tobytes())  # The others are copied with their bytes.
        codes = stored(turned.astype(F32), source)
        for head in range(heads.shape[0]):
            if head % period < rotated:
                whole[head * width:(head + 1) * width] = codes[head * width:(head + 1) * width]
        self.add("rotate", name, source, period, rotated, int(backward), digest(bytes(whole)))


def softmax_cases(cases):
    seed = 0
    shapes = ((1, 1), (2, 3, 5, 5), (7, 9), (2, 4, 16), (33, 40), (2, 1, 1, 31), (64, 64), (3, 1025), (2, 2048))
    for shape in shapes:
        for source in FLOATS:
            name = "s" + "x".join(map(str, shape))
            seed += 2
            # Magnitudes up to 8, so that every probability counts, and a few NaN, infinities and zeros in others.
            cases.mix(name, source, shape, seed, 1, 6)
            cases.mix(name + "_g", source, shape, seed + 1, -2, 6)
            for mask in ("none", "causal"):
                for scale in (1.0, 0.08838834764, -0.3):
                    cases.softmax(name, name + "_g", source, scale, mask)
    for source in FLOATS:
        # Differences beyond all of exp's results; all exponents, whose products overflow; specials; rows of zeros.
        cases.mix("steep", source, (8, 100), 300, 5, 4)
        cases.mix("wide", source, (8, 100), 301, 0, 28 if source == "f16" else 250)
        cases.mix("laced", source, (40, 48), 302, 1, 6, 60)
        cases.mix("laced_g", source, (40, 48), 303, 1, 6, 200)
        even = np.array([[0.0], [-0.0], [3.0], [-np.inf], [np.inf], [np.nan]])
        cases.writer.hex("even", source, np.repeat(even, 7, axis=1))
        cases.writer.hex("even_g", source, np.array([[1, -1, 0, -0.0, 2, 0.5, -4]] * 5 + [[-0.0] * 7]))
        # 0 and -inf alone: terms of 1 and 0, so that everything but the division is exact whatever exp is.
        ones = np.where(np.arange(6 * 37).reshape(6, 37) % np.array([[1], [2], [3], [5], [7], [36]]) == 0, 0.0, -np.inf)
        cases.writer.hex("counts", source, ones)
        cases.mix("counts_g", source, (6, 37), 304, 0, 4)
        # Sums that are -0 unless the mask leaves out a key.
        cases.writer.hex("negative_zeros_g", source, np.full((6, 37), -0.0))
        for mask in ("none", "causal"):
            for scale in (1.0, 0.125, 0.0):
                for name, gradient in (("steep", "wide"), ("wide", "steep"), ("laced", "laced_g"), ("even", "even_g"),
                                       ("counts", "counts_g"), ("counts", "negative_zeros_g")):
                    cases.softmax(name, gradient, source, scale, mask)


def rotary_cases(cases):
    for heads, positions, columns in ((1, 1, 2), (6, 5, 6), (8, 7, 16), (5, 3, 128), (4, 33, 64)):
        for s, source in enumerate(FLOATS):
            name = f"r{heads}x{positions}x{columns}"
            cases.mix(name, source, (heads, positions, columns), 400 + s, 0, 8, 50)
            cases.mix(name + "_cos", source, (positions, columns // 2), 410 + s, -2, 4)
            cases.mix(name + "_sin", source, (positions, columns // 2), 420 + s, -3, 6)
            for period, rotated in ((1, 1), (4, 3), (3, 1), (2, 0)):
                for backward in (False, True):
                    cases.rotation(name, source, period, rotated, backward)
    # Products below the smallest normal number, and beyond the largest.
    for s, source in enumerate(FLOATS):
        cases.mix("far", source, (2, 9, 24), 430 + s, 0, 28 if source == "f16" else 250)
        cases.mix("far_cos", source, (9, 12), 440 + s, 0, 28 if source == "f16" else 250)
        cases.mix("far_sin", source, (9, 12), 450 + s, 0, 28 if source == "f16" else 250)
        for backward in (False, True):
            cases.rotation("far", source, 1, 1, backward)


def table_cases(cases):
    for base, positions, columns in ((10000.0, 70, 64), (500000.0, 40, 128), (1e6, 33, 6), (10.0, 5, 2), (0.001, 20, 8),
                                     (3.0e38, 4, 4), (1e-38, 4, 16), (1e4, 0, 8)):
        cosines, sines = rotary_table(base, positions, columns)
        for source in FLOATS:
            cases.add("table", F32(base).tobytes().hex(), positions, columns, source, digest(stored(cosines, source)),
                      digest(stored(sines, source)))


def swap_cases(cases):
    for i, shape in enumerate(((3, 5), (1, 7, 2), (4, 6, 8), (5, 3, 2, 7), (0, 4, 3), (33, 17, 5))):
        for source in FLOATS:
            name = "w" + "x".join(map(str, shape))
            values = cases.mix(name, source, shape, 500 + i, 0, 20, 30)
            cases.add("swap", name, source, digest(np.ascontiguousarray(values.swapaxes(0, 1)).tobytes()))


def main():
    cases = Cases()
    softmax_cases(cases)
    rotary_cases(cases)
    table_cases(cases)
    swap_cases(cases)
    origin = f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}, mpmath {mpmath.__version__}"
    head = ("# Attention beside its GEMMs by an independent implementation\n"
            f"# (tests/vectors/attention_reference.py, {origin})\n"
            "# tensors as tests/vectors/vector_tensors.py describes them; DIGEST: 64 bits of SHA-256\n"
            "# case softmax SCORES GRADIENT SOURCE SCALE MASK DIGEST(p) DIGEST(p rounded) DIGEST(scores' gradient)\n"
            "# case rotate HEADS SOURCE PERIOD ROTATED BACKWARD DIGEST; the table is HEADS_cos and HEADS_sin\n"
            "# case table BASE POSITIONS COLUMNS DTYPE DIGEST(cosines) DIGEST(sines)\n"
            "# case swap TENSOR SOURCE DIGEST\n")
    text = head + "".join(cases.writer.lines) + "".join(cases.lines)
    pathlib.Path("tests/data/attention_vectors.txt").write_text(text)


if __name__ == "__main__":
    main()
