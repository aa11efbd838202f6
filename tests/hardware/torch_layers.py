#!/usr/bin/env python3
"""Records what torch computes on a Hopper GPU for layers of several operations, forward and backward.

    torch_layers.py data/bytegpt_block1.safetensors tests/data/golden_layers.json

layernorm_linear, layernorm_mlp and grouped_linear under bf16 and fp8_current with every backward override. GEMMs are
torch._scaled_mm and torch.matmul; quantization is torch_layer.py's; norms are tests/vectors/norm_reference.py and
activations are written here from docs/quantizers.md section 10.6, both numpy's float32, one operation for each
operation there: nothing of the engine that is tested against the result. Beside them torch's own norms and
activations are held to the distance that their roundings explain, and the worst is printed.
"""
import datetime
import hashlib
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "vectors"))
import norm_reference  # noqa: E402
from torch_layer import Quantized, both_libraries, describe, fp8_gemm, raw_bytes  # noqa: E402

F32 = np.float32
EPSILON = 1e-5
ACT = torch.bfloat16


def to_numpy(tensor):
    return tensor.detach().float().cpu().numpy()


def to_torch(values, dtype=ACT):
    return torch.from_numpy(np.ascontiguousarray(values.astype(F32))).to(dtype).cuda()


def index_values(shape, scale):
    """((i * 2654435761 mod 2^32) >> 16 - 32768) * scale in bf16, i the index: reproducible anywhere."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mixed = ((index * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)) >> np.uint64(16)
    return to_torch(((mixed.astype(np.int64) - 32768).astype(F32) * F32(scale)).reshape(shape))


def column_sums(tensor):
    return to_torch(norm_reference.pairwise(to_numpy(tensor).T))


# ---- activations

def tanh(x):
    return np.tanh(x.astype(np.float64)).astype(F32)


def sigmoid(x):
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(F32)


def gelu(h):
    return h * (F32(0.5) + F32(0.5) * tanh(h * (F32(0.79788456) + (F32(0.03567741) * h) * h)))


def gelu_backward(dy, h):
    t = tanh((F32(0.79788456) * h) * (F32(1) + (F32(0.044715) * h) * h))
    slope = (F32(0.5) * h) * ((F32(1) - t * t) * (F32(0.79788456) + (F32(0.1070322243) * h) * h)) + F32(0.5) * (F32(1) + t)
    return slope * dy


def swiglu(h):
    x, gate = np.split(h, 2, axis=-1)
    return (x * sigmoid(x)) * gate


def swiglu_backward(dy, h):
    x, gate = np.split(h, 2, axis=-1)
    s = sigmoid(x)
    slope = x * (s * (F32(1) - s)) + s
    return np.concatenate([(slope * dy) * gate, dy * (x * s)], axis=-1)


ACTIVATIONS = {"gelu": (gelu, gelu_backward), "swiglu": (swiglu, swiglu_backward)}


# ---- one linear, forward and backward, as every layer has it

class Linear:
    def __init__(self, case, name, weight, bias, notes):
        self.case, self.name, self.weight, self.bias, self.notes = case, name, weight, bias, notes

    def plain(self, what, compute):
        return both_libraries(f"{self.case['name']} {self.name}{what}", compute, self.notes)

    def forward(self, x):
        self.x = x
        if self.case["recipe"] == "bf16":
            if self.bias is None:
                return self.plain("y", lambda: x @ self.weight.t())
            return self.plain("y", lambda: torch.addmm(self.bias, x, self.weight.t()))
        self.qx, self.qw = (Quantized(t, "f8_e4m3", False) for t in (x, self.weight))
        return fp8_gemm(self.qx.codes, self.qw.codes, self.qx.device_scale_inv, self.qw.device_scale_inv, ACT, True, self.bias)

    def backward(self, dy):
        override = self.case["backward_override"]
        if self.case["recipe"] == "bf16" or override == "high_precision":
            w, x = self.weight, self.x
        elif override == "dequantized":
            w, x = self.qw.dequantized(ACT), self.qx.dequantized(ACT)
        else:
            q = Quantized(dy, "f8_e5m2", False)
            dx = fp8_gemm(q.codes, self.qw.codes.t(), q.device_scale_inv, self.qw.device_scale_inv, ACT, False)
            dw = fp8_gemm(q.codes.t(), self.qx.codes.t(), q.device_scale_inv, self.qx.device_scale_inv, ACT, False)
            return dx, dw
        return self.plain("dx", lambda: dy @ w), self.plain("dw", lambda: dy.t() @ x)


class Norm:
    def __init__(self, case, gamma, beta):
        self.kind, self.gamma = case["norm"], gamma
        self.beta = beta if self.kind == "layernorm" else None

    def forward(self, x):
        self.x = x
        beta = None if self.beta is None else to_numpy(self.beta)
        y, self.mean, self.rstd = norm_reference.forward(self.kind, False, EPSILON, to_numpy(x), to_numpy(self.gamma), beta)
        return to_torch(y)

    def backward(self, dz):
        dx, dgamma, dbeta = norm_reference.backward(
            self.kind, False, to_numpy(dz), to_numpy(self.x), to_numpy(self.gamma), self.mean, self.rstd, None
        )
        outputs = {"dx": to_torch(dx), "dgamma": to_torch(dgamma)}
        if self.kind == "layernorm":
            outputs["dbeta"] = to_torch(dbeta)
        return outputs


# ---- layers

def layernorm_linear(t, case, notes):
    norm = Norm(case, t["ln2.weight"], t["ln2.bias"])
    linear = Linear(case, "", t["fc1.weight"], t["fc1.bias"], notes)
    out = norm.forward(t["ln2.x"])
    y = linear.forward(out)
    dz, dw = linear.backward(t["fc1.dy"])
    return {"y": y, "norm_out": out, **norm.backward(dz), "dw": dw, "db": column_sums(t["fc1.dy"])}


def layernorm_mlp(t, case, notes):
    value, gradient = ACTIVATIONS[case["activation"]]
    hidden = t["fc1.weight"].shape[0] // (2 if case["activation"] == "swiglu" else 1)
    norm = Norm(case, t["ln2.weight"], t["ln2.bias"])
    fc1 = Linear(case, "fc1.", t["fc1.weight"], t["fc1.bias"], notes)
    fc2 = Linear(case, "fc2.", index_values((512, hidden), 2.0**-20), index_values((512,), 2.0**-17), notes)
    h = fc1.forward(norm.forward(t["ln2.x"]))
    a = to_torch(value(to_numpy(h)))
    y = fc2.forward(a)
    dy = t["ln2.dy"]
    da, dw2 = fc2.backward(dy)
    dh = to_torch(gradient(to_numpy(da), to_numpy(h)))
    dz, dw1 = fc1.backward(dh)
    return {
        "y": y, **norm.backward(dz), "fc1.dw": dw1, "fc1.db": column_sums(dh), "fc2.dw": dw2, "fc2.db": column_sums(dy),
    }


def grouped_linear(t, case, notes):
    outputs, ys, dxs, begin = {}, [], [], 0
    for expert, rows in enumerate(case["m_splits"]):
        weight = t["fc1.weight"] if expert % 2 == 0 else index_values(tuple(t["fc1.weight"].shape), 2.0**-20)
        bias = t["fc1.bias"] if expert % 2 == 0 else index_values(tuple(t["fc1.bias"].shape), 2.0**-17)
        x, dy = t["fc1.x"][begin : begin + rows], t["fc1.dy"][begin : begin + rows]
        begin += rows
        if rows == 0:
            outputs[f"dw.{expert}"], outputs[f"db.{expert}"] = torch.zeros_like(weight), torch.zeros_like(bias)
            continue
        linear = Linear(case, f"{expert}.", weight, bias, notes)
        ys.append(linear.forward(x.contiguous()))
        dx, outputs[f"dw.{expert}"] = linear.backward(dy.contiguous())
        dxs.append(dx)
        outputs[f"db.{expert}"] = column_sums(dy)
    return {"y": torch.cat(ys), "dx": torch.cat(dxs), **outputs}


LAYERS = {"layernorm_linear": layernorm_linear, "layernorm_mlp": layernorm_mlp, "grouped_linear": grouped_linear}


def all_cases():
    for recipe, override in (("bf16", "none"), ("fp8_current", "none"), ("fp8_current", "high_precision"),
                             ("fp8_current", "dequantized")):
        base = {"recipe": recipe, "backward_override": override}
        for norm in ("layernorm", "rmsnorm"):
            yield {"layer": "layernorm_linear", "norm": norm, **base}
        yield {"layer": "layernorm_mlp", "norm": "layernorm", "activation": "gelu", **base}
        yield {"layer": "layernorm_mlp", "norm": "rmsnorm", "activation": "swiglu", **base}
        yield {"layer": "grouped_linear", "m_splits": [64, 0, 128, 64], **base}


def distance_in_ulps(ours, theirs):
    """Of bf16 values."""
    def order(tensor):
        bits = tensor.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)
    return (order(ours) - order(theirs)).abs()


def compare_with_torch(t):
    """Our definitions of norms and activations beside torch's own kernels."""
    x, gamma, beta = t["ln2.x"], t["ln2.weight"], t["ln2.bias"]
    pairs = {
        "layernorm": (Norm({"norm": "layernorm"}, gamma, beta).forward(x),
                      torch.nn.functional.layer_norm(x, (x.shape[1],), gamma, beta, EPSILON)),
        "rmsnorm": (Norm({"norm": "rmsnorm"}, gamma, None).forward(x),
                    torch.nn.functional.rms_norm(x.float(), (x.shape[1],), gamma.float(), EPSILON).to(ACT)),
    }
    h = t["fc1.dy"] * 1000
    pairs["gelu"] = (to_torch(gelu(to_numpy(h))), torch.nn.functional.gelu(h.float(), approximate="tanh").to(ACT))
    first, second = h.float().chunk(2, -1)
    pairs["swiglu"] = (to_torch(swiglu(to_numpy(h))), (torch.nn.functional.silu(first) * second).to(ACT))
    lines = []
    for name, (ours, theirs) in pairs.items():
        distance = distance_in_ulps(ours, theirs)
        lines.append({"operation": name, "elements": distance.numel(), "different": int((distance > 0).sum()),
                      "worst_ulps": int(distance.max())})
    return lines


def main():
    source, target = sys.argv[1:]
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    tensors = {k: v.cuda() for k, v in load_file(source).items()}
    cases, notes = [], []
    for case in all_cases():
        case["name"] = " ".join(str(v) for v in case.values())
        outputs = LAYERS[case["layer"]](tensors, case, notes)
        cases.append({**case, "outputs": {k: describe(v) for k, v in outputs.items()}})
    golden = {
        "origin": f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, cuBLASLt as torch "
        f"links it; recorded {datetime.date.today()} by tests/hardware/torch_layers.py; norms and activations in numpy "
        f"{np.__version__}; reduced-precision reductions not allowed",
        "inputs": {k: hashlib.sha256(raw_bytes(v)).hexdigest() for k, v in sorted(tensors.items())},
        "torch_operations": compare_with_torch(tensors),
        "cases": cases,
    }
    with open(target, "w") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")
    print(golden["origin"])
    for line in golden["torch_operations"]:
        print(line)
    for note in notes:
        print("NOTE", note)
    print(f"{len(cases)} cases recorded")


if __name__ == "__main__":
    main()
