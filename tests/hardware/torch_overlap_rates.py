#!/usr/bin/env python3
"""Times of torch's asynchronous tensor parallelism at the shapes of overlap_cuda_bench, one process per GPU.

    torch_overlap_rates.py [--ranks 4] [--tokens 16384] [--hidden 8192,16384,32768] [--widths 4,1] [--only TEXT]

One line of JSON for each way, of the form of overlap_cuda_bench's: the GEMM alone, NCCL's collective alone, one after
the other, and torch.ops.symm_mem.fused_all_gather_matmul, fused_matmul_reduce_scatter and their scaled forms for FP8.
Of hidden size H and width W the layer has W * H features, divided over the N ranks: all-gather and GEMM multiply
x [M][H] by w [W H / N][H], GEMM and reduce-scatter x [M][W H / N] by w [H][W H / N].

A time is the median over ROUNDS rounds, in which the ways take turns, of calls in a row, each between two CUDA events
on the current stream, of the slowest rank. The host is at most two calls ahead. A way that this torch does not have, or
that fails, is a line with "error". NVLink multicast stays off.
"""
import argparse
import json
import math
import os
import socket
import statistics
import sys
import warnings

# Before torch is loaded, and inherited by the ranks' processes.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NVSHMEM_DISABLE_NVLS"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

ROUNDS, BATCH_SECONDS, WARM_UP, UNDER_WAY = 5, 0.1, 3, 2
FP8 = torch.float8_e4m3fn


def of_slowest(values):
    """Element by element the maximum over the ranks."""
    tensor = torch.tensor(values, dtype=torch.float64, device="cuda")
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def time_calls(call, count):
    """Seconds of each of `count` calls in a row."""
    dist.barrier()
    torch.cuda.synchronize()
    events = []
    for _ in range(WARM_UP + count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        events.append((begin, end))
        if len(events) > UNDER_WAY:
            events[-1 - UNDER_WAY][1].synchronize()
    torch.cuda.synchronize()
    return of_slowest([begin.elapsed_time(end) * 1e-3 for begin, end in events[WARM_UP:]])


def time_ways(ways):
    """Medians by name; of a way that fails, what it said."""
    counts, seconds, errors = {}, {}, {}
    for name, call in ways.items():
        error = ""
        try:
            call()
            torch.cuda.synchronize()
        except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError, AssertionError) as caught:
            error = f"{type(caught).__name__}: {str(caught).splitlines()[0] if str(caught) else ''}"
        # Where it fails on one rank, nobody calls it again.
        if of_slowest([1.0 if error else 0.0])[0] != 0:
            errors[name] = error or "failed on another rank"
            continue
        one = statistics.median(time_calls(call, 3))
        counts[name] = min(max(math.ceil(BATCH_SECONDS / one), 5), 50)
        seconds[name] = []
    for _ in range(ROUNDS):
        for name, count in counts.items():
            seconds[name] += time_calls(ways[name], count)
    return {name: statistics.median(values) for name, values in seconds.items()}, errors


def normal(seed, rows, columns):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16, generator=generator)


def quantized(x):
    """FP8 codes under the largest of the ranks' amaxes, and what they are to be multiplied by."""
    amax = x.abs().max().float()
    dist.all_reduce(amax, op=dist.ReduceOp.MAX)
    scale = torch.finfo(FP8).max / amax
    return (x.float() * scale).clamp(-448, 448).to(FP8), scale.reciprocal()


def multiply(x, w, x_scale, w_scale):
    if x.dtype == FP8:
        return torch._scaled_mm(
            x, w, scale_a=x_scale, scale_b=w_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    return torch.mm(x, w)


def ways_to_gather(tokens, n, k, is_fp8, rank, size, group):
    shard, w = normal(1 + rank, tokens // size, k), normal(101 + rank, n, k)
    x_scale = w_scale = None
    if is_fp8:
        (shard, x_scale), (w, w_scale) = quantized(shard), quantized(w)
    w = w.t()
    whole = torch.empty(tokens, k, device="cuda", dtype=shard.dtype)

    def gather():
        # As bytes: NCCL moves them, whatever they stand for.
        dist.all_gather_into_tensor(whole.view(torch.uint8), shard.view(torch.uint8))
        return whole

    gather()
    ops = torch.ops.symm_mem

    def fused(return_a):
        if not is_fp8:
            return lambda: ops.fused_all_gather_matmul(shard, [w], 0, group, return_A=return_a)
        return lambda: ops.fused_all_gather_scaled_matmul(
            shard, [w], x_scale, [w_scale], 0, group, [None], [None], [torch.bfloat16], [True]
        )

    ways = {
        "gemm": lambda: multiply(whole, w, x_scale, w_scale),
        "all-gather by nccl": gather,
        "gather, then gemm": lambda: multiply(gather(), w, x_scale, w_scale),
        "fused_all_gather_scaled_matmul" if is_fp8 else "fused_all_gather_matmul": fused(True),
    }
    if not is_fp8:
        ways["fused_all_gather_matmul, return_A=False"] = fused(False)
    return ways


def ways_to_reduce(tokens, n, k, is_fp8, rank, size, group):
    x, w = normal(1 + rank, tokens, k), normal(101 + rank, n, k)
    x_scale = w_scale = None
    if is_fp8:
        (x, x_scale), (w, w_scale) = quantized(x), quantized(w)
    w = w.t()
    partial = multiply(x, w, x_scale, w_scale)
    y = torch.empty(tokens // size, n, device="cuda", dtype=torch.bfloat16)
    ops = torch.ops.symm_mem

    def fused():
        if not is_fp8:
            return ops.fused_matmul_reduce_scatter(x, w, "sum", 0, group)
        return ops.fused_scaled_matmul_reduce_scatter(
            x, w, x_scale, w_scale, "sum", 0, 0, group, [tokens, n], None, None, torch.bfloat16, True
        )

    return {
        "gemm": lambda: multiply(x, w, x_scale, w_scale),
        "ncclReduceScatter": lambda: dist.reduce_scatter_tensor(y, partial),
        "gemm, then reduce-scatter": lambda: dist.reduce_scatter_tensor(y, multiply(x, w, x_scale, w_scale)),
        "fused_scaled_matmul_reduce_scatter" if is_fp8 else "fused_matmul_reduce_scatter": fused,
    }


def report(options, operation, payload, shape, medians, errors, rank):
    communication = next(name for name in medians if "all-gather" in name or name == "ncclReduceScatter")
    alone = max(medians["gemm"], medians[communication])
    tokens, n, k = shape
    for name in list(medians) + list(errors):
        line = {
            "program": f"torch {torch.__version__}",
            "operation": operation,
            "payload": payload,
            "ranks": options.ranks,
            "tokens": tokens,
            "n": n,
            "k": k,
            "way": name,
        }
        if name in errors:
            line["error"] = errors[name]
        else:
            line |= {"ms": round(medians[name] * 1e3, 4), "ratio": round(medians[name] / alone, 3)}
        if rank == 0:
            print(json.dumps(line), flush=True)


def run_rank(rank, options, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=options.ranks, device_id=torch.device("cuda", rank))
    group = dist.group.WORLD.group_name
    from torch.distributed import _symmetric_memory as symmetric_memory  # Registers the operations.

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Newer versions need it no more, and say so.
        symmetric_memory.enable_symm_mem_for_group(group)
    if rank == 0:
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        print(f"{options.ranks} x {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
              f"NCCL {nccl} (NCCL_NVLS_ENABLE={os.environ['NCCL_NVLS_ENABLE']})", flush=True)
    for width in options.widths:
        for hidden in options.hidden:
            features = width * hidden // options.ranks
            for is_fp8 in (False, True):
                payload = "fp8" if is_fp8 else "bf16"
                for operation, make, shape in (
                    ("all_gather_gemm", ways_to_gather, (options.tokens, features, hidden)),
                    ("gemm_reduce_scatter", ways_to_reduce, (options.tokens, hidden, features)),
                ):
                    if options.only not in f"{operation} {payload}":
                        continue
                    ways = make(*shape, is_fp8, rank, options.ranks, group)
                    medians, errors = time_ways(ways)
                    report(options, operation, payload, shape, medians, errors, rank)
                    del ways
                    torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()


def parse_options():
    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--hidden", type=numbers, default=[8192, 16384, 32768])
    parser.add_argument("--widths", type=numbers, default=[4, 1])
    parser.add_argument("--only", default="")
    return parser.parse_args()


def main():
    options = parse_options()
    if torch.cuda.device_count() < options.ranks:
        print(f"left out: {options.ranks} ranks need as many GPUs, and here there are {torch.cuda.device_count()}")
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, args=(options, port), nprocs=options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
