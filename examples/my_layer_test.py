"""Assertions for pytest: a linear layer of my own, its quantizer and its gradients.

    pytest examples/my_layer_test.py
"""

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg
from quantgate.testing import assert_linear, assert_quantized

BF16 = np.dtype(ml_dtypes.bfloat16)


def matmul(a, b):
    """bf16 in, bf16 out, with one rounding of (nearly) exact sums."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(BF16)


def quantize(x):
    """One scale for the whole tensor, a power of two, and codes E4M3."""
    scale = np.float32(2) ** np.floor(np.log2(448 / np.abs(x).max().astype(np.float32)))
    return (x.astype(np.float32) * scale).astype(ml_dtypes.float8_e4m3fn), (1 / scale).reshape(1)


@pytest.fixture
def operands():
    return [qg.generate("normal", shape, "bf16", seed=seed) for seed, shape in ((1, (64, 128)), (2, (96, 128)), (3, (64, 96)))]


def test_my_quantizer(operands):
    for tensor, role in zip(operands, ("input", "weight")):
        codes, scale_inv = quantize(tensor)
        assert_quantized(codes, scale_inv, tensor, recipe="fp8_current:power_2_scales=true", role=role)


def test_my_linear(operands):
    x, weight, dy = operands
    y, dx, dw = matmul(x, weight.T), matmul(dy, weight), matmul(dy.T, x)
    assert_linear(y, x, weight, recipe="bf16", grad_output=dy, dx=dx, dw=dw)


def test_a_mistake_is_told_by_its_cause(operands):
    x, weight, dy = operands
    y, dx, dw = matmul(x, weight.T), matmul(dy, weight), matmul(dy.T, x)
    with pytest.raises(AssertionError, match="dw is twice the expected"):
        assert_linear(y, x, weight, recipe="bf16", grad_output=dy, dx=dx, dw=(2 * dw.astype(np.float32)).astype(BF16))
