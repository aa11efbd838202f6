"""Tensors as requests and answers have them, and what numpy computes of them.

Number formats are those of tests/vectors/libraries/formats.py, in numpy alone.
"""

import collections
import sys

import numpy as np

from service import ROOT

sys.path.insert(0, str(ROOT / "tests/vectors/libraries"))

import case_file  # noqa: E402
import formats  # noqa: E402

# `codes`: what is stored, in an array of the dtype's width.
Tensor = collections.namedtuple("Tensor", "dtype codes")

WIDTHS = {"f32": np.float32, "bf16": np.uint16, "f8_e4m3": np.uint8, "f8_e5m2": np.uint8, "f8_e8m0": np.uint8,
          "f4_e2m1x2": np.uint8}


def bf16(values):
    """Values rounded to nearest even."""
    return Tensor("bf16", formats.stored(formats.round_to(values, "bf16"), "bf16")[1])


def values_of(tensor):
    """Of f32 and bf16, in binary64."""
    if tensor.dtype == "bf16":
        return (tensor.codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return tensor.codes.astype(np.float64)


def read_file(path):
    """The tensors of a safetensors file below the repository's root, by name, and its metadata."""
    tensors, metadata = case_file.read(ROOT / path)
    dtypes = {"F32": "f32", "BF16": "bf16", "U8": "u8"}
    return {name: Tensor(dtypes[dtype], codes) for name, (dtype, codes) in tensors.items()}, metadata


def flipped(tensor, place):
    """The tensor with the lowest bit of one element flipped."""
    codes = np.array(tensor.codes)
    codes.view({4: np.uint32, 2: np.uint16, 1: np.uint8}[codes.itemsize])[place] ^= 1
    return Tensor(tensor.dtype, codes)


def set_source(source, tensor):
    source.inline.type.dtype = tensor.dtype
    source.inline.type.shape.extend(tensor.codes.shape)
    source.inline.data = np.ascontiguousarray(tensor.codes).tobytes()


def tensor_of(service, named):
    """A NamedTensor's tensor."""
    codes = np.frombuffer(service.bytes_of(named), WIDTHS[named.type.dtype])
    return Tensor(named.type.dtype, codes.reshape(tuple(named.type.shape)))


def differing(found, expected):
    """The places at which the tensors' bits differ."""
    if found.dtype != expected.dtype or found.codes.shape != expected.codes.shape:
        raise AssertionError(f"{found.dtype} {found.codes.shape} where {expected.dtype} {expected.codes.shape} is expected")
    sides = (np.ascontiguousarray(side.codes).view(np.uint8).reshape(side.codes.shape + (side.codes.itemsize,))
             for side in (found, expected))
    return [tuple(map(int, place)) for place in np.argwhere(np.not_equal(*sides).any(axis=-1))]


def lowest_bit(values):
    """The exponent of the lowest bit set in any of the values."""
    mantissas, exponents = np.frexp(values[values != 0])
    integers = (mantissas * 2.0**53).astype(np.int64)
    trailing = np.log2((integers & -integers).astype(np.float64)).astype(np.int64)
    return int((exponents - 53 + trailing).min()) if integers.size else 0


def exact_product(a, b, bits=53):
    """a [m][k] times b [n][k] transposed, in binary64; each sum exact in every order in a significand of `bits`."""
    lowest = lowest_bit(a) + lowest_bit(b)
    largest = (np.abs(a) @ np.abs(b).T).max()
    assert largest < 2.0 ** (lowest + bits), "a sum might round"
    return a @ b.T
