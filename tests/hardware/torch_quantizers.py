#!/usr/bin/env python3
"""Compares QuantGate's quantizers with torch on a GPU, element by element.

    write_quantized FOLDER && torch_quantizers.py FOLDER

FOLDER holds {fp8_tensor,fp8_block,mxfp8,nvfp4}.safetensors as written by write_quantized. The quantizers here are torch
tensor operations on the device, written from the rules: nothing of the engine is called. The Hadamard transform is a
torch.matmul of bf16 tensors: the tensor cores themselves. Prints, per format and set of knobs, how many codes, scales,
amaxes and dequantized values were compared and how many differ. Exit code 1 when any differ.
"""
import collections
import json
import struct
import sys

import numpy as np
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
F32 = torch.float32
FLT_MAX = torch.finfo(torch.float32).max
SOURCE = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
FP8 = {"f8_e4m3": (torch.float8_e4m3fn, 448.0, 0x7E), "f8_e5m2": (torch.float8_e5m2, 57344.0, 0x7B)}
# exponent bits, mantissa bits, bias, largest value, exponent of the largest.
MINI = {"f8_e4m3": (4, 3, 7, 448.0, 8), "f8_e5m2": (5, 2, 15, 57344.0, 15), "f6_e2m3": (2, 3, 1, 7.5, 2),
        "f6_e3m2": (3, 2, 3, 28.0, 4), "f4_e2m1": (2, 1, 1, 6.0, 2)}


def constant(value, dtype=F32):
    return torch.tensor(value, dtype=dtype, device=DEVICE)


def bits(x):
    return x.contiguous().view(torch.int32)


def floats(x):
    return x.to(torch.int32).contiguous().view(F32)


def power_of_two(exponent):
    """2^exponent for -149 <= exponent <= 127, by its bits."""
    exponent = exponent.to(torch.int32)
    normal = (exponent.clamp(min=-126) + 127) << 23
    subnormal = torch.ones_like(exponent) << (exponent.clamp(-149, -127) + 149)
    return floats(torch.where(exponent < -126, subnormal, normal))


def fp8_codes(x, element, rounding, overflow):
    """f32 to FP8 codes. Nearest even is torch's own conversion, on values that were clamped first."""
    dtype, max_finite, max_code = FP8[element]
    nan = x.isnan()
    sign = (bits(x) < 0).to(torch.int32) * 0x80
    size = torch.where(nan, constant(0.0), x.abs())
    if rounding == "nearest_even":
        code = size.clamp(max=max_finite).to(dtype).view(torch.uint8).to(torch.int32)
        limit = 464.0 if element == "f8_e4m3" else 61440.0
        beyond = size > limit if element == "f8_e4m3" else size >= limit
    else:
        code = mini_codes(size, element, True)
        beyond = code > max_code
    if overflow == "nan":
        outside = 0x7F if element == "f8_e4m3" else 0x7C
        code = torch.where(beyond, constant(outside, torch.int32), code)
        sign = torch.where(beyond & (outside == 0x7F), constant(0, torch.int32), sign)
    else:
        code = torch.where(beyond, constant(max_code, torch.int32), code)
    return torch.where(nan, constant(0x7F, torch.int32), code | sign).to(torch.uint8)


def mini_codes(size, element, ties_away):
    """Magnitude codes of non-negative finite or infinite f32, unclamped, by integer arithmetic on the bits."""
    _, mantissa_bits, bias, max_finite, _ = MINI[element]
    size = size.clamp(max=max_finite * 2)
    raw = bits(size).to(torch.int64)
    exponent = ((raw >> 23) & 0xFF).clamp(min=1) - 127
    significand = (raw & 0x7FFFFF) | torch.where(raw >> 23 > 0, 1 << 23, 0)
    target = exponent.clamp(min=1 - bias)
    shift = (target - exponent + 23 - mantissa_bits).clamp(max=40)
    kept = significand >> shift
    rest = significand - (kept << shift)
    half = torch.ones_like(shift) << (shift - 1)
    up = (rest > half) | ((rest == half) & (torch.full_like(kept, ties_away, dtype=torch.bool) | (kept % 2 == 1)))
    return (((target - (1 - bias)) << mantissa_bits) + kept + up).to(torch.int32)


def small_codes(x, element, rounding):
    """FP6 and FP4: saturating, NaN to the largest positive code."""
    exponent_bits, mantissa_bits, _, _, _ = MINI[element]
    top = (1 << (exponent_bits + mantissa_bits)) - 1
    nan = x.isnan()
    code = mini_codes(torch.where(nan, constant(0.0), x.abs()), element, rounding == "nearest_away").clamp(max=top)
    sign = (bits(x) < 0).to(torch.int32) * (top + 1)
    return torch.where(nan, constant(top, torch.int32), code | sign).to(torch.uint8)


def element_codes(x, element, rounding, overflow="saturate"):
    return fp8_codes(x, element, rounding, overflow) if element in FP8 else small_codes(x, element, rounding)


def decode(codes, element):
    if element in FP8:
        return codes.view(FP8[element][0]).to(F32)
    exponent_bits, mantissa_bits, bias, _, _ = MINI[element]
    code = codes.to(torch.int32)
    field = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    significand = torch.where(field > 0, mantissa + (1 << mantissa_bits), mantissa).to(F32)
    size = significand * power_of_two(field.clamp(min=1) - bias - mantissa_bits)
    return torch.where(code >> (exponent_bits + mantissa_bits) > 0, -size, size)


def amax_of(blocks):
    """max |x| of the last dim, NaN ignored."""
    size = blocks.to(F32).abs()
    return torch.where(size.isnan(), constant(0.0), size).amax(dim=-1)


def tiles(x, tall, wide):
    """[row tiles][column tiles][elements]; partial tiles padded with zeros."""
    rows, columns = -(-x.shape[0] // tall), -(-x.shape[1] // wide)
    padded = torch.zeros(rows * tall, columns * wide, dtype=x.dtype, device=x.device)
    padded[:x.shape[0], :x.shape[1]] = x
    return padded.view(rows, tall, columns, wide).permute(0, 2, 1, 3).reshape(rows, columns, tall * wide)


def spread(per_tile, tall, wide, shape):
    return per_tile.repeat_interleave(tall, 0).repeat_interleave(wide, 1)[:shape[0], :shape[1]]


def scale_of(amax, max_finite, power_2, epsilon, infinite, rule):
    amax = torch.where(amax < epsilon, epsilon, amax)
    special = amax.isinf() | (amax == 0)
    safe = torch.where(special, constant(1.0), amax)
    if rule == "divide":
        scale = constant(max_finite) / safe
    else:
        scale = constant(1.0) / (safe * (constant(1.0) / constant(max_finite)))
    scale = torch.where(scale.isinf(), constant(infinite), scale)
    if power_2:
        scale = floats(bits(scale) & -0x800000)
    return torch.where(special, constant(1.0), scale)


class Result:
    """What one direction should be: flat uint8 codes, scales, amax or None, f32 values or None."""

    def __init__(self, codes, scale, amax, values):
        self.codes, self.scale, self.amax, self.values = codes, scale, amax, values


def fp8_tensor(x, source, columnwise, element, scaling, power_2, epsilon, rule, rounding, overflow, given):
    wide = x.to(F32)
    amax = amax_of(wide.reshape(-1))
    if scaling == "delayed":
        scale = constant(float(given))
    else:
        scale = scale_of(amax, FP8[element][1], power_2 == "1", constant(float(epsilon)), FLT_MAX, rule)
    codes = element_codes(wide * scale, element, rounding, overflow)
    scale_inv = constant(1.0) / scale
    values = decode(codes, element) * scale_inv
    return Result(codes.t().contiguous() if columnwise else codes, scale_inv, amax, values)


def fp8_block(x, source, columnwise, element, block_dim, power_2, epsilon, rule, rounding, overflow):
    tall, wide = (128, 128) if block_dim == "2" else (128, 1) if columnwise else (1, 128)
    floor = torch.from_numpy(np.frombuffer(bytes.fromhex(epsilon), np.float32).copy()).to(DEVICE)
    infinite = {"bf16": float.fromhex("0x1.FEp127"), "f16": 65504.0, "f32": FLT_MAX}[source]
    scale = scale_of(amax_of(tiles(x, tall, wide)), FP8[element][1], power_2 == "1", floor, infinite, rule)
    codes = element_codes(x.to(F32) * spread(scale, tall, wide, x.shape), element, rounding, overflow)
    scale_inv = constant(1.0) / scale
    values = decode(codes, element) * spread(scale_inv, tall, wide, x.shape)
    if columnwise:
        codes, scale_inv = codes.t().contiguous(), scale_inv.t().contiguous()
    return Result(codes, scale_inv, None, values)


def e8m0(blocks, element, rule):
    _, mantissa_bits, _, max_finite, element_exponent = MINI[element]
    amax = amax_of(blocks)
    if rule == "round_up":
        v = amax * (constant(1.0) / constant(max_finite))
        raw = bits(v)
        exponent, mantissa = (raw >> 23) & 0xFF, raw & 0x7FFFFF
        up = (mantissa > 0) & (exponent != 0xFE) & ~((exponent == 0) & (mantissa <= 0x400000))
        return torch.where(v.isinf(), constant(0xFE, torch.int32), exponent + up).to(torch.uint8)
    raw = bits(amax)
    if rule == "even":
        raw = raw + (1 << (23 - mantissa_bits - 1))
    exponent, mantissa = (raw >> 23) & 0xFF, raw & 0x7FFFFF
    if rule == "ceil":
        exponent = exponent + (mantissa > 0)
    elif rule == "nearest":
        exponent = exponent + (mantissa > 0x3504F3)
    code = (exponent - element_exponent).clamp(min=0)
    code = torch.where(amax == 0, constant(0, torch.int32), code)
    is_nan = amax.isinf() | blocks.isnan().any(dim=-1)
    if rule == "even":
        is_nan = is_nan | (exponent == 255)
    return torch.where(is_nan, constant(0xFF, torch.int32), code).to(torch.uint8)


def mxfp8(x, source, columnwise, element, block_dim, rule, rounding, overflow):
    tall, wide = (32, 32) if block_dim == "2" else (32, 1) if columnwise else (1, 32)
    code = e8m0(tiles(x, tall, wide), element, rule)
    whole = spread(code, tall, wide, x.shape).to(torch.int32)
    nan = whole == 255
    multiplier = torch.where(nan, constant(float("nan")), power_of_two(torch.where(nan, 0, 127 - whole)))
    codes = element_codes(x.to(F32) * multiplier, element, rounding, overflow)
    value = torch.where(nan, constant(float("nan")), power_of_two(torch.where(nan, 0, whole - 127)))
    values = decode(codes, element) * value
    if element == "f4_e2m1":
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    if block_dim == "2":
        code = code.repeat_interleave(32, 1 if columnwise else 0)
    return Result(codes, code, None, values)


SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


def hadamard(lines):
    """On the tensor cores: bf16 in, fp32 accumulation, bf16 out."""
    matrix = [[SIGNS[i] * (-1) ** bin(i & j).count("1") * 0.25 for j in range(16)] for i in range(16)]
    r = torch.tensor(matrix, dtype=torch.bfloat16, device=DEVICE)
    return torch.matmul(lines.reshape(-1, 16), r).reshape(lines.shape)


def philox_bytes(lines, length, seed, call_id, columnwise):
    """Byte i of a block of 16: byte i % 4 of word i / 4 of Philox4x32-10 at (block, line, call_id, usage)."""
    mask = 0xFFFFFFFF
    line = torch.arange(lines, device=DEVICE).view(-1, 1).expand(lines, length // 16)
    block = torch.arange(length // 16, device=DEVICE).view(1, -1).expand(lines, length // 16)
    c = [block, line, torch.full_like(line, call_id), torch.full_like(line, int(columnwise))]
    k0, k1 = seed & mask, seed >> 32

    def product(multiplier, word):  # The high and low 32 bits of a 64-bit product, without unsigned overflow.
        low = (word & 0xFFFF) * multiplier
        high = (word >> 16) * multiplier + (low >> 16)
        return (high >> 16) & mask, ((high << 16) | (low & 0xFFFF)) & mask

    for _ in range(10):
        h0, l0 = product(0xD2511F53, c[0])
        h1, l1 = product(0xCD9E8D57, c[2])
        c = [h1 ^ c[1] ^ k0, l1, h0 ^ c[3] ^ k1, l0]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    words = torch.stack(c, dim=-1)
    return torch.stack([(words >> (8 * i)) & 0xFF for i in range(4)], dim=-1).reshape(lines, length)


def stochastic(x, random):
    def step(a):
        return torch.where(a >= 4, constant(2.0), torch.where(a >= 2, constant(1.0), constant(0.5)))

    size = x.abs()
    exact = size.clamp(max=64.0).double() + random.double() / 256 * step(size).double()
    t = exact.to(F32)
    q = (torch.floor(t / step(t)) * step(t)).clamp(max=6.0)
    q = torch.where(x.isnan(), constant(6.0), q)
    return small_codes(torch.where((bits(x) < 0) & ~x.isnan(), -q, q), "f4_e2m1", "nearest_even")


def four_over_six(wide, blocks, amax, s, d, bound, mode, block_dim):
    base = (blocks / constant(6.0)) * s
    found = []
    for t in (base, base * constant(1.5)):
        scale = fp8_codes(t.clamp(max=448.0), "f8_e4m3", "nearest_even", "saturate")
        e = (constant(1.0) / (decode(scale, "f8_e4m3") * d)).clamp(max=FLT_MAX)
        codes = small_codes(wide * e.repeat_interleave(16, 1), "f4_e2m1", "nearest_even")
        value = decode(codes, "f4_e2m1") * decode(scale, "f8_e4m3").repeat_interleave(16, 1)
        difference = (value * amax) / constant(6.0 * bound) - wide
        terms = (difference.abs() if mode == "mae" else difference * difference).view(wide.shape[0], -1, 16)
        error = torch.zeros_like(terms[:, :, 0])
        for i in range(16):
            error = error + terms[:, :, i]
        if block_dim == 2:
            lanes = error.view(-1, 16, error.shape[1])
            for distance in (8, 4, 2, 1):
                lanes = lanes[:, :distance] + lanes[:, distance:2 * distance]
            error = lanes[:, 0].repeat_interleave(16, 0)
        found.append((codes, scale, error))
    four = found[1][2] < found[0][2]
    return (torch.where(four.repeat_interleave(16, 1), found[1][0], found[0][0]),
            torch.where(four, found[1][1], found[0][1]))


def nvfp4(x, source, columnwise, block_dim, rule, rounding, row_scaled, four, bound, use_hadamard, seed, call_id):
    block_dim, bound, row_scaled = int(block_dim), int(bound), row_scaled == "1"
    lines = x.t().contiguous() if columnwise else x
    if use_hadamard == "1" and columnwise:
        lines = hadamard(lines)
    wide = lines.to(F32)
    amax = amax_of(wide if row_scaled else wide.reshape(1, -1)).view(-1, 1)
    blocks = amax_of(lines.reshape(lines.shape[0], -1, 16))
    if block_dim == 2:
        blocks = blocks.view(-1, 16, blocks.shape[1]).amax(dim=1).repeat_interleave(16, 0)
    codes, g = None, constant(1.0)
    if rule == "two_level":
        s = (constant(6.0 * bound) / amax).clamp(max=FLT_MAX)
        s = torch.where((amax == 0) | (s == 0), constant(1.0), s)
        d = constant(1.0) / s
        if four != "none":
            codes, scale = four_over_six(wide, blocks, amax, s, d, bound, four, block_dim)
        else:
            t = (blocks * (s * (constant(1.0) / constant(6.0)))).clamp(max=FLT_MAX)
            scale = fp8_codes(t, "f8_e4m3", "nearest_even", "saturate")
            e = (constant(1.0) / (decode(scale, "f8_e4m3") * d)).clamp(max=FLT_MAX)
            scaled = wide * e.repeat_interleave(16, 1)
    else:
        if rule == "two_level_clamped":
            g = amax / constant(2688.0)
            g = torch.where((g == 0) | g.isinf(), constant(1.0), g)
        t = ((blocks / constant(6.0)) / g).clamp(min=2.0**-6, max=448.0)
        scale = fp8_codes(t, "f8_e4m3", "nearest_even", "saturate")
        scaled = wide / (g * decode(scale, "f8_e4m3")).repeat_interleave(16, 1)
    if codes is None:
        if rounding == "stochastic":
            codes = stochastic(scaled, philox_bytes(*lines.shape, int(seed), int(call_id), columnwise))
        else:
            codes = small_codes(scaled, "f4_e2m1", rounding)
    factor = decode(scale, "f8_e4m3")
    if rule != "single_level":
        factor = (factor * amax) * (constant(1.0) / constant(6.0 * bound))
    values = decode(codes, "f4_e2m1") * factor.repeat_interleave(16, 1)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return Result(packed, scale, None if rule == "single_level" else amax.reshape(-1), values)


QUANTIZERS = {"fp8_tensor": fp8_tensor, "fp8_block": fp8_block, "mxfp8": mxfp8, "nvfp4": nvfp4}


def flat_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def count_different(expected, given, width):
    if expected.numel() != given.numel():
        return max(expected.numel(), given.numel()) // width
    return int((expected.view(-1, width) != given.view(-1, width)).any(dim=1).sum())


def canonical(values):
    raw = bits(values)
    return torch.where(values.isnan(), constant(0x7FFFFFFF, torch.int32), raw)


class File:
    """A safetensors file of bytes, read by its own header."""

    def __init__(self, path):
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            self.header = json.loads(file.read(length))
        self.data, self.begin = np.memmap(path, np.uint8, "r"), 8 + length
        self.metadata = self.header["__metadata__"]

    def get(self, name):
        if name not in self.header:
            return None
        first, last = self.header[name]["data_offsets"]
        return torch.from_numpy(np.array(self.data[self.begin + first:self.begin + last])).to(DEVICE)


def main():
    folder = sys.argv[1]
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    any_difference = False
    for format_name, quantizer in QUANTIZERS.items():
        file = File(f"{folder}/{format_name}.safetensors")
        sources = {}
        for line in file.metadata["sources"].splitlines():
            tensor, dtype, shape = line.split()
            dims = [int(d) for d in shape.split("x")]
            raw = file.get(f"source {tensor} {dtype}")
            sources[tensor, dtype] = raw.view(SOURCE[dtype]).reshape(-1, dims[-1])
        table = collections.defaultdict(lambda: [0] * 8)
        for line in file.metadata["cases"].splitlines():
            case, tensor, dtype, usage, *knobs = line.split()
            result = quantizer(sources[tensor, dtype], dtype, usage == "columnwise", *knobs)
            parts = ((result.codes, "codes", 1),
                     (result.scale, "scale_inv", result.scale.element_size()),
                     (result.amax, "amax", 4),
                     (None if result.values is None else canonical(result.values), "values", 4))
            row = table[(usage, *knobs)]
            for i, (expected, kind, width) in enumerate(parts):
                given = file.get(f"{case} {kind}")
                if given is None or expected is None:
                    continue
                different = count_different(flat_bytes(expected), given, width)
                row[2 * i] += given.numel() // width
                row[2 * i + 1] += different
                if different and row[2 * i + 1] == different:
                    print(f"DIFFERS {format_name} {kind} {different}: {line}")
        print(f"\n{format_name}: usage and knobs | codes, differ | scales, differ | amaxes, differ | values, differ")
        total = [0] * 8
        for key, row in sorted(table.items()):
            total = [x + y for x, y in zip(total, row)]
            print(f"| {' '.join(key)} | " + " | ".join(f"{row[i]}, {row[i + 1]}" for i in (0, 2, 4, 6)) + " |")
        print("| all | " + " | ".join(f"{total[i]}, {total[i + 1]}" for i in (0, 2, 4, 6)) + " |\n", flush=True)
        any_difference = any_difference or any(total[1::2])
    return 1 if any_difference else 0


if __name__ == "__main__":
    sys.exit(main())
