#!/usr/bin/env python3
"""Rates of torch's GEMMs beside those of CublasLt, in one run on one GPU.

    torch_gemm_rates.py [BENCHMARK] [SIZE]

BENCHMARK is the program gemm_cublaslt_cuda_bench; without it, torch alone is timed. Power sets the clock of a busy GPU,
so both sides multiply normal numbers and work without a pause: WINDOWS windows of WINDOW_SECONDS, of which the first
warms up. A rate is the median of windows, timed by CUDA events around batches of CALLS calls; the two sides take turns
ROUNDS times.
"""
import json
import statistics
import subprocess
import sys

import torch

CALLS, WINDOWS, WINDOW_SECONDS, ROUNDS = 10, 6, 0.5, 3


def window_seconds(call):
    """Seconds of one call, the mean of each window but the first."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    means = []
    for _ in range(WINDOWS):
        batches = []
        while sum(batches) * CALLS < WINDOW_SECONDS:
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            batches.append(begin.elapsed_time(end) * 1e-3 / CALLS)
        means.append(statistics.mean(batches))
    return means[1:]


def torch_calls(size):
    """What BENCHMARK calls by the same names."""
    torch.manual_seed(1)
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    scale = torch.tensor(0.37, device="cuda")

    def scaled(fast):
        return lambda: torch._scaled_mm(
            a8, b8.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    return {"bf16": lambda: torch.matmul(a, b.t()), "fp8_fast": scaled(True), "fp8_split": scaled(False)}


def our_rates(program, name, size):
    """flop/s of each window but the first, and what ran."""
    result = subprocess.run(
        [
            program,
            f"--benchmark_filter=^BM_Gemm/{name}/{size}/",
            "--benchmark_format=json",
            f"--benchmark_repetitions={WINDOWS}",
            f"--benchmark_min_time={WINDOW_SECONDS}",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    runs = [run for run in json.loads(result.stdout)["benchmarks"] if run["run_type"] == "iteration"]
    return [run["flop/s"] for run in runs[1:]], runs[0]["label"]


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else None
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 8192
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, {size}^3")
    flops = 2.0 * size**3
    for name, call in torch_calls(size).items():
        theirs, ours, label = [], [], ""
        for _ in range(ROUNDS):
            theirs += [flops / seconds for seconds in window_seconds(call)]
            if program is not None:
                rates, label = our_rates(program, name, size)
                ours += rates
        line = f"{name:10} torch {statistics.median(theirs) / 1e12:7.1f} TFLOP/s"
        if ours:
            ratio = statistics.median(ours) / statistics.median(theirs)
            line += f"   CublasLt {statistics.median(ours) / 1e12:7.1f} TFLOP/s   ratio {ratio:.3f}   {label}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
