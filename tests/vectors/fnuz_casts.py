"""Writes tests/data/fnuz_casts.safetensors: what ml_dtypes makes of every bf16 number and of drawn fp32 numbers in AMD's
two FP8 formats, and the value of each code.

Per format NAME.bf16 and NAME.f32 have a cast whose overflow is NaN, as ml_dtypes has it, NAME.bf16_saturated and
NAME.f32_saturated that of numbers clipped to the largest finite value first, NAME.values f32 of the 256 codes.
"""

import pathlib
import sys

import ml_dtypes
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "libraries"))
import case_file  # noqa: E402

FORMATS = {"e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "e5m2fnuz": ml_dtypes.float8_e5m2fnuz}


def drawn():
    """fp32 numbers of every exponent, and those next to the midpoints between codes."""
    random = np.random.default_rng(7)
    bits = random.integers(0, 2**32, 8192, dtype=np.uint64).astype(np.uint32)
    near = []
    for dtype in FORMATS.values():
        values = np.sort(np.arange(0, 128, dtype=np.uint8).view(dtype).astype(np.float64))
        middles = ((values[1:] + values[:-1]) / 2).astype(np.float32).view(np.uint32)
        near += [middles - 1, middles, middles + 1]
    size = np.concatenate(near)
    return np.concatenate([bits, size, size | np.uint32(0x80000000)]).view(np.float32)


def main():
    every = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    tensors = {"drawn": ("F32", drawn())}
    for name, dtype in FORMATS.items():
        largest = np.float32(ml_dtypes.finfo(dtype).max)
        for source, values in (("bf16", every), ("f32", drawn())):
            with np.errstate(all="ignore"):
                tensors[f"{name}.{source}"] = "U8", values.astype(dtype).view(np.uint8)
                clipped = np.clip(values, -largest, largest).astype(dtype)
                tensors[f"{name}.{source}_saturated"] = "U8", clipped.view(np.uint8)
        tensors[f"{name}.values"] = "F32", np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    path = pathlib.Path(__file__).resolve().parents[1] / "data" / "fnuz_casts.safetensors"
    case_file.write(path, tensors, {"origin": f"tests/vectors/fnuz_casts.py, ml_dtypes {ml_dtypes.__version__}"})


if __name__ == "__main__":
    main()
