"""Writes tests/data/level_edges.safetensors: what libraries make of values at the edges of their rules, as codes of levels.

Each case is a call of a library, as in its file of tests/data/libraries, on sources that lie beside it: groups whose scale
rounds to 0, zeros of either sign, infinities, and elements around the two zeros of bitsandbytes' FP4. A group has zeros
of one sign only: of both, which one a minimum gives depends on the width of the library's vector loops.
"""

import json
import pathlib

import bitsandbytes
import compressed_tensors
import gguf
import modelopt
import numpy as np
import torch
import torchao
from bitsandbytes import functional
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import helpers
from modelopt.torch.quantization.qtensor.nf4_tensor import NF4QTensor
from optimum.quanto import MaxOptimizer, qtypes, quantize_weight
from torchao.quantization.quantize_.workflows.nf4 import nf4_tensor

import case_file
from torch_tensors import stored

OUT = pathlib.Path(__file__).resolve().parents[2] / "data" / "level_edges.safetensors"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LEAST = {"f32": 2.0**-149, "bf16": 2.0**-133, "f16": 2.0**-24}
INFINITY = float("inf")
TENSORS, CASES = {}, []


def source(name, rows, dtype):
    """Rows of their first elements, and of what fills them."""
    made = torch.stack([torch.tensor(list(row) + [fill] * (64 - len(row)), dtype=torch.float64) for row, fill in rows])
    made = made.to(DTYPES[dtype])
    TENSORS[f"{name}_{dtype}.source"] = stored(made)
    return made


def add(library, rule, block, arguments, of, made):
    name = str(len(CASES))
    for kind, tensor in made.items():
        TENSORS[f"{name}.{kind}"] = tensor
    CASES.append(dict(name=name, library=library, source=f"{of}.source", rule=rule, arguments=arguments, block=block))


def compressed_int(x, of, bits):
    args = QuantizationArgs(num_bits=bits, type="int", strategy="channel", symmetric=False)
    scale, zero = helpers.calculate_qparams(torch.amin(x, -1, keepdim=True), torch.amax(x, -1, keepdim=True), args)
    add("compressed_tensors", "compressed_int", "row", dict(bits=bits, symmetric=False, packed=False), of,
        dict(codes=stored(quantize(x, scale, zero, args, dtype=torch.int8)), scale=stored(scale), zero_point=stored(zero)))


def quanto(x, of):
    scale, shift = MaxOptimizer()(x, qtypes["qint4"], 0, 32, zeropoint=False)
    made = quantize_weight(x, qtypes["qint4"], 0, scale, shift, 32, optimized=False)
    add("optimum_quanto", "quanto_few_bits", "1x32", dict(bits=4, integer_shift=False), of,
        dict(codes=stored(made._data._data), scale=stored(scale), zero_point=stored(shift)))


def four_bits(x, of, kind):
    codes, state = functional.quantize_4bit(x, blocksize=64, quant_type=kind)
    add("bitsandbytes", "bitsandbytes_four_bits", "", dict(size=64, kind=kind), of,
        dict(codes=stored(codes), scale=stored(state.absmax)))


def ggml(x, of, kind):
    add("gguf", f"gguf_{kind.lower()}", "1x32", {}, of,
        dict(codes=("U8", gguf.quantize(x.float().numpy(), gguf.GGMLQuantizationType[kind]))))


def main():
    for dtype in DTYPES:
        t = LEAST[dtype]
        # Under a scale of 0 compressed-tensors' zero point is 0 of 0 / 0, and 127 or 7 of what lies below 0.
        small = source("small", [([], 0.0), ([], -0.0), ([0, 3 * t], 0.0), ([0, -3 * t], 0.0), ([-t, 2 * t], -0.0),
                                 ([0.5], 0.0), ([-0.5, t], -0.0)], dtype)
        for bits in (8, 4):
            compressed_int(small, f"small_{dtype}", bits)
        # What is least is a zero: its sign is that of all zeros of the group.
        zeros = source("zeros", [([3, 0.0, 5], 3.0), ([3, -0.0, 5], 3.0), ([], 0.5)], dtype)
        quanto(zeros, f"zeros_{dtype}")
        ggml(zeros, f"zeros_{dtype}", "Q4_1")
        # A little above 0 is place 8 of bitsandbytes' FP4, zeros and a little below are place 0.
        near = [1, 1e-4, -1e-4, 0.0, -0.0, t, -t, 1 / 384, -1 / 384, 0.00261, -0.00261, 0.0026, -0.0026]
        infinite = [INFINITY, -INFINITY, 5, -5, 0.0, -0.0, t, -t]
        edges = source("edges", [(near, 0.0), ([-v for v in near], -0.0), (infinite, 1.0), ([2, INFINITY], -1.0),
                                 ([], 0.0), ([], -0.0)], dtype)
        for kind in ("nf4", "fp4"):
            four_bits(edges, f"edges_{dtype}", kind)
            # A last run that is shorter divides by its amax.
            short = edges[:, :10].reshape(-1)[:58].reshape(1, -1).contiguous()
            TENSORS[f"short_{dtype}.source"] = stored(short)
            four_bits(short, f"short_{dtype}", kind)
            short = torch.roll(short, -20)  # The infinities first.
            TENSORS[f"turned_{dtype}.source"] = stored(short)
            four_bits(short, f"turned_{dtype}", kind)
        if dtype == "f16":
            continue
        # Of a run of zeros these divide 0 by 0.
        levels = source("levels", [(near, 0.5), (infinite, 1.0), ([2, INFINITY], -1.0), ([], -0.0)], dtype)
        codes = nf4_tensor.to_nf4(levels, 64, 2).quantized_data
        add("torchao", "nf4_of_rounded_quotient", "1x64", dict(levels_in=dtype), f"levels_{dtype}",
            dict(codes=stored(codes), scale=stored(nf4_tensor.get_block_absmax(levels.flatten(), 64))))
        made, scale = NF4QTensor.quantize(levels.clone(), 64, 2)
        add("modelopt", "nf4_of_rounded_quotient", "1x64", dict(levels_in="bf16"), f"levels_{dtype}",
            dict(codes=stored(made._quantized_data), scale=stored(scale)))
    # ggml's 1 / d is 0 where d is 0: of zeros, and of what its division rounds to 0.
    t = LEAST["f32"]
    nothing = source("nothing", [([], 0.0), ([], -0.0), ([0, 63 * t], 0.0), ([0, -63 * t], -0.0), ([4 * t], 0.0),
                                 ([-4 * t], -0.0), ([7 * t], 0.0), ([0, -7 * t], -7 * t)], "f32")
    for kind, rows in (("Q8_0", 8), ("Q4_0", None), ("Q4_1", None)):
        used = nothing if rows else nothing[[0, 1, 4, 5]] if kind == "Q4_0" else nothing[[0, 1, 4, 6, 7]]
        TENSORS[f"nothing_{kind}_f32.source"] = stored(used)
        ggml(used, f"nothing_{kind}_f32", kind)
    del TENSORS["nothing_f32.source"]
    versions = dict(bitsandbytes=bitsandbytes.__version__, compressed_tensors=compressed_tensors.__version__,
                    gguf="0.19.0", modelopt=modelopt.__version__, optimum_quanto="0.2.7", torchao=torchao.__version__,
                    torch=torch.__version__, numpy=np.__version__)
    case_file.write(OUT, TENSORS, {"origin": "tests/vectors/libraries/make_level_edges.py: the libraries' own calls, on "
                                             "a CPU", "versions": json.dumps(versions), "cases": json.dumps(CASES)})
    print(len(CASES), "cases", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
