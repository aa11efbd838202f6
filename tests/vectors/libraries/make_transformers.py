"""What Transformers' own quantizers make: FP8 of tiles, DeepSeek's power-of-two scales, BitNet's int8."""

import types

import torch
import transformers
from transformers.integrations.bitnet import BitLinear
from transformers.integrations.finegrained_fp8 import Fp8Quantize

from case_file import Recorder
from torch_tensors import loaded, stored

X = loaded()
OUT = Recorder("transformers", transformers.__version__, f"torch {torch.__version__}, not compiled")


def tiles(source, block, power_of_two):
    rows, columns = X[source].shape[-2:]
    size = {"tensor": None, "row": (1, columns)}.get(block) or (
        None if block == "tensor" else tuple(int(part) for part in block.split("x")))
    config = types.SimpleNamespace(weight_block_size=size, scale_fmt="ue8m0" if power_of_two else None)
    made = Fp8Quantize(types.SimpleNamespace(quantization_config=config)).convert({"weight": X[source]})
    scale = made[next(key for key in made if key != "weight")]
    OUT.add(f"fp8_{block}_{source}" + ("_ue8m0" if power_of_two else ""), source, "transformers_fp8", dict(
        codes=stored(made["weight"]), scale=stored(scale)), format="e4m3", block=block,
        call=f"Fp8Quantize(weight_block_size={size}, scale_fmt={config.scale_fmt})", power_of_two=power_of_two)


def bitnet(source):
    codes, scale = BitLinear.activation_quant(None, X[source])
    OUT.add(f"bitnet_int8_row_{source}", source, "transformers_bitnet", dict(codes=stored(codes), scale=stored(scale)),
            format="int8", block="row", scale_is="multiplies", call="BitLinear.activation_quant")


def main():
    for power_of_two in (False, True):
        for source in ("normal_bf16", "normal_f16", "normal_f32", "zeros_f32", "wide_f32", "weight_bf16", "ladder_f32"):
            tiles(source, "1x128", power_of_two)
        tiles("weight_bf16", "128x128", power_of_two)
        tiles("normal_f32", "1x32", power_of_two)
        tiles("weight_bf16", "1x256", power_of_two)
        tiles("ladder_f32", "1x16", power_of_two)
        tiles("ladder_bf16", "1x16", power_of_two)
        tiles("zeros_bf16", "row", power_of_two)
        tiles("amaxes_bf16", "1x32", power_of_two)
    for source in ("normal_f32", "normal_bf16", "wide_f32"):
        tiles(source, "tensor", False)
    for source in ("normal_bf16", "normal_f16", "normal_f32", "zeros_f32", "zeros_bf16", "ties_int8_f32",
                   "amaxes_bf16"):
        bitnet(source)
    OUT.write()


if __name__ == "__main__":
    main()
