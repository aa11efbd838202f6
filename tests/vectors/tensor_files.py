"""Writes small files with the official safetensors package and numpy, which tensor_files_test reads.

Run by hand from the repository root: python3 tests/vectors/tensor_files.py
"""

import pathlib

import ml_dtypes
import numpy as np
import safetensors.numpy

ROOT = pathlib.Path("tests/data/tensor_files")


def main():
    ROOT.mkdir(parents=True, exist_ok=True)
    tensors = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bf16": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "empty": np.zeros((0, 4), np.float16),
        "u8": np.array([1, 2, 3], np.uint8),
        "i64": np.array([[-5]], np.int64),
        "e4m3": np.array([448, -0.0], ml_dtypes.float8_e4m3fn),
        "e5m2": np.array([57344], ml_dtypes.float8_e5m2),
        "scalar": np.array(2.5, np.float64),
    }
    origin = f"tests/vectors/tensor_files.py, safetensors {safetensors.__version__}, numpy {np.__version__}"
    safetensors.numpy.save_file(tensors, ROOT / "official.safetensors", metadata={"origin": origin})
    for name in ("f32", "bf16", "empty", "u8", "i64", "scalar"):
        np.save(ROOT / f"{name}.npy", tensors[name])


if __name__ == "__main__":
    main()
