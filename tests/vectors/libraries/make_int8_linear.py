"""Writes tests/data/int8_linear.safetensors: torchao's linear of int8 rows by int8 rows with f32 activations, on a CPU.

Operands, scales and results; the sums are checked here against integers of Python.
"""

import json
import pathlib

import torch
import torchao
from torchao.quantization.granularity import PerRow
from torchao.quantization.quantize_.common.quantize_tensor_kwargs import _choose_quant_func_and_quantize_tensor
from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor, QuantizeTensorToInt8Kwargs

import case_file
from torch_tensors import stored

OUT = pathlib.Path(__file__).resolve().parents[2] / "data" / "int8_linear.safetensors"


def main():
    tensors, cases = {}, []
    for index, (m, n, k) in enumerate([(5, 7, 33), (16, 24, 128), (3, 8, 1000)]):
        random = torch.Generator().manual_seed(index)
        x = torch.randn(m, k, generator=random) * 3
        w = torch.randn(n, k, generator=random)
        bias = torch.randn(n, generator=random)
        kwargs = QuantizeTensorToInt8Kwargs(granularity=PerRow())
        weight = Int8Tensor.from_hp(w, PerRow(), act_quant_kwargs=kwargs)
        rows = _choose_quant_func_and_quantize_tensor(x, kwargs)
        with torch.no_grad():
            made = {"a": rows.qdata, "a_scale": rows.scale.reshape(-1), "b": weight.qdata,
                    "b_scale": weight.scale.reshape(-1), "bias": bias,
                    "d": torch.nn.functional.linear(x, weight), "d_bias": torch.nn.functional.linear(x, weight, bias)}
        a, b = rows.qdata.tolist(), weight.qdata.tolist()
        sums = torch._int_mm(rows.qdata, weight.qdata.t().contiguous()) if m > 16 else None
        for i in range(m):
            for j in range(n):
                exact = sum(p * q for p, q in zip(a[i], b[j]))
                assert sums is None or int(sums[i, j]) == exact
                d = torch.tensor(float(exact)) * made["a_scale"][i] * made["b_scale"][j]
                assert d == made["d"][i, j], (i, j)
        for name, tensor in made.items():
            tensors[f"{index}.{name}"] = stored(tensor.contiguous())
        cases.append([m, n, k])
    case_file.write(OUT, tensors, {"library": "torchao", "version": torchao.__version__,
                                   "made_with": f"torch {torch.__version__}", "cases": json.dumps(cases)})
    print(len(cases), "cases", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
