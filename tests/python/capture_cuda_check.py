"""Captures on a CUDA device: losses, bits, and the time that they cost. Needs the package, torch and numpy alone.

    python3 tests/python/capture_cuda_check.py [--blocks 12] [--width 1024] [--tokens 8192] [--rounds 5] [--steps 40]

Trains a transformer of ``--blocks`` blocks in bf16 with and without a capture of one layer in one step of ten, in rounds that
take turns, and prints medians. Exits with 1 where a loss or a parameter has other bits than without a capture, a captured tensor
other bits than a clone, or where the engine finds a captured layer outside of its bounds.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
import torch

import quantgate as qg

FAILED = []


def check(holds, text):
    print(f"{'ok  ' if holds else 'FAIL'}  {text}", flush=True)
    if not holds:
        FAILED.append(text)


class Block(torch.nn.Module):
    def __init__(self, width, heads=16):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc1, self.fc2 = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm2(x))))


def model_of(blocks, width):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Block(width) for _ in range(blocks))).to("cuda", torch.bfloat16)


def train(model, x, steps, capture=None):
    """Losses by their bits, and the seconds of each step, of which the device has done all."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if capture is not None:
            capture.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.detach())
    return [loss.cpu().numpy().tobytes() for loss in losses], seconds


def raw(tensor):
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def stored(directory, record):
    """The bytes of a record's tensors, read by numpy."""
    content = (pathlib.Path(directory) / record["file"]).read_bytes()
    length = int(np.frombuffer(content[:8], "<u8")[0])
    header = json.loads(content[8:8 + length])
    return {name: content[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]]
            for name, entry in header.items() if name != "__metadata__"}


def check_bits(autocast):
    """Tensors of one layer against clones that are taken here, while in-place operations follow at once."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(512, 1024).to("cuda", torch.float32 if autocast else torch.bfloat16)
    kept = {}
    x = torch.randn(4096, 512, device="cuda").to(layer.weight.dtype)
    for _ in range(3):  # Copies of several steps are under way at once.
        x = torch.roll(x, 1, 0)
    with qg.capture(torch.nn.Sequential(layer)) as c:
        for step in range(3):
            mine = x.detach().clone().requires_grad_()
            kept[step] = {"x": mine.detach().clone(), "weight": layer.weight.detach().clone(),
                          "bias": layer.bias.detach().clone()}
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                y = layer(mine)
            kept[step]["y"] = y.detach().clone()
            dy = torch.randn(y.shape, device="cuda").to(y.dtype)
            kept[step]["dy"] = dy.clone()
            y.backward(dy)
            kept[step]["main_grad"] = layer.weight.grad.clone()
            if not autocast:
                kept[step]["dx"], kept[step]["dw"] = mine.grad.clone(), layer.weight.grad.clone()
            with torch.no_grad():  # All of it is overwritten before the step ends.
                mine.zero_()
                y.detach().zero_()
                dy.zero_()
                layer.weight.add_(layer.weight.grad, alpha=-0.1)
                layer.bias.zero_()
                layer.weight.grad.zero_()
            layer.weight.grad = None
            c.step()
    name = "autocast" if autocast else "bf16"
    found = [stored(c.directory, record) for record in records(c)]
    check(len(found) == 3, f"{name}: a record of each of 3 steps")
    for step, tensors in enumerate(found):
        wrong = [key for key, value in kept[step].items() if tensors[key] != raw(value)]
        check(not wrong, f"{name}: step {step}: the bits of {', '.join(kept[step])}" + (f", but not of {wrong}" if wrong else ""))
    report = c.verify()
    check(report.passed, f"{name}: within the bounds of the engine: {report.verdict.finding}")


def records(capture):
    return json.loads((pathlib.Path(capture.directory) / "manifest.rank0.json").read_text())["captures"]


def main():
    parser = argparse.ArgumentParser()
    for option, value in (("--blocks", 12), ("--width", 1024), ("--tokens", 8192), ("--rounds", 5), ("--steps", 40)):
        parser.add_argument(option, type=int, default=value)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is there")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    # Backward of attention adds in any order otherwise, and two runs differ without a capture too.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    check_bits(autocast=False)
    check_bits(autocast=True)

    x = torch.randn(arguments.tokens // 1024 or 1, min(arguments.tokens, 1024), arguments.width, device="cuda").bfloat16()
    layer = f"{arguments.blocks // 2}.fc1"
    train(model_of(arguments.blocks, arguments.width), x, 5)  # Warms up.
    times, bits = {False: [], True: []}, {}
    slowest = []
    for round_number in range(arguments.rounds):
        for captured in (False, True):
            model = model_of(arguments.blocks, arguments.width)
            with tempfile.TemporaryDirectory() as directory:
                context = contextlib.nullcontext()
                if captured:
                    context = qg.capture(model, layers=layer.replace(".", r"\."), steps=range(0, arguments.steps, 10),
                                         directory=pathlib.Path(directory) / "c", max_bytes=64 << 30)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                with context as c:
                    losses, seconds = train(model, x, arguments.steps, c)
                whole = time.perf_counter() - begin  # With the writing of the files.
                if captured:
                    slowest.append((statistics.median(seconds[::10]), whole / sum(seconds)))
                    check(len(records(c)) == len(range(0, arguments.steps, 10)), f"round {round_number}: captured steps")
            times[captured].append(sum(seconds) / len(seconds))
            state = (losses, [raw(parameter) for parameter in model.parameters()])
            bits.setdefault(captured, state)
            name = "with" if captured else "without"
            check(state == bits[False], f"round {round_number}: losses and parameters {name} capture")
    plain, with_capture = (statistics.median(times[captured]) for captured in (False, True))
    print(f"step: median of {arguments.rounds} rounds of {arguments.steps} steps: {1e3 * plain:.3f} ms without, "
          f"{1e3 * with_capture:.3f} ms with {layer} captured in one step of ten: ratio {with_capture / plain:.4f}")
    print(f"a captured step: median {1e3 * statistics.median(one for one, _ in slowest):.3f} ms; "
          f"the end of the capture included, the loop took {statistics.median(ratio for _, ratio in slowest):.4f} of its steps")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
