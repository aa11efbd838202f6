"""Recorded tensors: safetensors files of tests/data, read by numpy and ml_dtypes alone."""

import json
import pathlib
import struct

import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
MODEL = ROOT / "data" / "bytegpt_block1.safetensors"
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8,
           "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "F8_E4M3": ml_dtypes.float8_e4m3fn,
           "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu}


def read_file(path):
    """The tensors of a safetensors file by name, and its metadata."""
    content = pathlib.Path(path).read_bytes()
    length, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = np.frombuffer(content[8 + length + begin:8 + length + end], np.uint8)
        tensors[name] = data.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors, metadata


def bits(array):
    """The bytes of an array, by which arrays are compared: NaN and zeros too."""
    array = np.ascontiguousarray(array)
    return array.view(np.uint8).reshape(-1).tobytes()


def assert_same(actual, expected):
    """Equal dtype, shape and bits."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert bits(actual) == bits(expected)
