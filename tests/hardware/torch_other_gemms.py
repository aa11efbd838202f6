#!/usr/bin/env python3
"""Grouped and sparse (2:4) GEMMs of the libraries on a GPU host against the fused step.

  torch_other_gemms.py [ROWS]

cublasGemmGroupedBatchedEx, torch's grouped GEMMs and cuSPARSELt through torch, each output against
docs/tensor-cores.md sections 1 and 3 computed here in fp64 on the device (normal numbers only):
per call the outputs that differ from each rule that was tried. ROWS (default 512): of the operands.
"""
import ctypes
import glob
import sys

import torch

DEVICE = "cuda"
BF16, F16, F32, E4M3 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
SMALLEST_EXPONENT = {BF16: -126, F16: -14, F32: -126, E4M3: -6}
CUDA_TYPES = {BF16: 14, F16: 2, F32: 0, E4M3: 28}  # cudaDataType_t.
COMPUTE_32F, COMPUTE_32F_TF32, COMPUTE_16F = 68, 77, 64  # cublasComputeType_t.
NONE = -100000  # The exponent of a zero.


def scaled(x, exponent):
    """x * 2^exponent, exact."""
    bits = (exponent.to(torch.int64).clamp(-1000, 1000) + 1023) << 52
    return x * bits.view(torch.float64)


def exponents(x, smallest):
    exponent = (torch.frexp(x.abs())[1] - 1).clamp(min=smallest)
    return torch.where(x == 0, torch.full_like(exponent, NONE), exponent)


def fused_step(a, b, dtype, accumulator, align_bits, out_bits):
    """T(align_bits, out_bits; a, b, accumulator) of a [M, L], b [N, L]; docs section 1."""
    smallest = SMALLEST_EXPONENT[dtype]
    product = a[:, None] * b[None]
    exponent = exponents(a, smallest)[:, None] + exponents(b, smallest)[None]
    largest = torch.maximum(exponent.amax(-1), exponents(accumulator, -126)).clamp(min=-133)
    shift = align_bits - largest
    total = torch.trunc(scaled(product, shift[..., None])).sum(-1)
    total = scaled(total + torch.trunc(scaled(accumulator, shift)), -shift)
    exponent = torch.frexp(total)[1]
    return scaled(torch.trunc(scaled(total, out_bits + 1 - exponent)), exponent - out_bits - 1)


def tf32(x):
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def steps_of(k, length, tile):
    """[begin, end) of each step; with a tile, k % tile products first."""
    first = k % tile if tile else 0
    steps = [(i, min(i + length, first)) for i in range(0, first, length)]
    return steps + [(i, min(i + length, k)) for i in range(first, k, length)]


def gemm(a, b, length, align_bits=25, out_bits=23, promote=0, tile=0, rows=64):
    """The fp32 sums; promote: an fp32 addition after as many of k."""
    dtype, k = a.dtype, a.shape[1]
    if dtype == F32:
        a, b = tf32(a), tf32(b)
    a, b = a.double(), b.double()
    parts = []
    for row in range(0, a.shape[0], rows):
        some = a[row:row + rows]
        total = None
        sums = torch.zeros(some.shape[0], b.shape[0], dtype=torch.float64, device=DEVICE)
        for begin, end in steps_of(k, length, tile):
            sums = fused_step(some[:, begin:end], b[:, begin:end], dtype, sums, align_bits, out_bits)
            if promote and (end % promote == 0 or end == k):
                total = sums.float() if total is None else total + sums.float()
                sums = torch.zeros_like(sums)
        parts.append(total if promote else sums.float())
    return torch.cat(parts)


def sequential(a, b):
    a, b = a.double(), b.double()
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64, device=DEVICE)
    for k in range(a.shape[1]):
        total = (total + a[:, k, None] * b[None, :, k]).float().double()
    return total.float()


def drawn(rows, columns, dtype):
    x = torch.randn(rows, columns, device=DEVICE)
    return (x * torch.exp2(torch.randint(-6, 3, x.shape, device=DEVICE).float())).to(dtype)


def pruned(x):
    """Two of every four, drawn."""
    groups = x.float().view(x.shape[0], -1, 4)
    kept = torch.rand_like(groups).topk(2, -1).indices
    mask = torch.zeros_like(groups).scatter_(-1, kept, 1).bool()
    return torch.where(mask, groups, torch.zeros_like(groups)).view(x.shape).to(x.dtype)


def differing(got, want):
    bits = torch.int16 if got.element_size() == 2 else torch.int32
    return int((got.view(bits) != want.to(got.dtype).view(bits)).sum())


class Tally:
    """Outputs that differ, by question and rule."""

    def __init__(self):
        self.table = {}

    def add(self, question, rule, got, want):
        entry = self.table.setdefault(question, {}).setdefault(rule, [0, 0])
        entry[0] += differing(got, want)
        entry[1] += got.numel()

    def print(self):
        for question, rules in self.table.items():
            print(question)
            for rule, (differ, outputs) in sorted(rules.items(), key=lambda item: item[1][0]):
                print(f"  {differ} of {outputs} differ: {rule}", flush=True)
        self.table = {}


class Cublas:
    def __init__(self):
        pattern = "/usr/local/cuda*/**/libcublas.so.13"
        self.library = ctypes.CDLL(sorted(glob.glob(pattern, recursive=True))[0])
        self.handle = ctypes.c_void_p()
        assert self.library.cublasCreate_v2(ctypes.byref(self.handle)) == 0
        version = ctypes.c_int()
        self.library.cublasGetVersion_v2(self.handle, ctypes.byref(version))
        print(f"cuBLAS {version.value}")

    def grouped(self, pairs, out_dtype, compute):
        """One group per pair (a [m, k], b [n, k]); the outputs [m, n], or the status."""
        dtype = pairs[0][0].dtype
        outputs = [torch.full((a.shape[0], b.shape[0]), 7.0, device=DEVICE).to(out_dtype)
                   for a, b in pairs]
        count = len(pairs)

        def pointers(tensors):
            return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=DEVICE)

        def ints(values):
            return (ctypes.c_int * count)(*values)

        def floats(value):
            return (ctypes.c_float * count)(*[value] * count)

        # Column-major: its A is our b.
        lt_a, lt_b, lt_c = pointers([b for _, b in pairs]), pointers([a for a, _ in pairs]), \
            pointers(outputs)
        m, n, k = [a.shape[0] for a, _ in pairs], [b.shape[0] for _, b in pairs], \
            [a.shape[1] for a, _ in pairs]
        status = self.library.cublasGemmGroupedBatchedEx(
            self.handle, ints([1] * count), ints([0] * count), ints(n), ints(m), ints(k),
            floats(1.0), ctypes.c_void_p(lt_a.data_ptr()), CUDA_TYPES[dtype], ints(k),
            ctypes.c_void_p(lt_b.data_ptr()), CUDA_TYPES[dtype], ints(k), floats(0.0),
            ctypes.c_void_p(lt_c.data_ptr()), CUDA_TYPES[out_dtype], ints(n), count,
            ints([1] * count), compute)
        torch.cuda.synchronize()
        return status, outputs


def grouped_cublas(tally, rows):
    cublas = Cublas()
    kinds = [(BF16, BF16, COMPUTE_32F), (F16, F16, COMPUTE_32F), (F32, F32, COMPUTE_32F),
             (F32, F32, COMPUTE_32F_TF32), (BF16, F32, COMPUTE_32F), (F16, F32, COMPUTE_32F),
             (E4M3, BF16, COMPUTE_32F), (E4M3, F32, COMPUTE_32F), (F16, F16, COMPUTE_16F)]
    sizes = {"k a multiple of 64": (64, 256, 512, 1024),
             "k a multiple of 8 alone": (8, 24, 40, 56, 72, 88, 104, 120, 200, 264, 1000),
             "any k": (17, 33, 50, 100, 131)}
    for dtype, out_dtype, compute in kinds:
        for what, ks in sizes.items():
            pairs = [(drawn(rows - 8 * i, k, dtype), drawn(rows // 2 + 16 * i, k, dtype))
                     for i, k in enumerate(ks)]
            status, outputs = cublas.grouped(pairs, out_dtype, compute)
            name = f"cublasGemmGroupedBatchedEx {dtype} -> {out_dtype}, compute {compute}, {what}"
            if status:
                print(f"{name}: status {status}")
                continue
            for (a, b), d in zip(pairs, outputs):
                if what == "any k":
                    name = name.split(", any k")[0] + f", any k: {a.shape[1]}"
                if dtype == F32:
                    tally.add(name, "sequential fma", d, sequential(a, b))
                length = 8 if dtype == F32 else 16
                for tile in (0, 16, 32, 64, 128):
                    rule = f"L={length}" + (f", k % {tile} first" if tile else "")
                    tally.add(name, rule, d, gemm(a, b, length, tile=tile))
            tally.print()


def grouped_torch(tally, rows):
    ends = [rows // 4, rows // 2 + 32, rows]
    spans = list(zip([0] + ends[:-1], ends))
    offsets = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    for k in (512, 1000, 1024):
        a = drawn(rows, k, BF16)
        b = drawn(3 * rows, k, BF16).view(3, rows, k)
        got = torch._grouped_mm(a, b.transpose(-2, -1), offs=offsets)
        want = torch.cat([gemm(a[i:j], b[g], 16) for g, (i, j) in enumerate(spans)])
        tally.add("torch._grouped_mm bf16", "L=16", got, want)
    for fast in (True, False):
        for k in (512, 1024):
            a, b = drawn(rows, k, E4M3), drawn(3 * rows, k, E4M3).view(3, rows, k)
            scale_a = torch.rand(rows, device=DEVICE) + 0.5
            scale_b = torch.rand(3, rows, device=DEVICE) + 0.5
            got = torch._scaled_grouped_mm(a, b.transpose(-2, -1), scale_a, scale_b, offs=offsets,
                                           out_dtype=BF16, use_fast_accum=fast)
            promote = 0 if fast else 128
            for order in ("scale of the row first", "scale of the column first"):
                parts = []
                for g, (i, j) in enumerate(spans):
                    sums = gemm(a[i:j], b[g], 32, 13, 13, promote)
                    row, column = scale_a[i:j, None], scale_b[g][None]
                    parts.append((sums * row) * column if "row" in order else (sums * column) * row)
                tally.add(f"torch._scaled_grouped_mm e4m3, fast {fast}",
                          f"L=32 F=13, split {promote}, {order}", got, torch.cat(parts))
    tally.print()


def sparse(tally, rows):
    print(f"cuSPARSELt {torch.backends.cusparselt.version()}")
    for dtype in (BF16, F16, E4M3):
        for k in (128, 512, 1024, 2048):
            a, b = pruned(drawn(rows, k, dtype)), drawn(rows, k, dtype)
            compressed = torch._cslt_compress(a)
            if dtype == E4M3:
                rules = {f"L={n} dense ({n // 2} products), F=13" + (f", split {p}" if p else ""):
                         gemm(a, b, n, 13, 13, p, rows=32) for n in (32, 64) for p in (0, 128, 256)}
            else:
                rules = {f"L={n} dense ({n // 2} products)": gemm(a, b, n, rows=32)
                         for n in (16, 32, 64)}
                rules["L=32 dense, two slices of k"] = gemm(a, b, 32, promote=k // 2, rows=32)
            outputs = (None,) if dtype != E4M3 else (F32, BF16, F16)
            for out_dtype in outputs:
                ran = unexplained = 0
                name = f"cuSPARSELt {dtype} -> {out_dtype or dtype}"
                if dtype == F16:
                    name += f", k={k}"
                for algorithm in range(64):
                    try:
                        got = torch._cslt_sparse_mm(compressed, b.t(), out_dtype=out_dtype,
                                                    alg_id=algorithm)
                    except RuntimeError:
                        break
                    ran += 1
                    unexplained += all(differing(got, want) for want in rules.values())
                    for rule, want in rules.items():
                        tally.add(name, rule, got, want)
                print(f"{dtype} -> {out_dtype or dtype}, k={k}: {ran} algorithms, of which "
                      f"{unexplained} equal no rule")
    tally.print()


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    tally = Tally()
    grouped_torch(tally, rows)
    sparse(tally, rows)
    grouped_cublas(tally, rows)


if __name__ == "__main__":
    main()
