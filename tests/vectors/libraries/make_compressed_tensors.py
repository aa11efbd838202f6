"""What compressed-tensors makes of the sources: FP8, NVFP4, MX formats and integers, by its own calls on a CPU."""

import importlib.metadata

import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp6.base import MXFP6PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import helpers

from case_file import Recorder
from torch_tensors import loaded, stored

X = loaded()
OUT = Recorder("compressed-tensors", importlib.metadata.version("compressed-tensors"), f"torch {torch.__version__}")
FP8, INT8 = torch.float8_e4m3fn, torch.int8


def least_and_most(x, args, block):
    """What an observer finds: the least and the largest value of each block."""
    if block == "tensor":
        return torch.aminmax(x)
    if block == "row":
        return torch.amin(x, -1, keepdim=True), torch.amax(x, -1, keepdim=True)
    if args.block_structure:
        x = helpers.maybe_pad_tensor_for_block_quant(x, args.block_structure)
        rows, columns = args.block_structure
        tiles = x.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns).transpose(1, 2)
        return torch.amin(tiles, (-2, -1)), torch.amax(tiles, (-2, -1))
    groups = x.unflatten(-1, (-1, args.group_size))
    return torch.amin(groups, -1), torch.amax(groups, -1)


def arguments_of(block, **more):
    if block in ("tensor", "row"):
        return QuantizationArgs(strategy={"tensor": "tensor", "row": "channel"}[block], **more)
    rows, columns = (int(size) for size in block.split("x"))
    if rows > 1:
        return QuantizationArgs(strategy="block", block_structure=[rows, columns], **more)
    return QuantizationArgs(strategy="group", group_size=columns, **more)


def fp8(source, block, with_zero_point=False):
    args = arguments_of(block, num_bits=8, type="float")
    scale, zero = helpers.calculate_qparams(*least_and_most(X[source], args, block), args)
    codes = quantize(X[source], scale, zero if with_zero_point else None, args, dtype=FP8)
    OUT.add(f"fp8_{block}_{source}" + ("_zero_point" if with_zero_point else ""), source, "compressed_fp8",
            dict(codes=stored(codes), scale=stored(scale)), format="e4m3", block=block,
            call=f"calculate_qparams, quantize(zero_point={'zeros' if with_zero_point else None})",
            with_zero_point=with_zero_point)


def dynamic_fp8(source, strategy):
    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, dynamic=True)
    scale, zero = helpers.compute_dynamic_scales_and_zp(X[source], args, torch.nn.Module())
    codes = quantize(X[source], scale, zero, args, dtype=FP8)
    OUT.add(f"fp8_dynamic_{strategy}_{source}", source, "compressed_fp8",
            dict(codes=stored(codes), scale=stored(scale)), format="e4m3",
            block={"token": "row", "tensor": "tensor"}[strategy], call="compute_dynamic_scales_and_zp, quantize",
            with_zero_point=True)


def compressed(compressor, x, scale, args, **more):
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    return compressor.compress(dict(weight=x, weight_scale=scale, **more), scheme)


def nvfp4(source):
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=FP8)
    x = X[source]
    scale_of_tensor = helpers.generate_gparam(*torch.aminmax(x))
    scale, _ = helpers.calculate_qparams(*least_and_most(x, args, "1x16"), args, global_scale=scale_of_tensor)
    made = compressed(NVFP4PackedCompressor, x, scale, args, weight_global_scale=scale_of_tensor)
    OUT.add(f"nvfp4_{source}", source, "compressed_nvfp4", dict(
        codes=stored(made["weight_packed"]), scale=stored(made["weight_scale"]),
        tensor_scale=stored(made["weight_global_scale"])), format="e2m1", block="1x16",
        packing="two a byte, the even column low", call="generate_gparam, calculate_qparams, NVFP4PackedCompressor")


def mx(source, element):
    bits = {"e4m3": 8, "e2m3": 6, "e2m1": 4}[element]
    compressor = {8: MXFP8QuantizationCompressor, 6: MXFP6PackedCompressor, 4: MXFP4PackedCompressor}[bits]
    args = QuantizationArgs(num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
    scale, _ = helpers.calculate_qparams(*least_and_most(X[source], args, "1x32"), args)
    made = compressed(compressor, X[source], scale, args)
    codes = made["weight" if bits == 8 else "weight_packed"]
    packing = {8: "one a byte", 6: "four in three bytes, the first lowest", 4: "two a byte, the even column low"}[bits]
    OUT.add(f"mx_{element}_{source}", source, "compressed_mx", dict(
        codes=stored(codes), scale=stored(made["weight_scale"])), format=element, block="1x32", packing=packing,
        call=f"calculate_qparams, {compressor.__name__}", element=element)


def integers(source, block, bits, symmetric):
    args = arguments_of(block, num_bits=bits, type="int", symmetric=symmetric)
    scale, zero = helpers.calculate_qparams(*least_and_most(X[source], args, block), args)
    zero = None if symmetric else zero
    packs = bits == 4
    more = {} if zero is None else dict(weight_zero_point=zero)
    if zero is not None and packs:
        codes = quantize(X[source], scale, zero, args, dtype=INT8)
        packs = False
    else:
        made = compressed(PackedQuantizationCompressor if packs else NaiveQuantizationCompressor, X[source], scale,
                          args, **more)
        codes = made["weight_packed" if packs else "weight"]
    tensors = dict(codes=stored(codes), scale=stored(scale))
    if zero is not None:
        tensors["zero_point"] = stored(zero)
    OUT.add(f"int{bits}_{block}_{'sym' if symmetric else 'asym'}_{source}", source, "compressed_int", tensors,
            format=f"int{bits}", block=block,
            packing="eight codes + 8 in 32 bits, the first lowest" if packs else "one a byte",
            call="calculate_qparams, " + ("PackedQuantizationCompressor" if packs else "quantize"), bits=bits,
            symmetric=symmetric, packed=packs)


def main():
    for source in ("normal_bf16", "normal_f16", "normal_f32", "wide_bf16", "amaxes_bf16"):
        fp8(source, "tensor")
        fp8(source, "row")
    for source in ("zeros_bf16", "zeros_f32", "zeros_f16", "ties_e4m3_f32", "narrow_f16"):
        fp8(source, "row")
    for group in (32, 64, 128):
        fp8("normal_bf16", f"1x{group}")
        fp8("zeros_f32", f"1x{group}")
    fp8("weight_bf16", "1x256")
    fp8("weight_bf16", "128x128")
    fp8("odd_bf16", "128x128")
    fp8("zeros_bf16", "row", with_zero_point=True)
    fp8("normal_f32", "tensor", with_zero_point=True)
    dynamic_fp8("cube_bf16", "token")
    dynamic_fp8("ragged_bf16", "tensor")
    for source in ("normal_bf16", "normal_f32", "normal_f16", "zeros_bf16", "zeros_f32", "wide_bf16", "ladder_f32",
                   "ties_e2m1_bf16", "weight_bf16", "ragged_bf16"):
        nvfp4(source)
    for element in ("e4m3", "e2m3", "e2m1"):
        for source in ("normal_bf16", "normal_f32", "zeros_bf16", "zeros_f32", "ladder_bf16", "ladder_f32",
                       "amaxes_bf16"):
            mx(source, element)
    mx("ties_e2m3_bf16", "e2m3")
    mx("ties_e2m1_f32", "e2m1")
    integers("zeros_bf16", "row", 8, True)
    for symmetric in (True, False):
        for source in ("normal_bf16", "normal_f32", "ties_int8_bf16"):
            integers(source, "row", 8, symmetric)
        integers("normal_bf16", "tensor", 8, symmetric)
        for source in ("normal_bf16", "normal_f32", "ties_int4_bf16", "normal_f16"):
            integers(source, "1x32", 4, symmetric)
        integers("weight_bf16", "1x128", 4, symmetric)
    OUT.write()


if __name__ == "__main__":
    main()
