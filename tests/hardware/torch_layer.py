#!/usr/bin/env python3
"""Records what torch computes on a Hopper GPU for one linear layer, forward and backward.

    torch_layer.py data/bytegpt_block1.safetensors tests/data/golden_layer_fc1.json

Quantization here is written from the rules (fp8_current: scale = max / amax in fp32, clamp, cast) with numpy and
torch alone, and the GEMMs are torch._scaled_mm and torch.matmul: nothing of the engine that is tested against the
result. Outputs are kept as SHA-256 of their bytes, with the first elements of four rows to look at when they differ.
"""
import datetime
import hashlib
import json
import sys

import numpy as np
import torch
from safetensors.torch import load_file

FP8_MAX = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}
TORCH_DTYPE = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
}
DTYPE_NAME = {dtype: name for name, dtype in TORCH_DTYPE.items()}
HEAD_ROWS, HEAD_COLUMNS = 4, 16


def raw_bytes(tensor):
    return tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()


def describe(tensor):
    """Identity of a tensor, and its first elements as hex codes."""
    width = tensor.element_size()
    head = []
    for row in tensor.reshape(-1, tensor.shape[-1])[:HEAD_ROWS, :HEAD_COLUMNS]:
        data = raw_bytes(row)
        head.append(" ".join(data[i : i + width][::-1].hex() for i in range(0, len(data), width)))
    return {
        "dtype": DTYPE_NAME[tensor.dtype],
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(raw_bytes(tensor)).hexdigest(),
        "head": head,
    }


def float_bits(value):
    return np.float32(value).view(np.uint32).item().to_bytes(4, "big").hex()


class Quantized:
    """Per-tensor FP8 with current scaling."""

    def __init__(self, tensor, element, power_2):
        amax = np.float32(tensor.abs().max().float().item())
        scale = np.float32(FP8_MAX[element]) / amax
        if power_2:
            scale = (scale.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
        self.amax, self.scale = amax, scale
        self.scale_inv = np.float32(1.0) / scale
        scaled = tensor.float() * torch.tensor(scale, device=tensor.device)
        limit = FP8_MAX[element]
        self.codes = scaled.clamp(-limit, limit).to(TORCH_DTYPE[element])
        self.device_scale_inv = torch.tensor(self.scale_inv, device=tensor.device)

    def dequantized(self, dtype):
        return (self.codes.float() * self.device_scale_inv).to(dtype)

    def describe(self):
        return {
            "codes": describe(self.codes),
            "amax": float_bits(self.amax),
            "scale": float_bits(self.scale),
            "scale_inv": float_bits(self.scale_inv),
        }


def fp8_gemm(a, b, a_scale, b_scale, out_dtype, fast, bias=None):
    """a [m][k] times b [n][k] transposed."""
    return torch._scaled_mm(
        a.contiguous(), b.contiguous().t(), scale_a=a_scale, scale_b=b_scale, bias=bias, out_dtype=out_dtype,
        use_fast_accum=fast,
    )


def both_libraries(name, compute, disagreements):
    """Runs a high-precision GEMM through cuBLAS and cuBLASLt; returns cuBLASLt's result."""
    torch.backends.cuda.preferred_blas_library("cublas")
    first = compute()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    second = compute()
    if raw_bytes(first) != raw_bytes(second):
        disagreements.append(f"{name}: cuBLAS and cuBLASLt differ")
    return second


def main_grad_of(shape, device):
    """A gradient to accumulate into, a function of the index: ((i * 2654435761 mod 2^32) >> 16 - 32768) * 2^-22."""
    index = np.arange(shape[0] * shape[1], dtype=np.uint64)
    mixed = ((index * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(16)
    values = (mixed.astype(np.int64) - 32768).astype(np.float32) * np.float32(2.0**-22)
    return torch.from_numpy(values.reshape(shape)).to(device)


def run_case(tensors, case):
    """Forward and backward of y = x w^T + bias under one case's recipe."""
    rows, act = case["rows"], TORCH_DTYPE[case["activation_dtype"]]
    x, w, dy = (tensors[n].to(act) for n in ("fc1.x", "fc1.weight", "fc1.dy"))
    x, dy = x[:rows].contiguous(), dy[:rows].contiguous()
    bias = tensors["fc1.bias"].to(act) if case["bias"] else None
    notes, operands = [], {}
    name = case["name"]
    grad_dtype = torch.float32 if case["main_grad"] else act

    def high_precision_backward(w_operand, x_operand):
        dx = both_libraries(f"{name} dx", lambda: dy @ w_operand, notes)
        if case["main_grad"] and act != torch.float32:
            dw = both_libraries(f"{name} dw", lambda: torch.mm(dy.t(), x_operand, out_dtype=torch.float32), notes)
        else:
            dw = both_libraries(f"{name} dw", lambda: dy.t() @ x_operand, notes)
        return dx, dw

    if case["recipe"] == "bf16":
        if bias is None:
            y = both_libraries(f"{name} y", lambda: x @ w.t(), notes)
        else:
            y = both_libraries(f"{name} y", lambda: torch.addmm(bias, x, w.t()), notes)
        dx, dw = high_precision_backward(w, x)
    else:
        forward, backward = "f8_e4m3", "f8_e5m2" if case["fp8_format"] == "hybrid" else "f8_e4m3"
        qx, qw = (Quantized(t, forward, case["power_2_scales"]) for t in (x, w))
        operands = {"input": qx.describe(), "weight": qw.describe()}
        y = fp8_gemm(qx.codes, qw.codes, qx.device_scale_inv, qw.device_scale_inv, act, True, bias)
        if case["backward_override"] == "none":
            qdy = Quantized(dy, backward, case["power_2_scales"])
            operands["grad_output"] = qdy.describe()
            dx = fp8_gemm(qdy.codes, qw.codes.t(), qdy.device_scale_inv, qw.device_scale_inv, act, False)
            dw = fp8_gemm(
                qdy.codes.t(), qx.codes.t(), qdy.device_scale_inv, qx.device_scale_inv, grad_dtype, False
            )
        elif case["backward_override"] == "high_precision":
            dx, dw = high_precision_backward(w, x)
        else:
            dx, dw = high_precision_backward(qw.dequantized(act), qx.dequantized(act))
    outputs = {"y": y, "dx": dx, "dw": dw}
    if case["main_grad"]:
        outputs["main_grad"] = outputs.pop("dw") + main_grad_of(dw.shape, dw.device)
    return {
        **case,
        "operands": operands,
        "outputs": {k: describe(v) for k, v in outputs.items()},
    }, notes


def all_cases():
    def case(recipe, override="none", fmt="hybrid", power_2=False, act="bf16", bias=True, rows=256, main_grad=False):
        name = f"{recipe} {act} rows {rows}"
        if recipe != "bf16":
            name += f" {fmt} power_2 {power_2} override {override}"
        name += ("" if bias else " no bias") + (" main_grad" if main_grad else "")
        return {
            "name": name, "recipe": recipe, "backward_override": override, "fp8_format": fmt,
            "power_2_scales": power_2, "activation_dtype": act, "bias": bias, "rows": rows, "main_grad": main_grad,
        }

    yield case("bf16")
    yield case("bf16", bias=False)
    yield case("bf16", main_grad=True)
    yield case("bf16", rows=40)
    yield case("bf16", act="f16")
    for override in ("none", "high_precision", "dequantized"):
        yield case("fp8_current", override)
        yield case("fp8_current", override, main_grad=True)
        yield case("fp8_current", override, act="f16")
        yield case("fp8_current", override, act="f32", bias=False)
        yield case("fp8_current", override, power_2=True)
    for power_2 in (False, True):
        yield case("fp8_current", fmt="e4m3", power_2=power_2)
    yield case("fp8_current", rows=144)
    yield case("fp8_current", rows=16, fmt="e4m3")


def main():
    source, target = sys.argv[1:]
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    tensors = {k: v.cuda() for k, v in load_file(source).items() if k.startswith("fc1.")}
    cases, notes = [], []
    for case in all_cases():
        try:
            result, differing = run_case(tensors, case)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            notes.append(f"{case['name']}: refused: {str(error).splitlines()[0]}")
            continue
        cases.append(result)
        notes.extend(differing)
    golden = {
        "origin": f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, cuBLASLt "
        f"as torch links it; recorded {datetime.date.today()} by tests/hardware/torch_layer.py; TF32 allowed, "
        "reduced-precision reductions not",
        "inputs": {k: hashlib.sha256(raw_bytes(v)).hexdigest() for k, v in sorted(tensors.items())},
        "cases": cases,
    }
    with open(target, "w") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")
    print(golden["origin"])
    for note in notes:
        print("NOTE", note)
    print(f"{len(cases)} cases recorded")


if __name__ == "__main__":
    main()
