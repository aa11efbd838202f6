"""Tensors of torch in every state: read as they are, or refused by name."""

import numpy as np
import pytest
import torch

import quantgate as qg
from tensor_files import bits
from tensors_test import EXPECTED, RECIPE, X, quantized


@pytest.mark.parametrize("format_name", ["mxfp8", "nvfp4", "fp8_current"])
def test_torch_gives_torch(format_name):
    t = torch.from_numpy(X)
    q, expected = qg.quantize(t, format_name), qg.quantize(X, format_name)
    for name, value in q.tensors.items():
        assert isinstance(value, torch.Tensor)
        assert bits(value.view(torch.uint8).numpy()) == bits(expected.tensors[name]), name
    values = qg.dequantize(q)
    assert isinstance(values, torch.Tensor) and values.dtype == torch.float32
    assert bits(values.numpy()) == bits(qg.dequantize(expected))
    product = qg.gemm(t.bfloat16(), t.bfloat16(), out_dtype=torch.bfloat16)
    assert product.d.dtype == torch.bfloat16


def test_states_of_torch_tensors():
    t = torch.from_numpy(X.copy())
    parameter = torch.nn.Parameter(t)
    for view in (t, parameter, t.T.contiguous().T, torch.stack([t, t], dim=-1)[..., 1], torch._neg_view(-t)):
        assert bits(quantized(view).view(torch.uint8).numpy()) == bits(EXPECTED)
    assert parameter.grad is None and parameter.requires_grad
    with pytest.raises(ValueError, match="^tensor is .*meta"):
        qg.quantize(torch.empty(4, 4, device="meta"), RECIPE)
    with pytest.raises(TypeError, match="^tensor is .*sparse"):
        qg.quantize(t.to_sparse(), RECIPE)
    with pytest.raises(TypeError, match="^tensor is .*quantized"):
        qg.quantize(torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), RECIPE)
    with pytest.raises(TypeError, match="^tensor is .*complex"):
        qg.quantize(t.to(torch.complex64), RECIPE)
    freed = torch.ones(64, 64)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="^tensor is .*freed"):
        qg.quantize(freed, RECIPE)
    assert quantized(torch.empty(0, 64)).shape == (0, 64)
    out = torch.zeros(64, 64)
    assert qg.dequantize(qg.quantize(t, RECIPE), out=out) is out
    assert bits(out.numpy()) == bits(EXPECTED.astype(np.float32) / np.float32(64))
    with pytest.raises(ValueError, match="requires grad"):
        qg.dequantize(qg.quantize(t, RECIPE), out=torch.zeros(64, 64, requires_grad=True))
