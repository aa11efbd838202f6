"""What torch itself makes of the sources: casts to FP8 under 448.0 / amax, and its integer quantizers, on a CPU."""

import torch

from case_file import Recorder
from torch_tensors import ELEMENTS, loaded, stored

X = loaded()
OUT = Recorder("torch", torch.__version__.split("+")[0], torch.__version__)


def number_over_amax(source, element, block, in_f32):
    x = X[source].float() if in_f32 else X[source]
    amax = x.abs().amax() if block == "tensor" else x.abs().amax(dim=-1, keepdim=True)
    largest = torch.finfo(ELEMENTS[element]).max
    scale = largest / amax
    codes = (x * scale).clamp(-largest, largest).to(ELEMENTS[element])
    OUT.add(f"number_over_amax_{element}_{block}_{source}" + ("_in_f32" if in_f32 else ""), source,
            "torch_number_over_amax", dict(codes=stored(codes), scale=stored(scale)), format=element, block=block,
            scale_is="multiplies", call=f"(x * ({largest} / amax)).clamp(...).to({ELEMENTS[element]})", element=element,
            in_f32=in_f32)


def plain_cast(source, element):
    OUT.add(f"cast_{element}_{source}", source, "torch_cast", dict(codes=stored(X[source].to(ELEMENTS[element]))),
            format=element, block="none", scale_is="none", call=f"x.to({ELEMENTS[element]})", element=element)


def affine(source, block, dtype):
    low, high = (0, 255) if dtype == torch.quint8 else (-128, 127)
    observer = {"tensor": torch.ao.quantization.MinMaxObserver, "row": torch.ao.quantization.PerChannelMinMaxObserver}
    scheme = {("tensor", 0): torch.per_tensor_affine, ("tensor", -128): torch.per_tensor_symmetric,
              ("row", 0): torch.per_channel_affine, ("row", -128): torch.per_channel_symmetric}[block, low]
    observed = observer[block](dtype=dtype, qscheme=scheme)
    observed(X[source])
    scale, zero = observed.calculate_qparams()
    if block == "tensor":
        made = torch.quantize_per_tensor(X[source], float(scale), int(zero), dtype)
    else:
        made = torch.quantize_per_channel(X[source], scale, zero, 0, dtype)
    name = "quint8" if low == 0 else "qint8"
    OUT.add(f"{name}_{block}_{source}", source, "torch_affine", dict(
        codes=stored(made.int_repr()), scale=stored(scale.float()), zero_point=stored(zero.to(torch.int32))),
        format="uint8" if low == 0 else "int8", block=block,
        call=f"{observer[block].__name__}({scheme}), quantize_per_{'tensor' if block == 'tensor' else 'channel'}",
        low=low, high=high)


def main():
    for element in ELEMENTS:
        number_over_amax("normal_bf16", element, "tensor", False)
        number_over_amax("normal_f32", element, "row", False)
    for source in ("normal_bf16", "normal_f16", "wide_f32", "amaxes_bf16", "ladder_f32", "weight_bf16"):
        for block in ("tensor", "row"):
            number_over_amax(source, "e4m3", block, True)
    number_over_amax("amaxes_bf16", "e4m3", "row", False)
    number_over_amax("normal_f16", "e4m3", "row", False)
    for element in ELEMENTS:
        plain_cast("normal_f32", element)
        plain_cast("special_bf16", element)
        plain_cast("special_f32", element)
        plain_cast("wide_f32", element)
    for dtype in (torch.qint8, torch.quint8):
        for block in ("tensor", "row"):
            for source in ("normal_f32", "zeros_f32", "ties_int8_f32"):
                affine(source, block, dtype)
    OUT.write()


if __name__ == "__main__":
    main()
