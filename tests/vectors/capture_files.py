"""Writes tests/data/capture: a capture of two steps of three layers (docs/capture.md section 4), by numpy and ml_dtypes alone.

    python3 tests/vectors/capture_files.py tests/data/capture

Every product is formed in fp64 and rounded to f32 and then to bf16. Of step 1 dx of layer b is doubled; all else is right.
Layer d has a class of no known kind, and main_grad is there in step 1 alone.
"""

import json
import pathlib
import struct
import sys

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
M, K, N = 16, 32, 16
FILE_DTYPES = {np.dtype(BF16): ("bf16", "BF16"), np.dtype(np.float32): ("f32", "F32")}


def write(path, tensors, record):
    header, data = {"__metadata__": {"quantgate.capture": json.dumps(record)}}, b""
    for name, tensor in tensors.items():
        content = tensor.tobytes()
        header[name] = {"dtype": FILE_DTYPES[tensor.dtype][1], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def product(a, b):
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32).astype(BF16)


def layer(random, step, name):
    """The tensors of one linear layer."""
    def draw(*shape):
        return random.standard_normal(shape).astype(np.float32).astype(BF16)

    x, weight, bias, dy = draw(M, K), draw(N, K), draw(N), draw(M, N)
    y = x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64)
    dw = product(dy.T, x)
    tensors = {"x": x, "weight": weight, "bias": bias, "y": y.astype(np.float32).astype(BF16), "dy": dy,
               "dx": product(dy, weight), "dw": dw}
    if step == 1:
        tensors["main_grad_before"] = draw(N, K).astype(np.float32)
        tensors["main_grad"] = tensors["main_grad_before"] + dw.astype(np.float32)
        if name == "b":
            tensors["dx"] = (2 * tensors["dx"].astype(np.float32)).astype(BF16)
    return tensors


def main(directory):
    random = np.random.default_rng(2026)
    captures = []
    for step in range(2):
        for order, name in enumerate(("b", "c", "d")):
            tensors = layer(random, step, name)
            kind = "linear" if name != "d" else ""
            if not kind:
                tensors = {"x": tensors["x"], "y": tensors["y"]}
            file = f"step{step}/rank0/{name}.0.safetensors"
            record = {
                "file": file, "module": name, "class": "torch.nn.modules.linear.Linear" if kind else "example.Other",
                "kind": kind, "step": step, "call": 0, "microbatch": 0, "forward_order": order,
                "backward_order": 5 - order if kind else None, "parameters": ["weight", "bias"] if kind else [],
                "left_out": {}, "knobs": {"training": True, "device": "cpu", "autocast": "", "tf32": False},
                "tensors": {key: {"dtype": FILE_DTYPES[value.dtype][0], "shape": list(value.shape),
                                  "strides": [stride // value.itemsize for stride in value.strides]}
                            for key, value in tensors.items()}}
            write(directory / file, tensors, {"version": 1, "rank": 0, "world_size": 1, **record})
            captures.append(record)
    manifest = {"version": 1, "rank": 0, "world_size": 1, "captures": captures, "left_out": ["step 2, b, call 0: max_bytes is 9"]}
    (directory / "manifest.rank0.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
