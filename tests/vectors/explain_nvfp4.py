"""NVFP4 codes of 4over6 and of Hadamard-transformed tensors, for `quantgate explain --source --codes --scale-inv`.

They are made by the numpy quantizer of nvfp4_reference.py. Writes tests/data/explain_nvfp4.safetensors: sources, and per
case NAME.codes, NAME.scale_inv and, where the amax is not that of the source, NAME.amax; metadata "cases" says as JSON
what made them. Run by hand from the repository root: python3 tests/vectors/explain_nvfp4.py
"""

import json
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from nvfp4_reference import packed, quantize
from other_rules import E4M3, write_safetensors

PLAIN = dict(block_dim=1, rule="two_level", rounding="nearest_even", row_scaled=False, four="none", bound=448,
             use_hadamard=False, seed=0, call_id=0)


def near_fours(x):
    """Every other tile of 16 x 16 moved towards codes up to 4 times its amax / 4, so that tiles take either scale and the
    two errors differ on some: plain tensors' tiles are nearly all better off with 6."""
    tiles = x.astype(np.float32).reshape(x.shape[0] // 16, 16, x.shape[1] // 16, 16)
    unit = np.abs(tiles).max(axis=(1, 3), keepdims=True) / np.float32(4)
    snapped = (tiles / unit).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * unit
    odd = (np.indices(unit.shape).sum(axis=0) % 2).astype(np.float32)
    share = np.linspace(0.2, 0.8, unit.size, dtype=np.float32).reshape(unit.shape) * odd
    return (tiles + (snapped - tiles) * share).reshape(x.shape).astype(x.dtype)


def sources():
    real = load_file("data/bytegpt_block1.safetensors")
    x, dy = real["fc1.x"][:64, :128], real["fc1.dy"][:64, :128]
    yield "x", x
    yield "dy", dy
    yield "tiles", near_fours(x)
    yield "x_f16", x.astype(np.float32).astype(np.float16)
    yield "x_f32", x.astype(np.float32) * np.float32(1.1)  # Not bf16's values.
    yield "x_37_rows", x[:37]
    yield "x_transposed", x.T
    yield "x_first_rows", x[:16]
    yield "x_first_columns", x[:, :48]


def cases(x):
    """(name, source, codes of the source as [M][K], columnwise, knobs, the part of the lines kept)"""
    for four in ("mae", "mse"):
        for bound in (256, 448):
            for block_dim in (1, 2):
                knobs, source = dict(PLAIN, four=four, bound=bound, block_dim=block_dim), ("x", "tiles")[block_dim - 1]
                for columnwise in (False, True):
                    usage = "columnwise" if columnwise else "rowwise"
                    yield f"{four}_{bound}_{block_dim}_{usage}", source, x[source], columnwise, knobs, None
        for source in ("x_f16", "x_f32", "x_37_rows"):
            yield f"{four}_{source}", source, x[source], False, dict(PLAIN, four=four, bound=256), None
        # Of a larger tensor, whose amax is given.
        yield f"{four}_part", "x_first_rows", x["x"], False, dict(PLAIN, four=four, bound=256), 16
    transformed = dict(PLAIN, use_hadamard=True)
    stochastic = dict(transformed, rounding="stochastic", seed=17, call_id=2)
    yield "hadamard", "x", x["x"], True, transformed, None
    yield "hadamard_stochastic", "dy", x["dy"], True, stochastic, None
    yield "hadamard_of_the_transpose", "x_transposed", x["x"], True, transformed, None
    yield "hadamard_part", "x_first_columns", x["x"], True, transformed, 48


def main():
    inputs = {name: np.ascontiguousarray(values) for name, values in sources()}
    tensors, described = {f"{name}.source": values for name, values in inputs.items()}, []
    for name, source, values, columnwise, knobs, kept in cases(inputs):
        codes, scale_codes, amax = quantize(values, columnwise, **knobs)
        tensors[f"{name}.codes"] = packed(codes[:kept])
        tensors[f"{name}.scale_inv"] = np.ascontiguousarray(scale_codes[:kept]).astype(np.uint8).view(E4M3)
        if kept:
            tensors[f"{name}.amax"] = amax
        is_transposed = columnwise and source != "x_transposed"
        described.append(dict(name=name, source=f"{source}.source", transposed=is_transposed, **knobs))
    path = pathlib.Path("tests/data/explain_nvfp4.safetensors")
    write_safetensors(path, tensors, {
        "origin": f"tests/vectors/explain_nvfp4.py, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}; sources: "
                  "windows of data/bytegpt_block1.safetensors",
        "cases": json.dumps(described)})
    print(len(described), "cases", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
