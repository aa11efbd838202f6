"""Between torch's tensors and those of case files."""

import numpy as np
import torch

import case_file

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8", torch.int8: "I8",
         torch.int32: "I32", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
         torch.float8_e8m0fnu: "F8_E8M0", torch.float8_e4m3fnuz: "U8", torch.float8_e5m2fnuz: "U8"}
ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e4m3fnuz": torch.float8_e4m3fnuz,
            "e5m2fnuz": torch.float8_e5m2fnuz}


def stored(tensor):
    """(safetensors dtype, array); eight-bit floats that safetensors has no name for are U8."""
    tensor = tensor.detach().contiguous()
    name = NAMES[tensor.dtype]
    if name == "BF16":
        return name, tensor.view(torch.int16).numpy().view(np.uint16)
    if case_file.WIDTHS[name] is np.uint8:
        return name, tensor.view(torch.uint8).numpy()
    return name, tensor.numpy()


def loaded():
    """The sources as torch tensors."""
    made = {}
    for name, (dtype, array) in case_file.sources().items():
        tensor = torch.from_numpy(array.copy().view(np.int16) if dtype == "BF16" else array.copy())
        made[name] = tensor.view(torch.bfloat16) if dtype == "BF16" else tensor
    return made
