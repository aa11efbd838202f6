"""What a user would take instead of QuantGate's CPU quantizers: ml_dtypes casts and torch CPU operations, one thread.

Prints elements per second for 8192 x 4096 bf16, the best of five runs each. Both directions mean the codes and the codes of
the transpose, as quantize_bench's QuantizeBoth makes them. Run on the machine of quantize_bench, right after it:
OMP_NUM_THREADS=1 python3 tests/vectors/python_rates.py
"""

import time

import ml_dtypes
import numpy as np

ROWS, COLUMNS = 8192, 4096


def best(name, function):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    seconds = min(times)
    print(f"{name:44s} {1e3 * seconds:8.1f} ms  {ROWS * COLUMNS / seconds / 1e6:8.1f} million elements/s", flush=True)


def numpy_rates():
    x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), np.float32).astype(ml_dtypes.bfloat16)

    def cast():
        return x.astype(ml_dtypes.float8_e4m3fn)

    def fp8_current():
        wide = x.astype(np.float32)
        scale = np.float32(448) / np.abs(wide).max()
        codes = np.clip(wide * scale, np.float32(-448), np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
        return codes, np.ascontiguousarray(codes.T)

    best("ml_dtypes cast to E4M3, no scale", cast)
    best("numpy and ml_dtypes, fp8_current, both", fp8_current)


def torch_rates():
    import torch

    torch.set_num_threads(1)
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)

    def fp8_current():
        wide = x.float()
        scale = 448.0 / wide.abs().max()
        codes = (wide * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return codes, codes.t().contiguous()

    def mxfp8(blocks):
        wide = blocks.float().reshape(-1, 32)
        amax = wide.abs().amax(dim=1, keepdim=True)
        bits = (amax * (1.0 / 448.0)).view(torch.int32)
        exponent = ((bits >> 23) + ((bits & 0x7FFFFF) > 0)).clamp(1, 253)
        factor = ((254 - exponent) << 23).view(torch.float32)
        return (wide * factor).clamp(-448, 448).to(torch.float8_e4m3fn), exponent.to(torch.uint8)

    best("torch CPU, fp8_current, both", fp8_current)
    best("torch CPU, mxfp8, both", lambda: (mxfp8(x), mxfp8(x.t().contiguous())))


if __name__ == "__main__":
    numpy_rates()
    torch_rates()
