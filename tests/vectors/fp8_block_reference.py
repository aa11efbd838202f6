"""An independent quantizer of fp8_block (blocks of 128 and tiles of 128x128) and of fp8_rowwise (one scale per line) in numpy
and ml_dtypes, and their vectors.

Writes tests/data/fp8_block_vectors.txt and tests/data/fp8_rowwise_vectors.txt. Run by hand from the repository root: python3 tests/vectors/fp8_block_reference.py
"""

import pathlib

import ml_dtypes
import numpy as np

from number_formats import (ELEMENTS, F32, SOURCE_MAX, amax_of, cast, compute_scale, decode, digest, hex_of, to_output)
from vector_tensors import TensorWriter, as_matrix

LENGTH = 128


def spread(scales, tall, wide, shape):
    """Scales per tile to scales per element."""
    return np.repeat(np.repeat(scales, tall, axis=0), wide, axis=1)[:shape[0], :shape[1]]


def tile_amaxes(x, tall, wide):
    """amax of every tall x wide tile; elements beyond the edges count as 0."""
    rows, columns = -(-x.shape[0] // tall), -(-x.shape[1] // wide)
    padded = np.zeros((rows * tall, columns * wide), F32)
    padded[:x.shape[0], :x.shape[1]] = x.astype(F32)
    return amax_of(padded.reshape(rows, tall, columns, wide).transpose(0, 2, 1, 3).reshape(rows, columns, -1), axis=2)


def quantize(x, source, element, block_dim, power_2, epsilon, rule, rounding, overflow, columnwise, length):
    """(codes, scale_inv) in the layout of one direction."""
    tall, wide = (length, length) if block_dim == 2 else (length, 1) if columnwise else (1, length)
    scale = compute_scale(tile_amaxes(x, tall, wide), ELEMENTS[element][1], power_2, epsilon, SOURCE_MAX[source], rule)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = x.astype(F32) * spread(scale, tall, wide, x.shape)
    codes, scale_inv = cast(scaled, element, rounding, overflow), (F32(1) / scale).astype(F32)
    return (np.ascontiguousarray(codes.T), np.ascontiguousarray(scale_inv.T)) if columnwise else (codes, scale_inv)


def dequantize(codes, scale_inv, element, block_dim, columnwise, length):
    """Values in the shape of the source."""
    tall, wide = (length, length) if block_dim == 2 else (1, length)
    with np.errstate(over="ignore", invalid="ignore"):
        values = decode(codes, element) * spread(scale_inv, tall, wide, codes.shape)
    return values.T if columnwise else values


def block_tensors(writer):
    for tensor in ("fc1.x", "fc1.weight", "fc1.dy"):
        writer.real(tensor, "bf16", tensor, 0, 0, 160, 320)
        writer.real(tensor + ".window", "f32", tensor, 3, 5, 131, 259)
        writer.real(tensor + ".window", "f16", tensor, 3, 5, 131, 259)
    for source, bias in (("bf16", 127), ("f16", 15), ("f32", 127)):
        largest = 2 * bias
        writer.mix("one", source, (1, 1), 1, bias, 1)
        writer.mix("row", source, (1, 300), 2, bias - 6, 12)
        writer.mix("vector", source, (257,), 3, bias - 6, 12)
        writer.mix("column", source, (300, 1), 4, bias - 6, 12)
        writer.mix("below", source, (127, 127), 5, bias - 6, 12)
        writer.mix("at", source, (128, 128), 6, bias - 6, 12)
        writer.mix("above", source, (129, 129), 7, bias - 6, 12)
        writer.mix("tall", source, (260, 40), 8, bias - 6, 12)
        writer.mix("wide", source, (40, 260), 9, bias - 6, 12)
        writer.mix("three_dims", source, (2, 67, 140), 10, bias - 6, 12)
        writer.mix("every_exponent", source, (130, 258), 11, 0, largest + 1)
        writer.mix("specials", source, (136, 264), 12, bias - 6, 12, 100)
        writer.mix("some_specials", source, (136, 264), 13, bias - 6, 12, 6000)
        writer.mix("subnormal", source, (130, 130), 14, 0, 1)
        writer.mix("nearly_subnormal", source, (130, 130), 15, 0, 3)
        writer.mix("largest", source, (130, 130), 16, largest - 1, 2)
        if source != "f32":
            writer.ladder("row_ladder", source, (310, 640), 17, 1, 128, 0, largest + 1)
        if source != "bf16":
            writer.ladder("column_ladder", source, (640, 310), 18, 128, 1, 0, largest + 1)
        writer.ladder("tile_ladder", source, (256, 384), 19, 128, 128, {"bf16": 0, "f16": bias, "f32": largest}[source], 1)
        zeros = np.zeros((3, 260), F32)
        zeros[1, :], zeros[2, 128:] = -0.0, np.linspace(-1, 1, 132)
        writer.hex("zero_blocks", source, zeros)
        odd = np.zeros((4, 130), F32)
        odd[0, 0], odd[0, 1], odd[1, :128], odd[2, 5], odd[3, 7] = np.nan, 3.0, np.nan, np.inf, -np.inf
        odd[2, 6], odd[1, 129] = 300.0, -0.0
        writer.hex("nan_and_infinite_blocks", source, odd)


def line_tensors(writer):
    for tensor in ("fc1.x", "fc1.weight", "fc1.dy"):
        writer.real(tensor, "bf16", tensor, 0, 0, 160, 320)
        writer.real(tensor + ".window", "f32", tensor, 3, 5, 131, 259)
        writer.real(tensor + ".window", "f16", tensor, 3, 5, 131, 259)
    for source, bias in (("bf16", 127), ("f16", 15), ("f32", 127)):
        largest = 2 * bias
        writer.mix("one", source, (1, 1), 1, bias, 1)
        writer.mix("row", source, (1, 300), 2, bias - 6, 12)
        writer.mix("vector", source, (257,), 3, bias - 6, 12)
        writer.mix("column", source, (300, 1), 4, bias - 6, 12)
        writer.mix("at", source, (128, 128), 6, bias - 6, 12)
        writer.mix("above", source, (129, 129), 7, bias - 6, 12)
        writer.mix("wide", source, (40, 2180), 9, bias - 6, 12)
        writer.mix("three_dims", source, (2, 67, 140), 10, bias - 6, 12)
        writer.mix("every_exponent", source, (130, 258), 11, 0, largest + 1)
        writer.mix("specials", source, (136, 264), 12, bias - 6, 12, 100)
        writer.mix("some_specials", source, (256, 264), 13, bias - 6, 12, 60000)
        writer.mix("subnormal", source, (130, 130), 14, 0, 1)
        writer.mix("largest", source, (130, 130), 16, largest - 1, 2)
        writer.ladder("row_ladder", source, (310, 150), 17, 1, 150, 0, largest + 1)
        writer.ladder("column_ladder", source, (150, 310), 18, 150, 1, 0, largest + 1)
        zeros = np.zeros((4, 130), F32)
        zeros[1, :], zeros[2, :65] = -0.0, np.linspace(-1, 1, 65)
        writer.hex("zero_lines", source, zeros)
        odd = np.zeros((4, 130), F32)
        odd[0, 0], odd[0, 1], odd[1, :], odd[2, 5], odd[3, 7] = np.nan, 3.0, np.nan, np.inf, -np.inf
        odd[2, 6], odd[3, 129] = 300.0, -0.0
        writer.hex("nan_and_infinite_lines", source, odd)


def knob_sets(is_large, has_tiles):
    base = dict(block_dim=1, power_2=True, epsilon=0.0, rule="divide", rounding="nearest_even", overflow="saturate")
    for block_dim in (1, 2) if has_tiles else (1,):
        changes = [dict(), dict(power_2=False), dict(epsilon=0.37), dict(power_2=False, epsilon=1e-38),
                   dict(power_2=False, rule="reciprocal"),
                   dict(power_2=False, rounding="nearest_away", overflow="nan")]
        for change in changes[:2] if is_large else changes:
            yield {**base, "block_dim": block_dim, **change}


def write_case(out, name, source, x, element, knobs, length):
    matrix = as_matrix(x)
    length = length or max(matrix.shape)  # A line is one block.
    out.write(f"case {name} {source} {element} {knobs['block_dim']} {int(knobs['power_2'])} "
              f"{hex_of(F32(knobs['epsilon']))} {knobs['rule']} {knobs['rounding']} {knobs['overflow']}")
    for columnwise in (False, True):
        codes, scale_inv = quantize(matrix, source, element, columnwise=columnwise, length=length, **knobs)
        values = dequantize(codes, scale_inv, element, knobs["block_dim"], columnwise, length)
        out.write(f" {digest(codes)} {digest(scale_inv)} "
                  f"{digest(*(to_output(values, dtype) for dtype in ('bf16', 'f16', 'f32')))}")
    out.write("\n")


def write_vectors(format_name, tensors, length):
    """`length`: of a block; None for lines."""
    writer = TensorWriter()
    tensors(writer)
    with pathlib.Path(f"tests/data/{format_name}_vectors.txt").open("w") as out:
        out.write(
            f"# {format_name} by an independent implementation (tests/vectors/fp8_block_reference.py, numpy {np.__version__}, "
            f"ml_dtypes {ml_dtypes.__version__})\n"
            "# tensors: tests/vectors/vector_tensors.py\n"
            "# case NAME SOURCE ELEMENT BLOCK_DIM POW2 EPS RULE ROUNDING OVERFLOW, then for rowwise and columnwise "
            "DIGEST(codes) DIGEST(scale_inv) DIGEST(dequantized bf16, f16, f32); little-endian hex; DIGEST: "
            "64 bits of SHA-256\n")
        out.writelines(writer.lines)
        cases = 0
        for (name, source), x in writer.tensors.items():
            for element in ("f8_e4m3", "f8_e5m2"):
                for knobs in knob_sets(x.size > 50000, length is not None):
                    write_case(out, name, source, x, element, knobs, length)
                    cases += 1
        print(format_name, cases, "cases", out.tell(), "bytes")


def main():
    write_vectors("fp8_block", block_tensors, LENGTH)
    write_vectors("fp8_rowwise", line_tensors, None)


if __name__ == "__main__":
    main()
