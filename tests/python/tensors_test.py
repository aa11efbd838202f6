"""Tensors of numpy and of libraries with DLPack in every state: read as they are, or refused by name."""

import gc
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg
from tensor_files import bits

X = (np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 97 - 48) / 8


def codes(x):
    """Per-tensor FP8 codes of a tensor, by numpy: one rounding of x times 448 / amax's power of two."""
    scale = np.float32(2.0) ** np.floor(np.log2(448 / np.abs(x).max()))
    return (x * scale).astype(ml_dtypes.float8_e4m3fn)


RECIPE = "fp8_current:power_2_scales=true"
EXPECTED = codes(X)


def quantized(x):
    return qg.quantize(x, RECIPE).rowwise_data


def test_importing_brings_no_framework():
    program = "import sys, quantgate; print('torch' in sys.modules, 'jax' in sys.modules, 'google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=True).stdout.split() == ["False"] * 3


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_numpy_dtypes_are_read(dtype):
    assert bits(quantized(X.astype(dtype))) == bits(EXPECTED)


VIEWS = {
    "transposed": lambda: np.ascontiguousarray(X.T).T,
    "strided": lambda: np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "big endian": lambda: X.astype(">f4"),
    "read only": lambda: np.frombuffer(X.tobytes(), np.float32).reshape(64, 64),
    "unaligned": lambda: np.frombuffer(b"x" + X.tobytes(), np.float32, offset=1).reshape(64, 64),
    "fortran": lambda: np.asfortranarray(X),
    "subclass": lambda: X.view(type("Mine", (np.ndarray,), {})),
    "three dims": lambda: X.reshape(4, 16, 64),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_read(view):
    x = VIEWS[view]()
    before = bits(np.array(x))
    assert bits(quantized(x)) == bits(EXPECTED)
    assert bits(np.array(x)) == before


def test_a_broadcast_view_is_read():
    x = np.broadcast_to(X[:1], (64, 64))
    assert bits(quantized(x)) == bits(quantized(np.array(x)))


def test_a_dense_array_is_read_where_it_lies():
    from quantgate import _engine, _tensors

    given = _tensors.read("x", X)
    assert given.tensor.address == X.ctypes.data
    assert _engine.array_of(given.tensor).ctypes.data == X.ctypes.data


def test_results_outlive_what_they_are_made_of():
    x = X.copy()
    q = qg.quantize(x, RECIPE)
    data = q.rowwise_data
    del x, q
    gc.collect()
    assert bits(data) == bits(EXPECTED)
    assert data.flags.writeable


def test_empty_tensors_are_valid():
    q = qg.quantize(np.empty((0, 64), np.float32), RECIPE)
    assert q.rowwise_data.shape == (0, 64) and q.amax_rowwise.tolist() == [0] and q.scale.tolist() == [1]
    assert qg.gemm(np.empty((0, 32), np.float32), np.ones((4, 32), np.float32)).d.shape == (0, 4)


def test_codes_of_four_bits_are_packed():
    values = np.array([[0, 0.5, 1, 1.5, 2, 3, 4, 6], [-6, -4, -3, -2, -1.5, -1, -0.5, 0]], np.float32)
    one_a_byte = values.astype(ml_dtypes.float4_e2m1fn)
    two_a_byte = (np.arange(8, dtype=np.uint8)[0::2] | np.arange(8, dtype=np.uint8)[1::2] << 4)
    assert qg.diff((two_a_byte[None], "f4_e2m1x2"), one_a_byte[:1]).passed
    assert not qg.diff((two_a_byte[None], "f4_e2m1x2"), one_a_byte[1:]).passed
    with pytest.raises(qg.InvalidArgument, match="last dim must be even"):
        qg.diff(one_a_byte[:, :3], one_a_byte[:, :3])


def test_bytes_are_what_the_caller_says():
    data = EXPECTED.view(np.uint8)
    assert qg.diff((data, "f8_e4m3"), EXPECTED).passed
    assert not qg.diff((data, "f8_e5m2"), EXPECTED).passed  # Another dtype is a difference.
    assert qg.diff((X.view(np.uint8), "f32"), X).passed
    with pytest.raises(qg.InvalidArgument, match="no whole number of f32"):
        qg.diff((X.view(np.uint8)[:, :3], "f32"), X)


REFUSED = {
    "text": "x", "none": None, "list": [[1.0]], "bool": X > 0, "complex": X.astype(np.complex64),
    "object": X.astype(object), "masked": np.ma.masked_array(X, X > 0), "structured": np.zeros(3, [("a", "f4")]),
    "ieee e4m3": X.astype(ml_dtypes.float8_e4m3), "e4m3b11": X.astype(ml_dtypes.float8_e4m3b11fnuz),
    "uint16": X.astype(np.uint16),
}


@pytest.mark.parametrize("value", REFUSED)
def test_what_is_no_tensor_of_the_engine_is_a_type_error(value):
    with pytest.raises(TypeError, match="^tensor is "):
        qg.quantize(REFUSED[value], RECIPE)


def test_out_is_checked():
    q = qg.quantize(X, RECIPE)
    with pytest.raises(qg.InvalidArgument, match="out is"):
        qg.dequantize(q, out=np.empty((64, 63), np.float32))
    with pytest.raises(qg.InvalidArgument, match="out is"):
        qg.dequantize(q, out=np.empty((64, 64), np.float16))
    with pytest.raises(qg.InvalidArgument, match="dense"):
        qg.dequantize(q, out=np.empty((64, 128), np.float32)[:, ::2])
    read_only = np.empty((64, 64), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        qg.dequantize(q, out=read_only)
    with pytest.raises(TypeError, match="^out is"):
        qg.dequantize(q, out=[1.0])
    c = np.zeros((64, 64), np.float32)
    with pytest.raises(qg.InvalidArgument, match="share no memory"):
        qg.gemm(X, X, out=c, c=c, beta=1.0)
    with pytest.raises(qg.InvalidArgument, match="must be f32.64x64."):
        qg.gemm(X, X, out=np.empty((64, 32), np.float32))


def memory_for(tensors, offset):
    """Memory of the caller's for the parts, that begins so many bytes after a line of the cache where their dtype can."""
    memory = {}
    for name, tensor in tensors.items():
        begin = offset - offset % tensor.dtype.itemsize
        space = np.full(tensor.nbytes + 192, 0xA5, np.uint8)
        begin += -space.ctypes.data % 64
        memory[name] = space[begin:begin + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
    return memory


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4", "mxfp6_e2m3", "fp8_current", "fp8_delayed", "fp8_block", "fp8_rowwise",
                                    "nvfp4", "int8", "int4", "nf4", "bf16", "fp8_current:scale_dtype=source"])
@pytest.mark.parametrize("rows", [256, 2048])
def test_codes_are_written_into_memory_of_the_callers(recipe, rows):
    """Of any alignment, and from 16 MiB on, where aligned codes are written past the caches."""
    x = qg.generate("normal", (rows, 2048), "f32", seed=7)
    for role, usages in (("input", (True, False)), ("input", (True, True)), ("weight", (False, True)),
                         ("grad_output", (True, False))):
        try:
            expected = qg.quantize(x, recipe, role=role, rowwise=usages[0], columnwise=usages[1]).tensors
        except qg.InvalidArgument:  # A recipe without that role or usage.
            continue
        for offset in (0, 1, 16):
            memory = memory_for(expected, offset)
            made = qg.quantize(x, recipe, role=role, rowwise=usages[0], columnwise=usages[1], out=memory)
            for name, tensor in expected.items():
                assert made.tensors[name] is memory[name]
                assert memory[name].tobytes() == tensor.tobytes(), (role, usages, offset, name)
                space = memory[name].base
                while space.base is not None:
                    space = space.base
                begin = memory[name].ctypes.data - space.ctypes.data
                assert (space[:begin] == 0xA5).all() and (space[begin + tensor.nbytes:] == 0xA5).all(), (role, usages, name)


def test_codes_go_into_bytes_of_the_callers():
    x = qg.generate("normal", (64, 128), "bf16", seed=7)
    for recipe in ("mxfp8", "nvfp4", "fp8_rowwise"):
        expected = qg.quantize(x, recipe).tensors
        memory = {name: np.empty(tensor.shape, np.uint8 if tensor.dtype.itemsize == 1 else tensor.dtype)
                  for name, tensor in expected.items()}
        made = qg.quantize(x, recipe, out=memory)
        for name, tensor in expected.items():
            assert memory[name].tobytes() == tensor.tobytes(), name
        assert bits(qg.dequantize(made)) == bits(qg.dequantize(qg.quantize(x, recipe)))


def test_results_share_no_memory():
    """Neither with what was given nor with each other, also where the engine changed nothing."""
    q = qg.quantize(X, "bf16", columnwise=True)
    values = qg.dequantize(qg.quantize(X, "bf16"))
    arrays = [X, q.rowwise_data, q.columnwise_data, values]
    scales = qg.quantize(X, "fp8_current", columnwise=True).tensors
    arrays += list(scales.values())
    for i, one in enumerate(arrays):
        for other in arrays[i + 1:]:
            assert not np.shares_memory(one, other)
    w = qg.generate("normal", (32, 64), "bf16", seed=2)
    report = qg.compare(X.astype(ml_dtypes.bfloat16), w, recipes=["bf16", "fp8_current"], arithmetics=["sm90", "exact"])
    outputs = [outputs["y"] for outputs in report.variant_outputs]
    for i, one in enumerate(outputs):
        for other in outputs[i + 1:]:
            assert not np.shares_memory(one, other)


class OtherLibrary:
    """A tensor of a library that has DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack_is_read():
    assert bits(quantized(OtherLibrary(X))) == bits(EXPECTED)
    with pytest.raises(ValueError, match="^tensor is .*dense|^tensor is .*row-major"):
        quantized(OtherLibrary(X.T))
