"""Codes and scales by the rules of other implementations, for `quantgate explain --source --codes --scale-inv`.

Each rule is written here from the published description of the implementation named, with numpy and ml_dtypes; none of
their code is used. Writes tests/data/explain_codes.safetensors: sources, and per case NAME.codes and NAME.scale_inv;
metadata "cases" says as JSON what made them. Run by hand from the repository root: python3 tests/vectors/other_rules.py
"""

import json
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

F32 = np.float32
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
E2M1, E8M0 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu
QUIET = dict(over="ignore", under="ignore", invalid="ignore", divide="ignore")


def blocks_of(x, length):
    return x.astype(F32).reshape(x.shape[0], -1, length)


def clamped(values, dtype, limit):
    with np.errstate(**QUIET):
        return np.clip(values, -limit, limit).astype(F32).astype(dtype)


def packed(codes):
    nibbles = codes.view(np.uint8)
    return (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).astype(np.uint8)


def floor_log2(amax):
    return np.frexp(amax.astype(np.float64))[1] - 1


# OCP Microscaling 1.0 section 6.3, as microxcaling's reference applies it: X = 2^(floor(log2 amax) - emax), elements
# rounded half away from zero and clamped.
def ocp_floor(x, dtype, emax, limit, mantissa_bits, exponent_min):
    blocks = blocks_of(x, 32)
    amax = np.abs(blocks).max(axis=2)
    exponent = np.where(amax > 0, floor_log2(np.where(amax > 0, amax, 1)) - emax, -127)
    exponent = np.clip(exponent, -127, 127)
    scaled = blocks.astype(np.float64) * np.exp2(-exponent.astype(np.float64))[:, :, None]
    # Half away from zero at the element's own unit.
    size = np.abs(scaled)
    unit = np.exp2(np.maximum(np.where(size > 0, floor_log2(np.where(size > 0, size, 1)), -99), exponent_min)
                   - float(mantissa_bits))
    rounded = np.minimum(np.floor(size / unit + 0.5) * unit, limit)
    codes = np.copysign(rounded, scaled).astype(F32).astype(dtype)
    return codes.reshape(x.shape), (exponent + 127).astype(np.uint8).view(E8M0)


# torchao's MX casts: the scale by mode, elements divided by it, clamped, RNE.
def torchao_mx(x, dtype, emax, limit, mantissa_bits, mode):
    blocks = blocks_of(x, 32)
    amax = np.abs(blocks).max(axis=2).astype(F32)
    raw = amax.view(np.uint32)
    if mode == "rceil":
        with np.errstate(**QUIET):
            ratio = (amax / F32(limit)).astype(F32).view(np.uint32)
        code = (ratio >> 23) + ((ratio & 0x7FFFFF) > 0)
    else:
        if mode == "even":
            raw = (raw + np.uint32(1 << (23 - mantissa_bits - 1))) & np.uint32(0xFF800000)
        code = (raw >> 23).astype(np.int64)
        if mode == "ceil":
            code = code + ((raw & 0x7FFFFF) > 0)
        code = np.maximum(code - emax, 0)
    scale = np.ldexp(F32(1), code.astype(np.int32) - 127).astype(F32)
    codes = clamped((blocks / scale[:, :, None]).astype(F32), dtype, limit).reshape(x.shape)
    return codes, code.astype(np.uint8).view(E8M0)


# torchao's NVFP4 without a tensor scale: amax / 6 between E4M3's smallest normal and its largest, elements divided.
def torchao_nvfp4_single_level(x):
    blocks = blocks_of(x, 16)
    ratio = (np.abs(blocks).max(axis=2) / F32(6)).astype(F32)
    scale = np.clip(ratio, F32(2.0**-6), F32(448)).astype(E4M3)
    codes = clamped((blocks / scale.astype(F32)[:, :, None]).astype(F32), E2M1, 6.0).reshape(x.shape)
    return packed(codes), scale


# DeepGEMM's per-token cast for sm_90: 1x128, amax at least 1e-4, the fp32 scale amax / 448 is kept, elements are
# multiplied by 448 / amax.
def deepgemm_1x128(x):
    blocks = blocks_of(x, 128)
    amax = np.maximum(np.abs(blocks).max(axis=2), F32(1e-4)).astype(F32)
    codes = clamped((blocks * (F32(448) / amax).astype(F32)[:, :, None]).astype(F32), E4M3, 448.0).reshape(x.shape)
    return codes, (amax / F32(448)).astype(F32)


# The same for 128x128 tiles of a weight.
def deepgemm_128x128(x):
    rows, columns = x.shape[0] // 128, x.shape[1] // 128
    tiles = x.astype(F32).reshape(rows, 128, columns, 128)
    amax = np.maximum(np.abs(tiles).max(axis=(1, 3)), F32(1e-4)).astype(F32)
    factor = (F32(448) / amax).astype(F32)[:, None, :, None]
    return clamped((tiles * factor).astype(F32), E4M3, 448.0).reshape(x.shape), (amax / F32(448)).astype(F32)


# ml_dtypes' cast of unclamped values: beyond 464 an E4M3 code is NaN. The scale here is OCP's floor, which leaves such.
def ml_dtypes_overflow(x):
    blocks = blocks_of(x, 32)
    amax = np.abs(blocks).max(axis=2)
    exponent = np.clip(np.where(amax > 0, floor_log2(np.where(amax > 0, amax, 1)) - 8, -127), -127, 127)
    with np.errstate(**QUIET):
        codes = (blocks * np.exp2(-exponent.astype(np.float64))[:, :, None]).astype(F32).astype(E4M3).reshape(x.shape)
    return codes, (exponent + 127).astype(np.uint8).view(E8M0)


# A per-tensor cast with the fp32 reciprocal of a constant: scale_inv = amax * (1 / 448), elements divided.
def times_reciprocal(x):
    wide = x.astype(F32)
    scale_inv = (np.abs(wide).max() * (F32(1) / F32(448))).astype(F32)
    return clamped((wide / scale_inv).astype(F32), E4M3, 448.0), scale_inv.reshape(1)


def sources():
    real = load_file("data/bytegpt_block1.safetensors")
    windows = {"x": real["fc1.x"][:32, :256], "w": real["fc1.weight"][:256, :256], "dy": real["fc1.dy"][:32, :256]}
    return {name: np.ascontiguousarray(window) for name, window in windows.items()}


def cases(inputs):
    """(name, source, (codes, scale_inv), what made them)"""
    x, w, dy = inputs["x"], inputs["w"], inputs["dy"]

    def said(element, block, scale_rule, rounding, overflow, of):
        return dict(element=element, block=block, scale_rule=scale_rule, rounding=rounding, overflow=overflow, of=of)

    yield "ocp_floor_e4m3", "x", ocp_floor(x, E4M3, 8, 448.0, 3, -6), said(
        "f8_e4m3", "1x32", "floor", "nearest_away", "saturate", "OCP Microscaling 1.0, microxcaling")
    yield "ocp_floor_e2m1", "dy", tuple_of_packed(ocp_floor(dy, E2M1, 2, 6.0, 1, 0)), said(
        "f4_e2m1", "1x32", "floor", "nearest_away", "saturate", "OCP Microscaling 1.0, microxcaling")
    for mode in ("rceil", "ceil", "even"):
        yield f"torchao_mx_{mode}_e4m3", "x", torchao_mx(x, E4M3, 8, 448.0, 3, mode), said(
            "f8_e4m3", "1x32", {"rceil": "round_up"}.get(mode, mode), "nearest_even", "saturate", "torchao MX casts")
    yield "torchao_mx_even_e5m2", "dy", torchao_mx(dy, E5M2, 15, 57344.0, 2, "even"), said(
        "f8_e5m2", "1x32", "even", "nearest_even", "saturate", "torchao MX casts")
    yield "torchao_nvfp4_single_level", "x", torchao_nvfp4_single_level(x), said(
        "f4_e2m1", "1x16", "single_level", "nearest_even", "saturate", "torchao NVFP4 without a tensor scale")
    yield "deepgemm_1x128", "x", deepgemm_1x128(x), said(
        "f8_e4m3", "1x128", "amax at least 1e-4, amax / 448", "nearest_even", "saturate", "DeepGEMM on sm_90")
    yield "deepgemm_1x128_small", "dy", deepgemm_1x128(dy), said(
        "f8_e4m3", "1x128", "amax at least 1e-4, amax / 448", "nearest_even", "saturate", "DeepGEMM on sm_90")
    yield "deepgemm_128x128", "w", deepgemm_128x128(w), said(
        "f8_e4m3", "128x128", "amax at least 1e-4, amax / 448", "nearest_even", "saturate", "DeepGEMM on sm_90")
    yield "ml_dtypes_overflow", "x", ml_dtypes_overflow(x), said(
        "f8_e4m3", "1x32", "floor", "nearest_even", "nan", "ml_dtypes' own cast")
    yield "times_reciprocal", "w", times_reciprocal(w), said(
        "f8_e4m3", "tensor", "amax * f32(1 / 448), elements divided", "nearest_even", "saturate",
        "vLLM-like dynamic per-tensor casts")


def tuple_of_packed(pair):
    codes, scale = pair
    return packed(codes), scale


def bytes_of(array):
    return np.ascontiguousarray(array).view(np.uint8)


def write_safetensors(path, tensors, metadata):
    """safetensors' numpy writer knows no E8M0, so the file is written here: header, then the bytes."""
    known = ((F32, "F32"), (np.uint8, "U8"), (ml_dtypes.bfloat16, "BF16"), (np.float16, "F16"), (E4M3, "F8_E4M3"),
             (E5M2, "F8_E5M2"), (E8M0, "F8_E8M0"))
    names = {np.dtype(dtype): name for dtype, name in known}
    order = sorted(tensors, key=lambda n: -tensors[n].dtype.itemsize)
    header, offset, body = {"__metadata__": metadata}, 0, b""
    for name in order:
        raw = bytes_of(tensors[name]).tobytes()
        header[name] = {"dtype": names[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + len(raw)]}
        offset, body = offset + len(raw), body + raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def main():
    inputs = sources()
    tensors, described = {f"{name}.source": x for name, x in inputs.items()}, []
    for name, source, (codes, scale_inv), made_by in cases(inputs):
        tensors[f"{name}.codes"], tensors[f"{name}.scale_inv"] = codes, scale_inv
        described.append({"name": name, "source": f"{source}.source", **made_by})
    path = pathlib.Path("tests/data/explain_codes.safetensors")
    write_safetensors(path, tensors, {
        "origin": f"tests/vectors/other_rules.py, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}; sources: "
                  "windows of data/bytegpt_block1.safetensors",
        "cases": json.dumps(described)})
    print(len(described), "cases", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
