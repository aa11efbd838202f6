"""An independent mxfp8 quantizer (1x32, 32x1 and 32x32 under E8M0 scales) in numpy and ml_dtypes, and its vectors.

Writes tests/data/mxfp8_vectors.txt. Run by hand from the repository root: python3 tests/vectors/mxfp8_reference.py
"""

import pathlib

import ml_dtypes
import numpy as np

from number_formats import ELEMENTS, F32, cast, decode, digest, e8m0_of, e8m0_reciprocal, e8m0_value, to_output
from vector_tensors import TensorWriter, as_matrix

LENGTH = 32


def tile_of(block_dim, columnwise):
    return (LENGTH, LENGTH) if block_dim == 2 else (LENGTH, 1) if columnwise else (1, LENGTH)


def spread(codes, tall, wide):
    return np.repeat(np.repeat(codes, tall, axis=0), wide, axis=1)


def quantize(x, element, block_dim, rule, rounding, overflow, columnwise):
    """(codes [M][K], E8M0 codes [M][K/32] or [M/32][K]); 2-D scales are replicated to these shapes."""
    tall, wide = tile_of(block_dim, columnwise)
    rows, columns = x.shape[0] // tall, x.shape[1] // wide
    tiles = x.astype(F32).reshape(rows, tall, columns, wide).transpose(0, 2, 1, 3).reshape(rows, columns, -1)
    scales = e8m0_of(tiles, element, rule)
    with np.errstate(over="ignore", under="ignore"):
        scaled = x.astype(F32) * spread(e8m0_reciprocal(scales), tall, wide)
    codes = cast(scaled, element, rounding, overflow)
    if block_dim == 2:
        scales = np.repeat(scales, LENGTH, axis=1 if columnwise else 0)
    return codes, scales


def dequantize(codes, scales, element, columnwise):
    tall, wide = tile_of(1, columnwise)
    with np.errstate(over="ignore", under="ignore"):
        return decode(codes, element) * spread(e8m0_value(scales), tall, wide)


def tensors(writer):
    for tensor in ("fc1.x", "fc1.weight", "fc1.dy"):
        writer.real(tensor, "bf16", tensor, 0, 0, 256, 512)
        writer.real(tensor + ".window", "f32", tensor, 3, 5, 96, 224)
        writer.real(tensor + ".window", "f16", tensor, 3, 5, 96, 224)
    for source, bias in (("bf16", 127), ("f16", 15), ("f32", 127)):
        largest = 2 * bias
        writer.mix("one_tile", source, (32, 32), 1, bias - 6, 12)
        writer.mix("row_of_tiles", source, (32, 288), 2, bias - 6, 12)
        writer.mix("column_of_tiles", source, (288, 32), 3, bias - 6, 12)
        writer.mix("three_dims", source, (3, 64, 96), 4, bias - 6, 12)
        writer.mix("odd_leading_dims", source, (4, 8, 64), 5, bias - 6, 12)
        writer.mix("every_exponent", source, (128, 160), 6, 0, largest + 1)
        writer.mix("specials", source, (96, 128), 7, bias - 6, 12, 50)
        writer.mix("some_specials", source, (96, 256), 8, bias - 6, 12, 2000)
        writer.mix("subnormal", source, (64, 64), 9, 0, 1)
        writer.mix("nearly_subnormal", source, (64, 64), 10, 0, 3)
        writer.mix("smallest_scales", source, (64, 256), 11, 0, min(12, largest))
        writer.mix("largest", source, (64, 64), 12, largest - 1, 2)
        writer.ladder("row_ladder", source, (320, 160), 13, 1, 32, 0, largest + 1)
        writer.ladder("column_ladder", source, (160, 320), 14, 32, 1, 0, largest + 1)
        writer.ladder("tile_ladder", source, (64, 576), 15, 32, 32, bias - 3, 6)
        writer.ladder("tile_ladder_tiny", source, (64, 576), 16, 32, 32, 0, 6)
        writer.ladder("tile_ladder_huge", source, (64, 576), 17, 32, 32, largest - 5, 6)
        zeros = np.zeros((32, 64), F32)
        zeros[1, :], zeros[2, 32:] = -0.0, np.linspace(-1, 1, 32)
        writer.hex("zero_blocks", source, zeros)
        odd = np.zeros((32, 64), F32)
        odd[0, 0], odd[0, 1], odd[1, :32], odd[2, 5], odd[3, 40] = np.nan, 3.0, np.nan, np.inf, -np.inf
        odd[2, 6], odd[1, 63], odd[3, 41] = 300.0, -0.0, 65504.0
        writer.hex("nan_and_infinite_blocks", source, odd)


def knob_sets(element):
    base = dict(block_dim=1, rule="round_up", rounding="nearest_even", overflow="saturate")
    for rule in ("round_up", "floor", "ceil", "even", "nearest"):
        yield {**base, "rule": rule}
        yield {**base, "rule": rule, "block_dim": 2}
    yield {**base, "rounding": "nearest_away"}
    if element.startswith("f8"):  # The others have no NaN to overflow to.
        yield {**base, "rule": "floor", "overflow": "nan"}
        yield {**base, "rule": "floor", "block_dim": 2, "rounding": "nearest_away", "overflow": "nan"}


def packed(codes, element):
    """FP4: two codes to a byte along the last dim, the even index in the low nibble."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4) if element == "f4_e2m1" else codes


def write_case(out, name, source, x, element, knobs):
    matrix = as_matrix(x)
    out.write(f"case {name} {source} {element} {knobs['block_dim']} {knobs['rule']} {knobs['rounding']} "
              f"{knobs['overflow']}")
    for columnwise in (False, True):
        codes, scales = quantize(matrix, element, columnwise=columnwise, **knobs)
        values = dequantize(codes, scales, element, columnwise)
        out.write(f" {digest(packed(codes, element))} {digest(scales)} "
                  f"{digest(*(to_output(values, dtype) for dtype in ('bf16', 'f16', 'f32')))}")
    out.write("\n")


def main():
    path = pathlib.Path("tests/data/mxfp8_vectors.txt")
    writer = TensorWriter()
    tensors(writer)
    with path.open("w") as out:
        out.write(
            f"# mxfp8 by an independent implementation (tests/vectors/mxfp8_reference.py, numpy {np.__version__}, "
            f"ml_dtypes {ml_dtypes.__version__})\n"
            "# tensors: tests/vectors/vector_tensors.py\n"
            "# case NAME SOURCE ELEMENT BLOCK_DIM E8M0_RULE ROUNDING OVERFLOW, then for rowwise and columnwise "
            "DIGEST(codes) DIGEST(scale_inv) DIGEST(dequantized bf16, f16, f32); DIGEST: 64 bits of SHA-256\n")
        out.writelines(writer.lines)
        cases = 0
        for (name, source), x in writer.tensors.items():
            # FP6 and FP4 by few tensors: they differ in the format alone.
            small = name in ("fc1.x", "fc1.dy.window", "row_ladder", "specials", "some_specials", "tile_ladder")
            for element in list(ELEMENTS) if small else ["f8_e4m3", "f8_e5m2"]:
                for knobs in knob_sets(element):
                    write_case(out, name, source, x, element, knobs)
                    cases += 1
        print(cases, "cases", out.tell(), "bytes")


if __name__ == "__main__":
    main()
