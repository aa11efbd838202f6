"""What torchao makes of the sources: FP8, MX, NVFP4, int8, int4 and NF4, by its own calls on a CPU."""

import torch
import torchao
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import LinearMMConfig
from torchao.kernel.blockwise_quantization import blockwise_fp8_gemm  # noqa: F401
from torchao.prototype.blockwise_fp8_training import kernels as blockwise
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.quantization import quant_primitives as primitives
from torchao.quantization.granularity import PerBlock, PerRow, PerTensor
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference
from torchao.quantization.quantize_.workflows.float8.float8_tensor import Float8Tensor
from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.nf4 import nf4_tensor

from case_file import Recorder
from torch_tensors import ELEMENTS, loaded, stored

X = loaded()
OUT = Recorder("torchao", torchao.__version__, f"torch {torch.__version__}")
INTX = {torch.int4: "int4", torch.int8: "int8"}


def float8_tensor(source, element, block, granularity, **bounds):
    made = Float8Tensor.from_hp(X[source], ELEMENTS[element], granularity, kernel_preference=KernelPreference.TORCH,
                                **bounds)
    name = f"float8_{element}_{block}_{source}" + ("_floor" if bounds else "")
    OUT.add(name, source, "torchao_float8", dict(codes=stored(made.qdata), scale=stored(made.scale)), format=element,
            block=block, call=f"Float8Tensor.from_hp({granularity}, {bounds})", element=element,
            smallest_amax=bounds.get("hp_value_lb", 0.0))


def float8_group(source, element, block):
    sizes = [1] * (X[source].dim() - 2) + [int(size) for size in block.split("x")]
    scale = primitives._choose_scale_float8(X[source], sizes, ELEMENTS[element])
    codes = primitives._quantize_affine_float8(X[source], scale, ELEMENTS[element])
    OUT.add(f"float8_{element}_{block}_{source}", source, "torchao_float8",
            dict(codes=stored(codes), scale=stored(scale)), format=element, block=block,
            call="_choose_scale_float8, _quantize_affine_float8", element=element, smallest_amax=0.0)


def float8_training(source, element, block, power_of_two=False):
    axis = {"tensor": None, "row": -1, "column": 0}[block]
    granularity = ScalingGranularity.TENSORWISE if axis is None else ScalingGranularity.AXISWISE
    made = hp_tensor_to_float8_dynamic(X[source], ELEMENTS[element], LinearMMConfig(), scaling_granularity=granularity,
                                       axiswise_dim=axis, round_scales_to_power_of_2=power_of_two)
    OUT.add(f"training_{element}_{block}_{source}" + ("_pow2" if power_of_two else ""), source, "torchao_training",
            dict(codes=stored(made._data), scale=stored(made._scale)), format=element, block=block,
            call=f"hp_tensor_to_float8_dynamic(round_scales_to_power_of_2={power_of_two})", scale_is="multiplies",
            element=element, power_of_two=power_of_two)


def float8_blockwise(source, block):
    quantize = {"1x128": blockwise.torch_blockwise_scale_act_quant_lhs,
                "128x1": blockwise.torch_blockwise_scale_act_quant_rhs,
                "128x128": blockwise.torch_blockwise_scale_weight_quant}[block]
    codes, scale = quantize(X[source])
    OUT.add(f"blockwise_{block}_{source}", source, "torchao_blockwise", dict(codes=stored(codes), scale=stored(scale)),
            format="e4m3", block=block, call=quantize.__name__)


def mx(source, element, mode, swizzled=False):
    dtype = {"e2m3": "fp6_e2m3", "e3m2": "fp6_e3m2", "e2m1": torch.float4_e2m1fn_x2}.get(element, ELEMENTS.get(element))
    made = MXTensor.to_mx(X[source], dtype, 32, ScaleCalculationMode(mode), is_swizzled_scales=swizzled)
    packing = {"e2m1": "two a byte, the even column low"}.get(element, "one a byte")
    OUT.add(f"mx_{element}_{mode}_{source}" + ("_swizzled" if swizzled else ""), source, "torchao_mx",
            dict(codes=stored(made.qdata), scale=stored(made.scale)), format=element, block="1x32", packing=packing,
            call=f"MXTensor.to_mx({dtype}, 32, {mode}, is_swizzled_scales={swizzled})", element=element, mode=mode,
            swizzled=swizzled)


def nvfp4(source, levels, swizzled=False):
    scale = per_tensor_amax_to_scale(X[source].abs().max()) if levels == 2 else None
    made = NVFP4Tensor.to_nvfp4(X[source], per_tensor_scale=scale, is_swizzled_scales=swizzled)
    tensors = dict(codes=stored(made.qdata), scale=stored(made.scale))
    if levels == 2:
        tensors["tensor_scale"] = stored(scale.reshape(1))
    OUT.add(f"nvfp4_{levels}_level_{source}" + ("_swizzled" if swizzled else ""), source, "torchao_nvfp4", tensors,
            format="e2m1", block="1x16", packing="two a byte, the even column low",
            call=f"NVFP4Tensor.to_nvfp4(per_tensor_scale={'amax / 2688' if levels == 2 else None}, {swizzled=})",
            levels=levels, swizzled=swizzled)


def int8(source, block, mapping):
    granularity = {"tensor": PerTensor(), "row": PerRow()}[block]
    made = Int8Tensor.from_hp(X[source], granularity, primitives.MappingType[mapping])
    OUT.add(f"int8_{block}_{mapping.lower()}_{source}", source, "torchao_int", dict(
        codes=stored(made.qdata), scale=stored(made.scale), zero_point=stored(made.zero_point)), format="int8",
        block=block, call=f"Int8Tensor.from_hp({granularity}, {mapping})", mapping=mapping, low=-128, high=127,
        scale_in_f32=True)


def intx(source, dtype, group, mapping):
    made = IntxUnpackedToInt8Tensor.from_hp(X[source], (1, group), dtype, mapping_type=primitives.MappingType[mapping])
    low, high = (-8, 7) if dtype == torch.int4 else (-128, 127)
    OUT.add(f"intx_{INTX[dtype]}_1x{group}_{mapping.lower()}_{source}", source, "torchao_int", dict(
        codes=stored(made.qdata), scale=stored(made.scale), zero_point=stored(made.zero_point)), format=INTX[dtype],
        block=f"1x{group}", call=f"IntxUnpackedToInt8Tensor.from_hp((1, {group}), {dtype}, {mapping})",
        mapping=mapping, low=low, high=high, scale_in_f32=False)


def tinygemm(source, group):
    arguments = (primitives.MappingType.ASYMMETRIC, (1, group), torch.int32, 0, 15)
    scale, zero = primitives._choose_qparams_affine_tinygemm(X[source], *arguments)
    codes = primitives._quantize_affine_tinygemm(X[source], (1, group), scale, zero, torch.uint8, 0, 15)
    OUT.add(f"tinygemm_int4_1x{group}_{source}", source, "torchao_tinygemm", dict(
        codes=stored(codes), scale=stored(scale), zero_point=stored(zero)), format="uint4", block=f"1x{group}",
        call="_choose_qparams_affine_tinygemm, _quantize_affine_tinygemm")


def nf4(source):
    made = nf4_tensor.to_nf4(X[source], 64, 64)
    scale = nf4_tensor.get_block_absmax(X[source].flatten(), 64)
    OUT.add(f"nf4_1x64_{source}", source, "nf4_of_rounded_quotient", dict(
        codes=stored(made.quantized_data), scale=stored(scale)), format="nf4", block="1x64",
        packing="two a byte, the even column high", call="to_nf4(64, 64).quantized_data, get_block_absmax",
        levels_in={"bf16": "bf16", "f32": "f32"}[source.rsplit("_", 1)[1]])


def main():
    for source in ("normal_bf16", "normal_f16", "normal_f32", "wide_f32", "cube_bf16", "ragged_bf16", "amaxes_bf16"):
        float8_tensor(source, "e4m3", "tensor", PerTensor())
        float8_tensor(source, "e4m3", "row", PerRow())
    for element in ("e5m2", "e4m3fnuz", "e5m2fnuz"):
        float8_tensor("normal_bf16", element, "tensor", PerTensor())
        float8_tensor("wide_bf16", element, "row", PerRow())
    float8_tensor("zeros_bf16", "e4m3", "row", PerRow(), hp_value_lb=1e-12)
    float8_tensor("ties_e4m3_f32", "e4m3", "row", PerRow())
    float8_tensor("weight_bf16", "e4m3", "128x128", PerBlock([128, 128]))
    float8_tensor("wide_bf16", "e4m3", "1x128", PerBlock([1, 128]))
    for group in (32, 64, 128):
        float8_group("normal_f32", "e4m3", f"1x{group}")
        float8_group("wide_bf16", "e5m2", f"1x{group}")
    float8_group("weight_bf16", "e4m3", "1x256")
    float8_group("cube_f32", "e4m3", "1x64")
    for source in ("normal_bf16", "normal_f32", "wide_f32", "zeros_f32", "ladder_f32"):
        for block in ("tensor", "row", "column"):
            float8_training(source, "e4m3", block)
    for element in ("e5m2", "e4m3fnuz", "e5m2fnuz"):
        float8_training("normal_bf16", element, "tensor")
    for source in ("wide_bf16", "ladder_f32", "zeros_bf16"):
        float8_training(source, "e4m3", "row", power_of_two=True)
    float8_training("normal_f32", "e5m2", "tensor", power_of_two=True)
    for source in ("normal_bf16", "wide_f32", "zeros_f32", "weight_bf16"):
        float8_blockwise(source, "1x128")
    for source in ("weight_bf16",):
        float8_blockwise(source, "128x1")
        float8_blockwise(source, "128x128")
    modes = [mode.value for mode in ScaleCalculationMode]
    for mode in modes:
        for source in ("ladder_f32", "zeros_bf16", "zeros_f32", "special_f32", "special_bf16"):
            mx(source, "e4m3", mode)
        for source in ("ladder_bf16", "ties_e5m2_f32"):
            mx(source, "e5m2", mode)
        for source in ("ladder_f32", "ties_e2m3_bf16"):
            mx(source, "e2m3", mode)
        for source in ("ladder_bf16", "ties_e3m2_bf16"):
            mx(source, "e3m2", mode)
        for source in ("ladder_f32", "ties_e2m1_f32", "zeros_bf16"):
            mx(source, "e2m1", mode)
        mx("cube_bf16", "e4m3", mode)
    mx("ragged_f32", "e4m3", "floor", swizzled=True)
    mx("weight_bf16", "e2m1", "rceil", swizzled=True)
    for source in ("normal_bf16", "normal_f32", "zeros_bf16", "zeros_f32", "wide_f32", "ladder_f32", "ties_e2m1_f32",
                   "ragged_bf16"):
        nvfp4(source, 2)
        nvfp4(source, 1)
    nvfp4("weight_bf16", 2)
    nvfp4("cube_bf16", 1)
    nvfp4("weight_bf16", 2, swizzled=True)
    nvfp4("ragged_f32", 1, swizzled=True)
    for mapping in ("SYMMETRIC", "ASYMMETRIC"):
        for source in ("normal_bf16", "normal_f32", "zeros_bf16", "ties_int8_f32"):
            int8(source, "row", mapping)
        int8("normal_bf16", "tensor", mapping)
        for source in ("normal_bf16", "normal_f32", "zeros_f32", "ties_int4_bf16", "normal_f16"):
            intx(source, torch.int4, 32, mapping)
        intx("weight_bf16", torch.int4, 128, mapping)
        intx("weight_bf16", torch.int8, 64, mapping)
    for source in ("normal_bf16", "normal_f32", "normal_f16"):
        tinygemm(source, 32)
    tinygemm("weight_bf16", 128)
    for source in ("weight_bf16", "normal_f32"):
        nf4(source)
    OUT.write()


if __name__ == "__main__":
    main()
