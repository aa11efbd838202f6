"""quantize and dequantize against codes and values that numpy and ml_dtypes made (tests/data/given_codes)."""

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg
from tensor_files import DATA, assert_same, bits, read_file

FORMATS = ("fp8_tensor", "fp8_block", "mxfp8", "nvfp4")
ROLES = {"x": "input", "weight": "weight", "grad_output": "grad_output"}
BLOCKS = {"fp8_block": 128, "mxfp8": 32, "nvfp4": 16}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.fixture(scope="module")
def source():
    return read_file(DATA / "given_codes" / "source.safetensors")[0]


def given(format_name, tensor):
    return read_file(DATA / "given_codes" / f"{format_name}.{tensor}.safetensors")


@pytest.mark.parametrize("tensor", ROLES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_codes_are_those_of_the_reference(format_name, tensor, source):
    expected, metadata = given(format_name, tensor)
    q = qg.quantize(source[tensor], metadata["quantgate.recipe"], role=ROLES[tensor], columnwise=True)
    assert q.shape == source[tensor].shape and q.source_dtype == "f32"
    compared = 0
    for name, value in expected.items():
        actual = q.tensors[name]
        assert actual.shape == value.shape, name
        assert bits(actual) == bits(value), name
        compared += 1
    assert compared >= 2
    assert all(getattr(q, name) is q.tensors[name] for name in q.tensors)


def values(format_name, tensors, metadata):
    """What rowwise codes and scales stand for, in float64."""
    codes, scales = tensors["rowwise_data"], tensors["rowwise_scale_inv"]
    shape = tuple(map(int, metadata["quantgate.shape"].split("x")))
    if format_name == "nvfp4":
        elements = E2M1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(shape)].astype(np.float64)
        scales = scales.view(ml_dtypes.float8_e4m3fn)
    else:
        element = dict(part.split("=") for part in metadata["quantgate.rowwise"].split(":")[1].split(","))["element"]
        elements = codes.view({"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}[element])
        if format_name == "mxfp8":
            scales = scales.view(ml_dtypes.float8_e8m0fnu)
    scales = scales.astype(np.float64)
    if format_name in BLOCKS:
        rows = 128 if "block_dim=2" in metadata["quantgate.rowwise"] and format_name == "fp8_block" else 1
        scales = np.repeat(np.repeat(scales, rows, axis=0), BLOCKS[format_name], axis=1)[:shape[0], :shape[1]]
    return elements.astype(np.float64) * scales


@pytest.mark.parametrize("tensor", ROLES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_values_are_codes_times_scales(format_name, tensor, source):
    expected, metadata = given(format_name, tensor)
    q = qg.quantize(source[tensor], metadata["quantgate.recipe"], role=ROLES[tensor])
    # A code of at most 4 significant bits times one scale of at most 24 rounds once to fp32.
    wanted = values(format_name, expected, metadata).astype(np.float32)
    assert_same(qg.dequantize(q), wanted)
    assert_same(qg.dequantize(q, out_dtype=np.float32, usage="rowwise"), wanted)
    assert qg.dequantize(q, out_dtype="bf16").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_dict_of_codes_is_read_by_its_names(format_name, source):
    expected, metadata = given(format_name, "x")
    tensors = {name: value for name, value in expected.items() if name.startswith("rowwise")}
    if format_name == "nvfp4":
        tensors["rowwise_data"] = (tensors["rowwise_data"], "f4_e2m1x2")
        tensors["rowwise_scale_inv"] = tensors["rowwise_scale_inv"].view(ml_dtypes.float8_e4m3fn)
    element = dict(part.split("=") for part in metadata["quantgate.rowwise"].split(":")[1].split(","))["element"]
    if format_name != "nvfp4":
        tensors["rowwise_data"] = (tensors["rowwise_data"], element)
    if format_name == "mxfp8":
        tensors["rowwise_scale_inv"] = (tensors["rowwise_scale_inv"], "f8_e8m0")
    hint = metadata["quantgate.rowwise"]
    assert_same(qg.dequantize(tensors, format=hint), values(format_name, expected, metadata).astype(np.float32))


def test_results_go_where_they_are_asked(source):
    x = source["x"]
    first = qg.quantize(x, "mxfp8", columnwise=True)
    memory = {name: np.zeros_like(value) for name, value in first.tensors.items()}
    q = qg.quantize(x, "mxfp8", columnwise=True, out=memory)
    for name, value in memory.items():
        assert q.tensors[name] is value
        assert bits(value) == bits(first.tensors[name])
    out = np.full(x.shape, -1, np.float32)
    assert qg.dequantize(q, out=out) is out
    assert bits(out) == bits(qg.dequantize(first))
    again = qg.quantize(2 * x, "mxfp8", columnwise=True, out=q)
    assert again.rowwise_data is memory["rowwise_data"]
    assert bits(memory["rowwise_scale_inv"]) != bits(first.rowwise_scale_inv)


def test_the_state_of_delayed_scaling_is_taken_and_given(source):
    x = source["x"]
    history = np.array([3, 1, 2, 0], np.float32)
    q = qg.quantize(x, "fp8_delayed:amax_history_len=4", scale=[2.0], amax_history=history)
    assert q.scale.tolist() == [2.0]
    assert q.amax_history.tolist()[0] == np.abs(x).max()
    assert sorted(q.amax_history.tolist()[1:]) == [1, 2, 3] or q.amax_history.tolist()[1:] == [1, 2, 0]
    expected = np.clip(x * np.float32(2), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert bits(q.rowwise_data) == bits(expected)
