"""An independent model, in numpy and ml_dtypes, of scales that are made by operations which flush subnormals, and its vectors:
Transformer Engine's multi-tensor kernels for weights quantized from sharded masters (docs/quantizers.md section 8.2).

Writes tests/data/flush_subnormals_vectors.txt. Run by hand from the repository root:
python3 tests/vectors/flush_subnormals_reference.py
"""

import pathlib

import ml_dtypes
import numpy as np

from number_formats import (ELEMENTS, F32, FLT_MAX, SOURCE_MAX, amax_of, bits_of, cast, digest, e8m0_reciprocal, e8m0_round_up,
                            floats_of)
from vector_tensors import TensorWriter

SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


def kept(values):
    return np.asarray(values, F32)


def flushed(values):
    """Operands before an operation and its rounded result: subnormals become zeros of their sign."""
    values = np.asarray(values, F32)
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(F32(0), values), values).astype(F32)


def less(a, b, ftz):
    return ftz(a) < ftz(b)


def divide(a, b, ftz):
    """The division correctly rounded, as both of the kernel's own are."""
    with np.errstate(all="ignore"):
        return ftz(ftz(a) / ftz(b))


def scale_and_inverse(amax, max_finite, power_2, epsilon, infinite, ftz):
    """(scale, scale_inv) of an array of amaxes, operation by operation."""
    amax = np.asarray(amax, F32)
    epsilon = np.broadcast_to(F32(epsilon), amax.shape)
    amax = np.where(less(amax, epsilon, ftz), epsilon, amax).astype(F32)
    none = np.isinf(amax) | np.isnan(amax) | (ftz(amax) == 0)
    scale = divide(np.full(amax.shape, max_finite, F32), amax, ftz)
    scale = np.where(np.isinf(scale), infinite, scale).astype(F32)
    if power_2:
        scale = floats_of(bits_of(scale) & np.uint32(0xFF800000))
    scale = np.where(none, F32(1), scale).astype(F32)
    return scale, divide(np.ones(scale.shape, F32), scale, ftz)


def e8m0_code(amax, max_finite, ftz):
    with np.errstate(all="ignore"):
        return e8m0_round_up(ftz(ftz(amax) * (F32(1) / F32(max_finite))))


def edge_amaxes():
    """Bits of magnitudes: the subnormal range and its end, and where a scale or its inverse leaves the normal range."""
    random = np.random.default_rng(17)
    bits = {0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001}
    bits |= {0x3F800000, 0x43E00000, 0x7F7FFFFF, 0x7F800000}
    for max_finite in (448.0, 57344.0):
        for power in (-126, -127, -128):
            at = int(bits_of(F32(max_finite) * F32(2) ** F32(power)).item())
            bits |= {at + step for step in (-2, -1, 0, 1, 2)}
        at = int(bits_of(F32(max_finite) / FLT_MAX).item())
        bits |= {at - 1, at, at + 1}
    bits |= set(random.integers(1, 0x800000, 8).tolist()) | set(random.integers(0x800000, 0x0A000000, 24).tolist())
    return np.array(sorted(bits), np.uint32)


def write_scales(out):
    count, parting = 0, 0
    for element in ("f8_e4m3", "f8_e5m2"):
        for power_2 in (0, 1):
            for epsilon in (0, 0x00400000, 0x00800000, 0x3A83126F):
                amaxes = edge_amaxes()
                floor, max_finite = floats_of(epsilon).item(), ELEMENTS[element][1]
                both = [scale_and_inverse(floats_of(amaxes), max_finite, power_2, floor, FLT_MAX, ftz) for ftz in (flushed, kept)]
                columns = [bits_of(part) for pair in both for part in pair]
                for row in zip(amaxes, *columns):
                    out.write(f"case scale {element} {power_2} {epsilon:08x} {' '.join(f'{int(word):08x}' for word in row)}\n")
                    count += 1
                    parting += row[1:3] != row[3:5]
    return count, parting


def write_e8m0(out):
    """bf16 amaxes, as the kernel takes, and fp32 ones around the smallest normal product, where rounding decides."""
    count, parting = 0, 0
    for element, (_, max_finite) in ELEMENTS.items():
        bits = set((np.arange(0x0000, 0x0800, 7, dtype=np.uint32) << 16).tolist()) | {0x7F7F0000, 0x3F800000}
        for power in (-126, -127):
            at = int(bits_of(F32(max_finite) * F32(2) ** F32(power)).item())
            bits |= set(range(at - 4, at + 5)) | {(at >> 16 << 16) + (step << 16) for step in (-1, 0, 1)}
        amaxes = np.array(sorted(bits), np.uint32)
        codes = [e8m0_code(floats_of(amaxes), max_finite, ftz) for ftz in (flushed, kept)]
        for amax, flush, keep in zip(amaxes, *codes):
            out.write(f"case e8m0 {element} {int(amax):08x} {flush:02x} {keep:02x}\n")
            count += 1
            parting += int(flush != keep)
    return count, parting


def tiles(x, tall, wide):
    """Tiles along the last axis, those at the edges filled with zeros."""
    rows, columns = -(-x.shape[0] // tall), -(-x.shape[1] // wide)
    padded = np.zeros((rows * tall, columns * wide), F32)
    padded[:x.shape[0], :x.shape[1]] = x.astype(F32)
    return padded.reshape(rows, tall, columns, wide).transpose(0, 2, 1, 3).reshape(rows, columns, -1)


def spread(scales, tall, wide, shape):
    return np.repeat(np.repeat(scales, tall, axis=0), wide, axis=1)[:shape[0], :shape[1]]


def scaled_codes(x, factor, element):
    """Only scales are made so: elements are multiplied as IEEE 754 says."""
    with np.errstate(all="ignore"):
        return cast(x.astype(F32) * factor, element)


def copy_of(x, source, layout, element, block_dim, power_2, epsilon, columnwise):
    """(codes, scales) as they are stored, scales flushed."""
    side = {"fp8_tensor": None, "fp8_block": 128, "mxfp8": 32}[layout]
    if side is None:
        tall, wide = x.shape
    else:
        tall, wide = (side, side) if block_dim == 2 else (side, 1) if columnwise else (1, side)
    amaxes = amax_of(tiles(x, tall, wide), axis=2)
    if layout == "mxfp8":
        scales = e8m0_code(amaxes, ELEMENTS[element][1], flushed)
        codes = scaled_codes(x, spread(e8m0_reciprocal(scales), tall, wide, x.shape), element)
        if block_dim == 2:
            scales = np.repeat(scales, side, axis=1 if columnwise else 0)
        return codes, scales
    infinite = SOURCE_MAX[source] if layout == "fp8_block" else FLT_MAX
    scale, inverse = scale_and_inverse(amaxes, ELEMENTS[element][1], power_2, epsilon, infinite, flushed)
    codes = scaled_codes(x, spread(scale, tall, wide, x.shape), element)
    return (codes.T, inverse.T) if columnwise else (codes, inverse)


def write_tensors(out, writer):
    count = 0
    floors = ((0, 0.0), (1, 0.0), (0, 2.0**-120), (1, 2.0**-130))
    for (name, source), x in writer.tensors.items():
        for layout in ("fp8_tensor", "fp8_block", "mxfp8"):
            if (layout == "fp8_tensor") != name.startswith("even_"):
                continue
            for element in ("f8_e4m3", "f8_e5m2"):
                for block_dim in (1,) if layout == "fp8_tensor" else (1, 2):
                    for power_2, epsilon in floors[:1] if layout == "mxfp8" else floors:
                        words = []
                        for columnwise in (False, True):
                            codes, scales = copy_of(x, source, layout, element, block_dim, power_2, epsilon, columnwise)
                            words += [digest(codes), digest(scales)]
                        out.write(f"case tensor {name} {source} {layout} {element} {block_dim} {power_2} "
                                  f"{bits_of(F32(epsilon)).item():08x} {' '.join(words)}\n")
                        count += 1
    return count


def tensors(writer):
    for source in ("f32", "bf16"):
        # E4M3 and E5M2 have scales with subnormal inverses up to the biased exponents 9 and 16 of their amaxes.
        writer.ladder("lines", source, (160, 384), 40, 1, 128, 0, 20)
        writer.ladder("short_lines", source, (96, 416), 41, 1, 32, 0, 20)
        writer.ladder("columns", source, (384, 160), 42, 128, 1, 0, 20)
        writer.ladder("tiles", source, (128 * 6, 128 * 5), 43, 128, 128, 0, 5)
        writer.ladder("small_tiles", source, (192, 640), 44, 32, 32, 0, 20)
        for exponent in (0, 1, 4, 8, 9, 10, 15, 16, 17, 20):
            writer.mix(f"even_{exponent}", source, (64, 96), 50 + exponent, exponent, 1)
        writer.mix("even_with_specials", source, (64, 96), 80, 0, 3, 40)


def main():
    path = pathlib.Path("tests/data/flush_subnormals_vectors.txt")
    writer = TensorWriter()
    tensors(writer)
    with path.open("w") as out:
        out.write(
            "# scales whose operations flush subnormals, by an independent implementation "
            f"(tests/vectors/flush_subnormals_reference.py, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__})\n"
            "# tensors: tests/vectors/vector_tensors.py; numbers are fp32 bits in hex\n"
            "# case scale ELEMENT POW2 EPS AMAX, scale and scale_inv flushed, scale and scale_inv kept\n"
            "# case e8m0 ELEMENT AMAX, the E8M0 code flushed, kept; round_up\n"
            "# case tensor NAME SOURCE FORMAT ELEMENT BLOCK_DIM POW2 EPS, then for rowwise and columnwise DIGEST(codes) "
            "DIGEST(scale_inv), flushed; DIGEST: 64 bits of SHA-256\n")
        out.writelines(writer.lines)
        print("scales", *write_scales(out))
        print("e8m0", *write_e8m0(out))
        print("tensors", write_tensors(out, writer))
        print(out.tell(), "bytes")


if __name__ == "__main__":
    main()
