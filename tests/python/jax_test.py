"""Tensors of JAX in every state: read as they are, or refused by name."""

import ml_dtypes
import jax
import numpy as np
import pytest

import quantgate as qg
from tensor_files import bits
from tensors_test import EXPECTED, RECIPE, X, quantized


def test_jax_gives_jax():
    x = jax.numpy.asarray(X)
    q = qg.quantize(x, RECIPE)
    assert isinstance(q.rowwise_data, jax.Array) and q.rowwise_data.dtype == ml_dtypes.float8_e4m3fn
    assert bits(np.asarray(q.rowwise_data)) == bits(EXPECTED)
    assert bits(quantized(x.astype(jax.numpy.bfloat16))) == bits(EXPECTED)
    with pytest.raises(TypeError, match="^tensor is .*tracer"):
        jax.jit(lambda value: qg.quantize(value, RECIPE).rowwise_data)(x)
    gone = jax.numpy.ones((4, 4))
    gone.delete()
    with pytest.raises(ValueError, match="^tensor is .*freed"):
        qg.quantize(gone, RECIPE)
