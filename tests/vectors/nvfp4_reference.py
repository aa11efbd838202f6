"""An independent nvfp4 quantizer in numpy and ml_dtypes, and its vectors: 1x16 and 16x16 blocks, row-scaled, Hadamard,
stochastic rounding, 4over6, and the scale rules of other implementations.

Writes tests/data/nvfp4_vectors.txt. Run by hand from the repository root: python3 tests/vectors/nvfp4_reference.py
"""

import pathlib

import ml_dtypes
import numpy as np

from number_formats import (F32, FLT_MAX, amax_of, cast, decode, digest, hex_of, philox4x32_10, to_output)
from vector_tensors import TensorWriter, as_matrix

LENGTH = 16
SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])
HADAMARD = np.array([[(-1) ** bin(i & j).count("1") for j in range(LENGTH)] for i in range(LENGTH)])
QUIET = dict(over="ignore", under="ignore", invalid="ignore", divide="ignore")


def hadamard(lines):
    """Every 16 elements g of a line of bf16 to g R, R = diag(SIGNS) HADAMARD / 4: one fused step of 16 products with F = 25
    from a zero accumulator, then RNE to bf16. A step aligns the products to their largest exponent, truncates, sums
    exactly and truncates the sum to 24 bits."""
    groups = np.ascontiguousarray(lines).reshape(-1, LENGTH)
    bits = groups.view(np.uint16).astype(np.int64)
    field, mantissa = (bits >> 7) & 0xFF, bits & 0x7F
    significand = np.where(field > 0, mantissa | 0x80, mantissa)
    exponent = np.where(field > 0, field, 1) - 127 - 2  # Of the product with 1/4.
    largest = np.where(significand > 0, exponent, -10**6).max(axis=1, keepdims=True)
    largest = np.maximum(largest, -133)
    fraction_bits = 25
    shift = np.minimum(largest - exponent, 62)
    terms = (significand << (fraction_bits - 7)) >> np.maximum(shift, 0)
    terms = np.where(significand > 0, terms, 0) * np.where(bits >> 15, -1, 1)
    finite = (field < 255).all(axis=1)
    sums = np.where(finite[:, None], terms, 0) @ (SIGNS[:, None] * HADAMARD)
    size = np.abs(sums)
    length = np.zeros_like(size)
    for bit in range(40):
        length += (size >> bit) > 0
    # Toward zero to 24 bits, and to the multiples of 2^-149.
    unit = largest - fraction_bits
    drop = np.maximum(np.maximum(length - 24, -149 - unit), 0)
    kept = (size >> drop) << drop
    with np.errstate(**QUIET):
        exact = np.ldexp(kept.astype(np.float64), unit)
        values = np.where(exact >= 2.0**128, np.inf, exact).astype(F32)
        values = np.where((sums < 0) & (values != 0), -values, values)
        # Infinities: one sign wins, two signs or a NaN give NaN.
        wide = groups.astype(F32)
        infinite = np.where(np.isinf(wide), np.sign(np.where(np.isnan(wide), 0, wide)), 0).astype(np.int64)
        positive = ((infinite[:, :, None] * (SIGNS[:, None] * HADAMARD)[None]) > 0).any(axis=1)
        negative = ((infinite[:, :, None] * (SIGNS[:, None] * HADAMARD)[None]) < 0).any(axis=1)
        values = np.where(positive, F32(np.inf), values)
        values = np.where(negative, F32(-np.inf), values)
        values = np.where((positive & negative) | np.isnan(wide).any(axis=1)[:, None], F32(np.nan), values)
        return values.astype(F32).astype(ml_dtypes.bfloat16).reshape(lines.shape)


def random_bytes(lines, length, seed, call_id, columnwise):
    """Byte i of a block is byte i % 4 of word i / 4 of Philox4x32-10 at (block in the line, line, call_id, usage)."""
    line, block = np.meshgrid(np.arange(lines), np.arange(length // LENGTH), indexing="ij")
    usage = np.full_like(line, int(columnwise))
    counter = np.stack([block, line, np.full_like(line, call_id), usage], axis=-1)
    words = philox4x32_10(counter.astype(np.uint32), (seed & 0xFFFFFFFF, seed >> 32))
    return words.astype("<u4").view(np.uint8).reshape(lines, length)


def stochastic_codes(scaled, random):
    """E2M1 codes by eight random bits per element."""
    nan, size = np.isnan(scaled), np.abs(scaled).astype(F32)

    def step(a):
        return np.where(a >= 4, F32(2), np.where(a >= 2, F32(1), F32(0.5)))

    with np.errstate(**QUIET):
        u = random.astype(F32) / F32(256)
        # fma: the product is exact, and binary64 holds the sum of a binary32 number and it up to 2^29 times its size;
        # beyond 6 nothing depends on the sum.
        clipped = np.minimum(size, F32(64)).astype(np.float64)
        t = (clipped + (u * step(size)).astype(np.float64)).astype(F32)
        q = np.minimum(np.floor(t / step(t)) * step(t), F32(6))
        q = np.where(nan, F32(6), q)
    return cast(np.where(np.signbit(scaled) & ~nan, -q, q), "f4_e2m1")


def encode_scale(amax, bound):
    """S of the two-level rule for a global amax, or one per line."""
    with np.errstate(**QUIET):
        s = np.minimum(F32(6 * bound) / np.where(amax == 0, F32(1), amax).astype(F32), FLT_MAX)
    return np.where((amax == 0) | (s == 0), F32(1), s).astype(F32)


def multiplier(scale_codes, s):
    with np.errstate(**QUIET):
        d = (F32(1) / s).astype(F32)
        return np.minimum(F32(1) / (decode(scale_codes, "f8_e4m3") * d), FLT_MAX).astype(F32)


def per_element(per_block):
    return np.repeat(per_block, LENGTH, axis=1)


def block_amaxes(lines, block_dim):
    blocks = amax_of(lines.reshape(lines.shape[0], -1, LENGTH), axis=2)
    if block_dim == 2:
        tiles = blocks.reshape(-1, LENGTH, blocks.shape[1]).max(axis=1)
        blocks = np.repeat(tiles, LENGTH, axis=0)
    return blocks


def four_over_six(wide, blocks, amax, s, bound, mode, block_dim, distances=(8, 4, 2, 1)):
    """Codes and scale codes of the better of two scales per block; the sums of a tile's lines are added up at `distances`."""
    with np.errstate(**QUIET):
        base = (blocks / F32(6)).astype(F32) * s
        candidates = []
        for scale in (base, (base * F32(1.5)).astype(F32)):
            scale_codes = cast(np.minimum(scale, F32(448)), "f8_e4m3")
            codes = cast(wide * per_element(multiplier(scale_codes, s)), "f4_e2m1")
            value = decode(codes, "f4_e2m1") * per_element(decode(scale_codes, "f8_e4m3"))
            value = ((value * amax).astype(F32) / F32(6 * bound)).astype(F32)
            difference = (value - wide).astype(F32)
            terms = np.abs(difference) if mode == "mae" else (difference * difference).astype(F32)
            terms = terms.reshape(terms.shape[0], -1, LENGTH)
            error = np.zeros(terms.shape[:2], F32)
            for i in range(LENGTH):
                error = (error + terms[:, :, i]).astype(F32)
            if block_dim == 2:
                lanes = error.reshape(-1, LENGTH, error.shape[1])
                for distance in distances:  # Only line 0 is read in the end.
                    lanes = (lanes + np.roll(lanes, -distance, axis=1)).astype(F32)
                error = np.repeat(lanes[:, 0], LENGTH, axis=0)
            candidates.append((codes, scale_codes, error))
        (codes6, scales6, error6), (codes4, scales4, error4) = candidates
        take4 = error4 < error6
    return np.where(per_element(take4), codes4, codes6), np.where(take4, scales4, scales6)


def quantize(x, columnwise, *, block_dim, rule, rounding, row_scaled, four, bound, use_hadamard, seed, call_id):
    """(codes [lines][length], scale codes, amax) of one direction; lines are rows or columns."""
    lines = np.ascontiguousarray(x.T if columnwise else x)
    if use_hadamard and columnwise:
        lines = hadamard(lines)
    wide = lines.astype(F32)
    amax = amax_of(wide, axis=1)[:, None] if row_scaled else amax_of(wide.reshape(1, -1), axis=1)[:, None]
    blocks = block_amaxes(lines, block_dim)
    with np.errstate(**QUIET):
        if rule == "two_level":
            s = encode_scale(amax, bound)
            if four != "none":
                codes, scale_codes = four_over_six(wide, blocks, amax, s, bound, four, block_dim)
                return codes, scale_codes, amax.reshape(-1)
            t = np.minimum((blocks * (s * F32(F32(1) / F32(6))).astype(F32)).astype(F32), FLT_MAX)
            scale_codes = cast(t, "f8_e4m3")
            scaled = (wide * per_element(multiplier(scale_codes, s))).astype(F32)
        else:
            g = F32(1)
            if rule == "two_level_clamped":
                g = (amax / F32(2688)).astype(F32)
                g = np.where((g == 0) | np.isinf(g), F32(1), g).astype(F32)
            t = ((blocks / F32(6)).astype(F32) / g).astype(F32)
            scale_codes = cast(np.minimum(np.maximum(t, F32(2.0**-6)), F32(448)), "f8_e4m3")
            scaled = (wide / per_element((g * decode(scale_codes, "f8_e4m3")).astype(F32))).astype(F32)
    if rounding == "stochastic":
        codes = stochastic_codes(scaled, random_bytes(*lines.shape, seed, call_id, columnwise))
    else:
        codes = cast(scaled, "f4_e2m1", rounding)
    return codes, scale_codes, amax.reshape(-1)


def dequantize(codes, scale_codes, amax, rule, bound):
    with np.errstate(**QUIET):
        factor = decode(scale_codes, "f8_e4m3")
        if rule != "single_level":
            factor = (factor * amax[:, None]).astype(F32) * (F32(1) / F32(6 * bound))
        return decode(codes, "f4_e2m1") * per_element(factor.astype(F32))


def packed(codes):
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def near_ties():
    """[32][48]: for each bound a tile, and below it its transpose, that takes another scale by mae where the sums of its lines
    are added up at distances 1, 2, 4, 8; and the amax. Few values of few bits make the candidates nearly equal."""
    rng, amax, parts = np.random.default_rng(6), np.ones((1, 1), F32), []
    for bound in (256, 448):
        differs = np.zeros(1, bool)
        while not differs.any():
            shape = (2048, LENGTH, LENGTH)
            x = np.ldexp(rng.integers(4, 8, shape), rng.integers(-7, -3, shape)) * rng.choice([-1, 1], shape)
            x *= rng.random(shape) < (0.05 if bound == 256 else 0.15)
            x[:, 0, 0] = 0.5
            lines = x.reshape(-1, LENGTH).astype(F32)
            blocks, s = block_amaxes(lines, 2), encode_scale(amax, bound)
            one, other = (four_over_six(lines, blocks, amax, s, bound, "mae", 2, distances)[1]
                          for distances in ((8, 4, 2, 1), (1, 2, 4, 8)))
            differs = (one != other)[::LENGTH, 0]
        tile = x[differs.argmax()]
        parts.append(np.concatenate([tile, tile.T]))
    return np.concatenate([*parts, np.eye(2 * LENGTH, LENGTH)], axis=1)


def tensors(writer):
    for tensor in ("fc1.x", "fc1.weight", "fc1.dy"):
        writer.real(tensor, "bf16", tensor, 0, 0, 256, 512)
        writer.real(tensor + ".window", "f32", tensor, 3, 5, 96, 224)
        writer.real(tensor + ".window", "f16", tensor, 3, 5, 96, 224)
    writer.hex("near_ties", "bf16", near_ties())
    for source, bias in (("bf16", 127), ("f16", 15), ("f32", 127)):
        largest = 2 * bias
        writer.mix("one_tile", source, (32, 32), 1, bias - 6, 12)
        writer.mix("sixteens", source, (48, 80), 2, bias - 6, 12)
        writer.mix("wide", source, (32, 352), 3, bias - 6, 12)
        writer.mix("tall", source, (352, 32), 4, bias - 6, 12)
        writer.mix("three_dims", source, (4, 24, 96), 5, bias - 6, 12)
        writer.mix("narrow_exponents", source, (96, 96), 6, bias - 1, 2)
        writer.mix("every_exponent", source, (128, 160), 7, 0, largest + 1)
        writer.mix("tiny_blocks", source, (64, 128), 8, max(0, bias - 24), 25)
        writer.mix("specials", source, (96, 128), 9, bias - 6, 12, 50)
        writer.mix("some_specials", source, (64, 128), 10, bias - 6, 12, 3000)
        writer.mix("subnormal", source, (64, 64), 11, 0, 1)
        writer.mix("nearly_subnormal", source, (64, 64), 12, 0, 3)
        writer.mix("largest", source, (64, 64), 13, largest - 1, 2)
        writer.ladder("row_ladder", source, (64, 224), 14, 1, 16, bias - 12, 19)
        writer.ladder("column_ladder", source, (224, 64), 15, 16, 1, bias - 12, 19)
        writer.ladder("tile_ladder", source, (64, 448), 16, 16, 16, bias - 10, 18)
        writer.ladder("each_row", source, (96, 32), 17, 1, 32, max(0, bias - 8), 16)
        zeros = np.zeros((32, 64), F32)
        zeros[1, :], zeros[2, 32:] = -0.0, np.linspace(-1, 1, 32)
        writer.hex("zero_blocks", source, zeros)
        writer.hex("all_zero", source, np.zeros((32, 32), F32) * np.array([1, -1] * 16, F32))
        odd = np.zeros((32, 64), F32)
        odd[0, 0], odd[0, 1], odd[1, :32], odd[2, 5], odd[3, 40] = np.nan, 3.0, np.nan, np.inf, -np.inf
        odd[2, 6], odd[1, 63], odd[3, 41] = 300.0, -0.0, 65504.0
        writer.hex("nan_and_infinite_blocks", source, odd)
        # Under an infinite amax an error is NaN where a code is 0, which 0.3 is if 6 is to become 4, else infinite.
        beside = np.tile(np.array([0.3, 1, -1, 2, -2, 3, -3, 6], F32), (32, 4))
        beside[0, 0] = np.inf
        writer.hex("beside_infinity", source, beside)
        grid = np.tile(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32), (32, 2))
        writer.hex("grid", source, grid)
        middles = np.tile(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], F32), (32, 4))
        writer.hex("middles", source, middles * np.array([1, -1] * 16, F32)[:, None])
        for name, amax in (("2688", 2688.0), ("power", 1.0), ("6", 6.0), ("just_above", 2.0078125)):
            values = np.linspace(-1, 1, 32 * 32).reshape(32, 32).astype(F32)
            values[7, 9] = 1.0
            writer.hex("amax_" + name, source, values * F32(amax))


def knob_sets(source):
    base = dict(block_dim=1, rule="two_level", rounding="nearest_even", row_scaled=False, four="none", bound=448,
                use_hadamard=False, seed=0, call_id=0)
    yield base
    yield {**base, "block_dim": 2}
    yield {**base, "rounding": "nearest_away"}
    yield {**base, "rounding": "stochastic", "seed": 0x123456789ABCDEF0, "call_id": 7}
    yield {**base, "rounding": "stochastic", "seed": 3, "call_id": 0xFFFFFFFF, "block_dim": 2}
    yield {**base, "row_scaled": True}
    for four in ("mae", "mse"):
        for bound in (256, 448):
            for block_dim in (1, 2):
                yield {**base, "four": four, "bound": bound, "block_dim": block_dim}
    yield {**base, "four": "mae", "bound": 256, "row_scaled": True}
    yield {**base, "four": "mse", "bound": 448, "row_scaled": True}
    yield {**base, "rule": "two_level_clamped"}
    yield {**base, "rule": "single_level"}
    yield {**base, "rule": "single_level", "block_dim": 2}
    if source == "bf16":
        yield {**base, "use_hadamard": True}
        yield {**base, "use_hadamard": True, "rounding": "stochastic", "seed": 1 << 63, "call_id": 1}


def write_case(out, name, source, x, knobs):
    matrix = as_matrix(x)
    out.write(f"case {name} {source} {knobs['block_dim']} {knobs['rule']} {knobs['rounding']} {int(knobs['row_scaled'])} "
              f"{knobs['four']} {knobs['bound']} {int(knobs['use_hadamard'])} {knobs['seed']} {knobs['call_id']}")
    for columnwise in (False, True):
        if columnwise and knobs["row_scaled"]:
            refused = source != "bf16" or knobs["four"] != "none" or matrix.shape[0] % 32 or matrix.shape[1] % 32
            if refused:
                out.write(" none - - -")
                continue
        codes, scale_codes, amax = quantize(matrix, columnwise, **knobs)
        values = dequantize(codes, scale_codes, amax, knobs["rule"], knobs["bound"])
        shown_amax = "-" if knobs["rule"] == "single_level" else hex_of(amax) if amax.size == 1 else digest(amax)
        shown_values = "-" if columnwise else digest(*(to_output(values, dtype) for dtype in ("bf16", "f16", "f32")))
        out.write(f" {digest(packed(codes))} {digest(scale_codes)} {shown_amax} {shown_values}")
    out.write("\n")


def main():
    path = pathlib.Path("tests/data/nvfp4_vectors.txt")
    writer = TensorWriter()
    tensors(writer)
    with path.open("w") as out:
        out.write(
            f"# nvfp4 by an independent implementation (tests/vectors/nvfp4_reference.py, numpy {np.__version__}, ml_dtypes "
            f"{ml_dtypes.__version__})\n"
            "# tensors: tests/vectors/vector_tensors.py\n"
            "# case NAME SOURCE BLOCK_DIM RULE ROUNDING ROW_SCALED 4OVER6 E4M3_MAX HADAMARD SEED CALL_ID, then for rowwise "
            "and columnwise DIGEST(codes)|none DIGEST(scales) AMAX|DIGEST(amaxes)|- DIGEST(dequantized bf16, f16, f32)|-; "
            "DIGEST: 64 bits of SHA-256\n")
        out.writelines(writer.lines)
        cases = 0
        for (name, source), x in writer.tensors.items():
            for knobs in knob_sets(source):
                write_case(out, name, source, x, knobs)
                cases += 1
        print(cases, "cases", out.tell(), "bytes")


if __name__ == "__main__":
    main()
