"""Seeded tensors by an independent implementation, and the vectors made with it.

Philox in Python integers, normal quantiles by the standard library (statistics.NormalDist), exponentials by math.exp,
casts by ml_dtypes: only the definition of each distribution is shared with the C++ code. Both sides differ by about
1e-15 before they are rounded to binary32, so a difference in any bit of these vectors is a bug. Writes
tests/data/generate_vectors.txt. Run by hand from the repository root: python3 tests/vectors/generate_reference.py
"""

import hashlib
import math
import pathlib
import statistics

import ml_dtypes
import numpy as np

F32 = np.float32
MASK = 0xFFFFFFFF
INV_CDF = statistics.NormalDist().inv_cdf
COUNT = 5003
SHOWN = 8

# dtype name -> numpy type, smallest normal, largest finite, canonical NaN code
DTYPES = {
    "f32": (np.float32, 2.0**-126, float(np.finfo(F32).max), 0x7FFFFFFF),
    "bf16": (ml_dtypes.bfloat16, 2.0**-126, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), 0x7FFF),
    "f16": (np.float16, 2.0**-14, 65504.0, 0x7FFF),
    "f8_e4m3": (ml_dtypes.float8_e4m3fn, 2.0**-6, 448.0, 0x7F),
    "f8_e5m2": (ml_dtypes.float8_e5m2, 2.0**-14, 57344.0, 0x7F),
}
DISTRIBUTIONS = ["normal", "uniform", "lognormal_outliers", "subnormal_heavy", "specials", "zero", "one_huge"]


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def words(seed, stream, count):
    key = (seed & MASK, seed >> 32)
    out = []
    for block in range((count + 3) // 4):
        out += philox((block & MASK, block >> 32, stream, 0), key)
    return out[:count]


def normal(word):
    return F32(INV_CDF((word + 0.5) / 2.0**32))


def uniform(word):
    return F32((word >> 8) / 2.0**23 - 1.0)


def value(distribution, word, choice, min_normal):
    if distribution == "normal":
        return normal(word)
    if distribution == "uniform":
        return uniform(word)
    if distribution == "lognormal_outliers":
        magnitude = F32(math.exp(INV_CDF((word + 0.5) / 2.0**32)))
        if choice % 1024 == 0:
            magnitude *= F32(64)
        return -magnitude if choice >> 31 else magnitude
    if distribution == "subnormal_heavy":
        return uniform(word) * F32(min_normal) if choice % 4 else normal(word)
    if distribution == "specials":
        special = {0: np.nan, 1: np.inf, 2: -np.inf, 3: -0.0, 4: 0.0}
        return F32(special[choice % 64]) if choice % 64 in special else normal(word)
    if distribution == "one_huge":
        return normal(word) * F32(2.0**-10)
    return F32(0)


def generate(distribution, seed, dtype, count, scale):
    kind, min_normal, max_finite, canonical = DTYPES[dtype]
    pairs = zip(words(seed, 0, count), words(seed, 1, count))
    values = np.array([value(distribution, w, c, min_normal) for w, c in pairs], F32)
    if distribution == "one_huge":
        draw = philox((0, 0, 2, 0), (seed & MASK, seed >> 32))
        index = ((draw[1] << 32 | draw[0]) * count) >> 64
        values[index] = -max_finite if draw[2] >> 31 else max_finite
    with np.errstate(over="ignore", invalid="ignore"):
        values = values * F32(scale)
        nan = np.isnan(values)
        if dtype.startswith("f8"):
            values = np.clip(values, F32(-max_finite), F32(max_finite))
        codes = values.astype(kind)
    codes = codes.view({4: np.uint32, 2: np.uint16, 1: np.uint8}[codes.itemsize]).copy()
    codes[nan] = canonical
    return codes


def main():
    path = pathlib.Path("tests/data/generate_vectors.txt")
    with path.open("w") as out:
        out.write("# Seeded tensors by an independent implementation (tests/vectors/generate_reference.py)\n"
                  f"# DISTRIBUTION SEED DTYPE COUNT SCALE SHA256(bytes) FIRST_{SHOWN}_ELEMENTS\n")
        for distribution in DISTRIBUTIONS:
            for dtype in DTYPES:
                for seed, scale in ((1, 1.0), (0xFEDCBA9876543210, 0.375)):
                    codes = generate(distribution, seed, dtype, COUNT, scale)
                    out.write(f"{distribution} {seed} {dtype} {COUNT} {scale} {hashlib.sha256(codes.tobytes()).hexdigest()} "
                              f"{codes[:SHOWN].tobytes().hex()}\n")
        print(out.tell(), "bytes")


if __name__ == "__main__":
    main()
