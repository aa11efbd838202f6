#!/usr/bin/env python3
"""Holds the attention layer to eager PyTorch's on the same GPU, forward and backward.

    torch_attention.py QUANTGATE [SEQUENCE BATCH HEADS GROUPS HEAD_DIM]

Attention is written here with torch.nn.functional.linear, matmul and softmax, differentiated by autograd: scores in
bf16, times a factor, softmax in fp32, probabilities in bf16; positions by halves that turn. QUANTGATE, the command,
computes the same layer under arithmetic cublaslt. exp and the order of softmax's sums are not the same in both, and no
bound is derived for the difference: the program prints what share of the elements is equal, and how far apart the others
are, in units of the largest magnitude of the tensor, and judges neither. It exits 1 where QUANTGATE fails.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

BASE = 10000.0


def heads_of(qkv, heads, groups, dim):
    """q [B][H][S][D] and k, v with their heads repeated, from [S][B][G * (H / G + 2) * D]."""
    sequence, batch, _ = qkv.shape
    per_group = heads // groups
    grouped = qkv.view(sequence, batch, groups, per_group + 2, dim).permute(1, 2, 3, 0, 4)
    q = grouped[:, :, :per_group].reshape(batch, heads, sequence, dim)
    k, v = grouped[:, :, per_group], grouped[:, :, per_group + 1]

    def repeated(t):
        return t[:, :, None].expand(batch, groups, per_group, sequence, dim).reshape(batch, heads, sequence, dim)

    return q, k, repeated, v


def rotated(x, cosines, sines):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosines + turned * sines


def attention(tensors, heads, groups, dim, causal, rotary):
    x, weight, proj = (tensors[name] for name in ("x", "qkv.weight", "proj.weight"))
    sequence, batch, _ = x.shape
    qkv = torch.nn.functional.linear(x, weight)
    q, k, repeated, v = heads_of(qkv, heads, groups, dim)
    if rotary:
        inverse = 1.0 / (BASE ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
        angles = torch.outer(torch.arange(sequence, dtype=torch.float32), inverse)
        angles = torch.cat((angles, angles), dim=-1)
        cosines, sines = (f(angles).to(x.dtype).to(x.device) for f in (torch.cos, torch.sin))
        q, k = rotated(q, cosines, sines), rotated(k, cosines, sines)
    scores = torch.matmul(q, repeated(k).transpose(2, 3)) * (1.0 / math.sqrt(dim))
    if causal:
        mask = torch.full((sequence, sequence), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device).triu(1)
        scores = scores + mask
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
    context = torch.matmul(probabilities, repeated(v))
    merged = context.permute(2, 0, 1, 3).reshape(sequence, batch, heads * dim)
    return torch.nn.functional.linear(merged, proj)


def distance(ours, theirs):
    """Share of equal elements, and the largest difference over the largest magnitude."""
    ours, theirs = ours.cuda(), theirs.cuda().reshape(ours.shape)
    equal = (ours.view(torch.int16) == theirs.view(torch.int16)).float().mean().item()
    a, b = ours.double(), theirs.double()
    return equal, ((a - b).abs().max() / b.abs().max()).item()


def main():
    quantgate = sys.argv[1]
    sequence, batch, heads, groups, dim = map(int, sys.argv[2:7]) if len(sys.argv) > 2 else (512, 2, 8, 2, 64)
    width = heads * dim
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    shapes = {"x": (sequence, batch, width), "qkv.weight": ((heads + 2 * groups) * dim, width),
              "proj.weight": (width, width), "dy": (sequence, batch, width)}
    for causal in (False, True):
        for rotary in (False, True):
            tensors = {name: torch.randn(shape, device="cuda").to(torch.bfloat16) for name, shape in shapes.items()}
            for name in ("qkv.weight", "proj.weight"):
                tensors[name] = (tensors[name].float() * width**-0.5).to(torch.bfloat16)
            leaves = {name: t.clone().requires_grad_(name != "dy") for name, t in tensors.items()}
            y = attention(leaves, heads, groups, dim, causal, rotary)
            y.backward(tensors["dy"])
            theirs = {"y": y.detach(), "dx": leaves["x"].grad, "qkv.dw": leaves["qkv.weight"].grad,
                      "proj.dw": leaves["proj.weight"].grad}
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder)
                save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, path / "in.safetensors")
                command = [quantgate, "--device", "cuda", "run", "--layer", "attention", "--heads", str(heads),
                           "--groups", str(groups), "--mask", "causal" if causal else "none",
                           "--input", f"{path}/in.safetensors:x", "--grad-output", f"{path}/in.safetensors:dy",
                           "--param", f"qkv.weight={path}/in.safetensors:qkv.weight",
                           "--param", f"proj.weight={path}/in.safetensors:proj.weight",
                           "--recipe", "bf16", "--arithmetic", "cublaslt", "-o", f"{path}/out.safetensors"]
                if rotary:
                    command += ["--rotary-base", str(BASE)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    print(done.stdout[-2000:], done.stderr[-2000:])
                    return 1
                ours = load_file(path / "out.safetensors")
            for name, value in theirs.items():
                equal, worst = distance(ours[name], value)
                print(json.dumps({"causal": causal, "rotary": rotary, "output": name, "equal": round(equal, 5),
                                  "worst": worst}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
