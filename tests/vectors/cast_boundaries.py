"""Writes tests/data/cast_boundaries.txt: for each format the first binary32 bit pattern of every code.

Casts are monotone in the magnitude, so the list of first patterns characterises a cast of all 2^31 magnitudes. They
are found by casting every one of them with ml_dtypes (clamped to the largest finite value for FP8, since ml_dtypes does
not saturate) and looking for the places where the code changes; monotonicity is checked on the way.

Run by hand from the repository root: python3 tests/vectors/cast_boundaries.py
"""

import hashlib
import pathlib

import ml_dtypes
import numpy as np

CHUNK = 1 << 24
INFINITY = 0x7F800000

FORMATS = [
    ("f8_e4m3", ml_dtypes.float8_e4m3fn, np.uint8, True),
    ("f8_e5m2", ml_dtypes.float8_e5m2, np.uint8, True),
    ("f8_e4m3_overflow_nan", ml_dtypes.float8_e4m3fn, np.uint8, False),
    ("f8_e5m2_overflow_nan", ml_dtypes.float8_e5m2, np.uint8, False),
    ("f16", np.float16, np.uint16, False),
    ("bf16", ml_dtypes.bfloat16, np.uint16, False),
]


def boundaries(dtype, storage, saturate):
    """Pairs (first pattern, code) over magnitudes 0 .. infinity."""
    found = []
    last = -1
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    for begin in range(0, INFINITY + 1, CHUNK):
        bits = np.arange(begin, min(begin + CHUNK, INFINITY + 1), dtype=np.uint32)
        values = bits.view(np.float32)
        if saturate:
            values = np.minimum(values, limit)
        with np.errstate(over="ignore"):
            codes = values.astype(dtype).view(storage).astype(np.int64)
        # NaN codes differ between implementations: one class, the canonical one.
        if dtype is ml_dtypes.float8_e4m3fn:
            codes[codes == 0xFF] = 0x7F
        steps = np.diff(codes, prepend=last)
        assert (steps >= 0).all(), "not monotone"
        for index in np.nonzero(steps)[0]:
            found.append((int(bits[index]), int(codes[index])))
        last = int(codes[-1])
    return found


def main():
    path = pathlib.Path("tests/data/cast_boundaries.txt")
    with path.open("w") as out:
        out.write(
            f"# First binary32 pattern of every magnitude code, in hex, found by casting all 2^31 magnitudes with "
            f"ml_dtypes {ml_dtypes.__version__} and numpy {np.__version__} (tests/vectors/cast_boundaries.py)\n")
        for name, dtype, storage, saturate in FORMATS:
            found = boundaries(dtype, storage, saturate)
            print(name, len(found))
            lines = "".join(f"{bits:08x} {code:x}\n" for bits, code in found)
            if len(found) > 256:
                # Too many to list: the SHA-256 of the lines.
                digest = hashlib.sha256(lines.encode()).hexdigest()
                out.write(f"digest {name} {len(found)} {digest}\n")
            else:
                out.write(f"format {name} {len(found)}\n{lines}")


if __name__ == "__main__":
    main()
