"""quantgate.testing: each assertion green on right results and red on mistakes, with what numpy and ml_dtypes say of them.

Expected codes, scales and values are computed here by numpy and ml_dtypes; expected counts, places and bits of a failure by numpy
from what was changed.
"""

import json
import pathlib
import re
import traceback

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg
from quantgate import testing
from tensor_files import DATA, read_file

E4M3, E8M0, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def numbers(seed, *shape, dtype=BF16):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def mxfp8(x, round_up=True):
    """Codes and scales of blocks of 32, by the OCP rule with the exponent rounded up, or down as its own floor rule does."""
    x = x.astype(np.float32)
    blocks = x.reshape(x.shape[0], -1, 32)
    amax = np.abs(blocks).max(axis=2).astype(np.float64)
    exponent = np.ceil(np.log2(amax / 448)) if round_up else np.floor(np.log2(amax)) - 8
    scaled = blocks * np.exp2(-exponent)[:, :, None].astype(np.float32)
    codes = np.clip(scaled, -448, 448).astype(E4M3).reshape(x.shape)
    return codes, (exponent + 127).astype(np.uint8).view(E8M0)


def nvfp4(x):
    """Packed codes, block scales and amax by the two-level rule, from binary32 operations of numpy."""
    f32 = np.float32
    x = x.astype(f32)
    amax = np.abs(x).max()
    s = f32(2688) / amax
    unit = np.abs(x.reshape(x.shape[0], -1, 16)).max(axis=2) * f32(s * f32(1 / 6))
    scales = unit.astype(f32).astype(E4M3)
    factor = f32(1) / (scales.astype(f32) * f32(f32(1) / s))
    scaled = (x.reshape(x.shape[0], -1, 16) * factor[:, :, None]).astype(f32).reshape(x.shape)
    codes = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, amax.reshape(1)


def red(call, *arguments, **keywords):
    """The Mismatch of a call that must fail; its frames are hidden from pytest's traceback."""
    with pytest.raises(AssertionError) as caught:
        call(*arguments, **keywords)
    mismatch = caught.value
    assert isinstance(mismatch, testing.Mismatch)
    for frame, _ in traceback.walk_tb(caught.tb):
        if "quantgate" in pathlib.Path(frame.f_code.co_filename).parts[-2:]:
            assert frame.f_locals.get("__tracebackhide__") is True, frame.f_code
    assert mismatch.counts and mismatch.assertion.startswith("assert_")
    return mismatch


def changed(array, index, mask):
    """A copy with some bits of one element turned, and that element's bits before and after."""
    copy = array.copy()
    raw = copy.view(np.dtype(f"u{array.itemsize}"))
    before = int(raw[index])
    raw[index] ^= mask
    return copy, before, int(raw[index])


def hexed(bits, itemsize):
    return f"[0x{bits:0{2 * itemsize}x}]"


# --- Quantizers.

@pytest.fixture(scope="module")
def x():
    return numbers(1, 96, 128)


def test_codes_by_numpy_are_green(x):
    codes, scales = mxfp8(x)
    testing.assert_quantized(codes, scales, x, recipe="mxfp8")
    testing.assert_quantized(codes.view(np.uint8), scales.view(np.uint8), x, recipe="mxfp8")
    packed, scales, amax = nvfp4(x)
    testing.assert_quantized(packed, scales, x, recipe="nvfp4", amax=amax)
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(x.shape).astype(np.uint8)
    testing.assert_quantized(values.view(ml_dtypes.float4_e2m1fn), scales, x, recipe="nvfp4")


@pytest.mark.parametrize("index", [(0, 0), (5, 77), (95, 127)])
def test_one_wrong_code_is_found_wherever_it_is(x, index):
    codes, scales = mxfp8(x)
    wrong, right_bits, wrong_bits = changed(codes, index, 0x11)
    mismatch = red(testing.assert_quantized, wrong, scales, x, recipe="mxfp8")
    lines = str(mismatch).splitlines()
    assert lines[0] == f"cause unknown: rowwise_data differs in 1 of 12,288 elements, first at {index}"
    assert mismatch.cause == "" and mismatch.is_unknown and mismatch.counts == {"rowwise_data": 1, "rowwise_scale_inv": 0}
    decimal = {bits: float(np.uint8(bits).view(E4M3)) for bits in (wrong_bits, right_bits)}
    expected = (f"first {index}: {decimal[wrong_bits]:.9g} {hexed(wrong_bits, 1)}, expected "
                f"{decimal[right_bits]:.9g} {hexed(right_bits, 1)}")
    assert expected in lines[2]
    assert f"in rows {index[0]} to {index[0]} and columns {index[1]} to {index[1]}" in str(mismatch)
    cells = [line.split()[-1] for line in lines if re.match(r" +row +\d+ ", line)]
    assert [(i, row.index("-")) for i, row in enumerate(cells[:8]) if "-" in row] == [(index[0] // 12, index[1] // 2)]
    assert "rowwise_scale_inv (f8_e8m0[96][4]): equal (384)" in lines


def test_the_worst_code_is_the_one_that_is_most_codes_away(x):
    codes, scales = mxfp8(x)
    wrong, _, _ = changed(codes, (3, 1), 0x01)
    wrong, right_bits, wrong_bits = changed(wrong, (70, 9), 0x80)
    mismatch = red(testing.assert_quantized, wrong, scales, x, recipe="mxfp8")
    away = 2 * (right_bits & 0x7F)
    assert away > 2
    assert f"worst (70, 9): {float(np.uint8(wrong_bits).view(E4M3)):.9g} {hexed(wrong_bits, 1)}" in str(mismatch)
    assert f", {away} codes apart" in str(mismatch)
    assert "first (3, 1): " in str(mismatch) and "(2 rows, 2 columns)" in str(mismatch)


def test_one_wrong_scale_is_found(x):
    codes, scales = mxfp8(x)
    wrong, right_bits, wrong_bits = changed(scales, (95, 3), 0x01)
    mismatch = red(testing.assert_quantized, codes, wrong, x, recipe="mxfp8")
    assert mismatch.counts == {"rowwise_data": 0, "rowwise_scale_inv": 1}
    assert f"first (95, 3): {2.0 ** (wrong_bits - 127):.9g} {hexed(wrong_bits, 1)}, expected" in str(mismatch)
    assert f"{2.0 ** (right_bits - 127):.9g} {hexed(right_bits, 1)}" in str(mismatch)


def test_a_wrong_nibble_is_one_element(x):
    packed, scales, amax = nvfp4(x)
    wrong, before, after = changed(packed, (95, 63), 0x80)  # The high nibble: column 127.
    mismatch = red(testing.assert_quantized, wrong, scales, x, recipe="nvfp4")
    value = E2M1[after >> 4 & 7]
    signed = f"{'-' if after >> 7 else ''}{value:g} [0x{after >> 4:x}]"
    assert str(mismatch).splitlines()[0].endswith("rowwise_data differs in 1 of 12,288 elements, first at (95, 127)")
    assert f"first (95, 127): {signed}, expected" in str(mismatch) and f"[0x{before >> 4:x}]" in str(mismatch)
    mismatch = red(testing.assert_quantized, packed, scales, x, recipe="nvfp4", amax=np.nextafter(amax, np.float32(9)))
    assert mismatch.counts["amax_rowwise"] == 1 and mismatch.counts["rowwise_data"] == 0


def test_a_cause_that_is_known_comes_first(x):
    packed, scales, _ = nvfp4(x)
    swapped = packed << 4 | packed >> 4
    wrong = int(np.count_nonzero((packed & 15) != (packed >> 4))) * 2
    mismatch = red(testing.assert_quantized, swapped, scales, x, recipe="nvfp4")
    assert mismatch.cause == "the two codes of each byte are swapped" and not mismatch.is_unknown
    assert str(mismatch).splitlines()[0].startswith(
        f"the two codes of each byte are swapped: rowwise_data differs in {wrong:,} of 12,288 elements, first at ")
    codes, scales = mxfp8(x, round_up=False)
    mismatch = red(testing.assert_quantized, codes, scales, x, recipe="mxfp8")
    assert mismatch.cause.startswith("codes and scales are what another rule makes: f8_e4m3 1x32, floor: ")
    assert str(mismatch).startswith(mismatch.cause)


def test_it_says_which_side_is_nearer_to_the_source(x):
    codes, scales = mxfp8(x)
    values = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)
    source = x.astype(np.float64)
    raw = codes.copy().view(np.uint8)
    raw[:, ::5] ^= 1
    wrong = raw.view(E4M3)
    others = wrong.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)
    with np.errstate(invalid="ignore"):
        mine = int(np.count_nonzero(np.abs(others - source) < np.abs(values - source)))
        theirs = int(np.count_nonzero(np.abs(others - source) > np.abs(values - source)))
    mismatch = red(testing.assert_quantized, wrong, scales, x, recipe="mxfp8")
    assert f"nearer to the source: the expected (mine in {mine:,}, the expected in {theirs:,}" in str(mismatch)


def test_shapes_and_dtypes_are_part_of_the_result(x):
    codes, scales = mxfp8(x)
    mismatch = red(testing.assert_quantized, codes, scales.reshape(-1), x, recipe="mxfp8")
    assert "rowwise_scale_inv is f8_e8m0[384], expected f8_e8m0[96][4]" in str(mismatch).splitlines()[0]
    mismatch = red(testing.assert_quantized, codes.view(ml_dtypes.float8_e5m2), scales, x, recipe="mxfp8")
    assert "rowwise_data is f8_e5m2[96][128], expected f8_e4m3[96][128]" in str(mismatch)


def test_padding_is_told_from_scales(x):
    codes, scales = mxfp8(x)
    padded = np.zeros((128, 4), np.uint8)
    padded[:96] = scales.view(np.uint8)
    testing.assert_quantized(codes, padded, x, recipe="mxfp8", scale_layout="padded")
    padded[100, 2] = 7
    mismatch = red(testing.assert_quantized, codes, padded, x, recipe="mxfp8", scale_layout="padded")
    assert mismatch.cause == "padding is not zero, the scales beside it are right"
    testing.assert_quantized(codes, padded, x, recipe="mxfp8", scale_layout="padded", check_padding=False)
    padded[95, 3] ^= 1
    mismatch = red(testing.assert_quantized, codes, padded, x, recipe="mxfp8", scale_layout="padded", check_padding=False)
    assert mismatch.counts["rowwise_scale_inv"] == 1 and "padding" not in mismatch.cause


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_tensors_of_other_libraries(x, library):
    module = pytest.importorskip(library)
    codes, scales = mxfp8(x)
    if library == "torch":
        def given(array):
            return module.from_numpy(array.view(np.uint8 if array.itemsize == 1 else np.int16)).view(
                module.bfloat16 if array.itemsize == 2 else module.uint8)
    else:
        given = module.numpy.asarray
    testing.assert_quantized(given(codes), given(scales), given(x), recipe="mxfp8")
    wrong, _, _ = changed(codes, (95, 127), 1)
    assert red(testing.assert_quantized, given(wrong), given(scales), given(x), recipe="mxfp8").counts["rowwise_data"] == 1


def test_dequantized_values(x):
    codes, scales = mxfp8(x)
    values = (codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)).astype(np.float32)
    testing.assert_dequantized(values, codes, scales)
    testing.assert_dequantized(values.astype(BF16), codes, scales)
    wrong, right_bits, wrong_bits = changed(values, (95, 127), 0x00400000)
    mismatch = red(testing.assert_dequantized, wrong, codes, scales)
    assert mismatch.counts == {"values": 1}
    assert f"first (95, 127): {wrong[95, 127]:.9g} {hexed(wrong_bits, 4)}, expected" in str(mismatch)
    assert hexed(right_bits, 4) in str(mismatch)
    mismatch = red(testing.assert_dequantized, values * 2, codes, scales)
    assert str(mismatch).startswith("values is twice the expected: ")


# --- GEMMs.

def exact_product(a, b):
    """Exact, then once to fp32: products of bf16 have 16 bits, and sums of these fewer than 53."""
    return (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)


def magnitudes(a, b):
    return np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T


def test_a_gemm_within_its_bound():
    a, b = numbers(2, 40, 64), numbers(3, 48, 64)
    d = exact_product(a, b)
    testing.assert_gemm(d, a, b)
    testing.assert_gemm(d, a, b, arithmetic="exact", within="bits")
    testing.assert_gemm(d.astype(BF16), a, b)
    # Accumulated in fp32 one product after the other: gamma_64 of the magnitudes, and nothing else.
    gamma = 64 * 2.0**-24 / (1 - 64 * 2.0**-24)
    inside = (d + 0.9 * gamma * magnitudes(a, b)).astype(np.float32)
    testing.assert_gemm(inside, a, b, arithmetic="fp32")
    outside = inside.copy()
    outside[39, 47] = d[39, 47] + 1.2 * gamma * magnitudes(a, b)[39, 47]
    mismatch = red(testing.assert_gemm, outside, a, b, arithmetic="fp32")
    assert mismatch.counts == {"d": 1}
    assert str(mismatch).splitlines()[0] == "cause unknown: d is beyond its bound in 1 of 1,920 elements, first at (39, 47)"
    share = float(re.search(r"first \(39, 47\).* ([0-9.]+) of the bound", str(mismatch)).group(1))
    assert 1 < share < 1.2  # What is added to gamma, for the roundings after the accumulation, is small.
    bits = int(outside.view(np.uint32)[39, 47])
    assert f"first (39, 47): {outside[39, 47]:.9g} {hexed(bits, 4)}, expected " in str(mismatch)
    exact_bits = int(d.view(np.uint32)[39, 47])
    assert f"exact {d[39, 47]:.9g} {hexed(exact_bits, 4)}" in str(mismatch)


def test_a_gemm_in_bits():
    tensors, metadata = read_file(DATA / "golden_gemm_bf16.safetensors")
    case = next(case for case in json.loads(metadata["cases"]) if case["d_type"] == "f32" and
                set(case) <= {"a", "b", "d", "d_type", "name", "algorithms", "agreeing"} and
                case["algorithms"] == case["agreeing"])
    a, b, d = (tensors[case[name]] for name in "abd")
    testing.assert_gemm(d, a, b, arithmetic="sm90", within="bits")  # What an H200's cuBLASLt gave.
    place = tuple(size - 1 for size in d.shape)
    wrong, right_bits, wrong_bits = changed(d, place, 1)
    mismatch = red(testing.assert_gemm, wrong, a, b, arithmetic="sm90", within="bits")
    assert mismatch.counts == {"d": 1} and mismatch.cause == ""
    assert (f"first {place}: {wrong[place]:.9g} {hexed(wrong_bits, 4)}, expected {d[place]:.9g} {hexed(right_bits, 4)}"
            in str(mismatch))
    assert "share of the bound (" in str(mismatch)


def test_a_gemm_of_another_arithmetic_is_named():
    a, b = numbers(4, 64, 128), numbers(5, 64, 128)
    mismatch = red(testing.assert_gemm, exact_product(a, b), a, b, arithmetic="sm90", within="bits")
    assert mismatch.cause == "d has the bits of exact, not of sm90"
    short = exact_product(a[:, :-16], b[:, :-16])
    for within in ("bits", "bound"):
        mismatch = red(testing.assert_gemm, short, a, b, within=within)
        assert str(mismatch).startswith("the tail of K is missing: the last 16 elements: d ")
    mismatch = red(testing.assert_gemm, short[:-1], a, b)
    assert "d is f32[63][64], expected f32[64][64]" in str(mismatch)


def test_codes_and_epilogues_of_a_gemm():
    a, b = numbers(6, 64, 128), numbers(7, 32, 128)
    (qa, sa), (qb, sb) = mxfp8(a), mxfp8(b)
    wide = [codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1) for codes, scales in ((qa, sa), (qb, sb))]
    bias, c = numbers(8, 32), numbers(9, 64, 32, dtype=np.float32)
    d = (0.5 * (wide[0] @ wide[1].T) + 2 * c.astype(np.float64) + bias.astype(np.float64)).astype(np.float32)
    options = dict(a_scale_inv=sa, b_scale_inv=sb, alpha=0.5, beta=2.0, c=c, bias=bias)
    testing.assert_gemm(d, qa, qb, **options)
    mismatch = red(testing.assert_gemm, d - bias.astype(np.float32), qa, qb, **options)
    assert mismatch.cause in ("the bias is missing", "the bias is missing within rounding")


# --- Layers.

@pytest.fixture(scope="module")
def linear():
    x, w, dy = numbers(10, 64, 96), numbers(11, 32, 96), numbers(12, 64, 32)
    wide = [tensor.astype(np.float64) for tensor in (x, w, dy)]
    right = dict(y=wide[0] @ wide[1].T, dx=wide[2] @ wide[1], dw=wide[2].T @ wide[0])
    return dict(x=x, weight=w, grad_output=dy, recipe="bf16"), {name: value.astype(np.float32).astype(BF16)
                                                               for name, value in right.items()}


def test_a_linear_layer_within_its_bound(linear):
    operands, right = linear
    testing.assert_linear(**right, **operands)
    testing.assert_linear(right["y"], operands["x"], operands["weight"], recipe="bf16")
    testing.assert_linear(None, dx=right["dx"], **operands)


def test_autograd_of_torch_is_within_the_bound():
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    x = torch.randn(64, 96).bfloat16().requires_grad_()
    w = torch.randn(32, 96).bfloat16().requires_grad_()
    dy = torch.randn(64, 32).bfloat16()
    y = torch.nn.functional.linear(x, w)
    y.backward(dy)
    testing.assert_linear(y, x, w, recipe="bf16", dx=x.grad, dw=w.grad, grad_output=dy)
    # The layer of another recipe: its outputs are far from these.
    assert red(testing.assert_linear, y, x, w, recipe="mxfp8", dx=x.grad, dw=w.grad, grad_output=dy).counts["y"] > 1000
    x.grad[63, 95] *= 1.05
    assert red(testing.assert_linear, y, x, w, recipe="bf16", dx=x.grad, grad_output=dy).counts == {"y": 0, "dx": 1}


@pytest.mark.parametrize("name,index", [("y", (63, 31)), ("dx", (0, 0)), ("dw", (31, 95))])
@pytest.mark.parametrize("within", ["bound", "bits"])
def test_one_wrong_output_of_a_layer(linear, name, index, within):
    operands, right = linear
    wrong, right_bits, wrong_bits = changed(right[name], index, 0x0048)
    arithmetic = {"arithmetic": "exact"} if within == "bits" else {}
    if within == "bits":
        testing.assert_linear(**right, **operands, **arithmetic, within="bits")
    mismatch = red(testing.assert_linear, **{**right, name: wrong}, **operands, **arithmetic, within=within)
    text = str(mismatch)
    assert mismatch.counts == {other: int(other == name) for other in right}
    assert text.splitlines()[0].startswith("cause unknown: ") and f"{name} " in text.splitlines()[0]
    assert f"in 1 of {wrong.size:,} elements, first at {index}" in text.splitlines()[0]
    values = [float(np.uint16(bits).view(BF16)) for bits in (wrong_bits, right_bits)]
    assert f"first {index}: {values[0]:.9g} {hexed(wrong_bits, 2)}, expected {values[1]:.9g} {hexed(right_bits, 2)}" in text
    if within == "bits":
        assert f"nearer to the exact {name}: the expected (mine in 0, the expected in 1)" in text
    else:
        assert f"nearer to the exact {name}: " in text
    for other in set(right) - {name}:
        assert re.search(rf"^{other} \(bf16.*\): (within its bound|equal)", text, re.MULTILINE)


def test_the_first_element_beyond_a_bound_is_not_the_first_that_differs(linear):
    operands, right = linear
    y, _, _ = changed(right["y"], (1, 1), 0x0001)
    # One code of bf16 may be within the bound where the exact value lies between two codes, half way nearly.
    exact = operands["x"].astype(np.float64) @ operands["weight"].astype(np.float64).T
    units = np.ldexp(1.0, np.frexp(exact)[1] - 8)
    off = np.abs(exact - right["y"].astype(np.float64)) / units
    place = np.unravel_index(np.argmax(np.where(np.arange(off.size).reshape(off.shape) < 600, off, 0)), off.shape)
    innocent = right["y"].copy()
    raw = innocent.view(np.uint16)
    toward = np.abs(exact[place]) > np.abs(float(right["y"][place]))
    raw[place] += 1 if toward else -1
    if off[place] > 0.499:  # Both neighbours are within the bound of the accumulation.
        testing.assert_linear(innocent, operands["x"], operands["weight"], recipe="bf16")
    wrong = innocent.copy()
    wrong.view(np.uint16)[62:, 30:] ^= 0x0100
    mismatch = red(testing.assert_linear, wrong, operands["x"], operands["weight"], recipe="bf16")
    assert mismatch.counts == {"y": 4 if off[place] > 0.499 else 5}
    if off[place] > 0.499:
        assert "first at (62, 30)" in str(mismatch).splitlines()[0]
        assert "5 elements have other bits than expected" in str(mismatch)


def test_a_mistake_of_a_layer_is_named(linear):
    operands, right = linear
    twice = {**right, "dw": (2 * right["dw"].astype(np.float32)).astype(BF16)}
    for within, arithmetic in (("bits", "exact"), ("bound", "")):
        mismatch = red(testing.assert_linear, **twice, **operands, within=within, arithmetic=arithmetic)
        assert str(mismatch).splitlines()[0].startswith("dw is twice the expected: dw ")
        assert f"in {right['dw'].size:,} of {right['dw'].size:,} elements" in str(mismatch)
    other = numbers(13, 64, 96)
    stale = (operands["grad_output"].astype(np.float64).T @ other.astype(np.float64)).astype(np.float32).astype(BF16)
    mismatch = red(testing.assert_linear, **{**right, "dw": stale}, **operands, related={"x_before": other})
    assert mismatch.cause.startswith("dw is of another input: x_before")


def test_two_mistakes_of_which_one_is_known(linear):
    operands, right = linear
    wrong, _, _ = changed(right["y"], (63, 31), 0x0048)
    twice = (2 * right["dw"].astype(np.float32)).astype(BF16)
    mismatch = red(testing.assert_linear, **{**right, "y": wrong, "dw": twice}, **operands)
    assert str(mismatch).startswith("dw is twice the expected, which is not all: dw ") and mismatch.is_unknown
    assert "; and 1 more of 3 tensors" in str(mismatch).splitlines()[0]


def test_too_little_evidence_is_no_cause(linear):
    operands, right = linear
    one, _, _ = changed(right["y"], (63, 31), 0x8000)  # Negated, of one element alone.
    mismatch = red(testing.assert_linear, **{**right, "y": one}, **operands)
    assert mismatch.cause == "" and str(mismatch).startswith("cause unknown: ")
    # Twice the same number is the double of it, one more than it, or two.
    mismatch = red(testing.assert_same_bits, np.full((8, 8), 2, np.float32), np.ones((8, 8), np.float32))
    assert mismatch.cause == "" and mismatch.is_unknown
    assert str(mismatch).splitlines()[0].startswith("cause unknown: ")
    assert str(mismatch).splitlines()[1].startswith("maybe tensor is ")


def layer_cases():
    """Per kind: the assertion's arguments, and the outputs that numpy computes of small whole numbers, which are exact."""
    random = np.random.default_rng(14)

    def whole(*shape):
        return random.integers(-2, 3, shape).astype(np.float32)

    x, dy = whole(8, 16), whole(8, 12)
    weights = [whole(12, 16) for _ in range(2)]
    rows = [x[:5] @ weights[0].T, x[5:] @ weights[1].T]
    grouped = dict(dx=np.concatenate([dy[:5] @ weights[0], dy[5:] @ weights[1]]), dw=[dy[:5].T @ x[:5], dy[5:].T @ x[5:]])
    yield "grouped_linear", (np.concatenate(rows), x, weights), dict(m_splits=[5, 3], grad_output=dy, **grouped), "dw"
    h = x @ weights[0].T
    chain = [{"kind": "basic_linear", "name": "p"}, {"kind": "activation", "name": "f", "activation": {"kind": "relu"}}]
    gated = dy * (h > 0)
    yield "chain", (np.maximum(h, 0), x, chain), dict(
        parameters={"p.weight": weights[0]}, grad_output=dy, dx=gated @ weights[0], outputs={"p.dw": gated.T @ x}), "dx"


@pytest.mark.parametrize("kind,arguments,options,gradient", list(layer_cases()),
                         ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("within", ["bits", "bound"])
def test_layers_of_whole_numbers(kind, arguments, options, gradient, within):
    call = getattr(testing, f"assert_{kind}")
    options = dict(options, recipe="bf16", within=within)
    call(*arguments, **options)
    y = arguments[0].copy()
    y[-1, -1] += 1
    assert red(call, y, *arguments[1:], **options).counts["y"] == 1
    wrong = options[gradient]
    wrong = [wrong[0], wrong[1] + np.eye(*wrong[1].shape, dtype=np.float32)] if isinstance(wrong, list) else wrong + 1
    assert sum(red(call, *arguments, **{**options, gradient: wrong}).counts.values()) >= 8


def fp64_norm(x, gamma, beta, epsilon):
    x = x.astype(np.float64)
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def test_layers_with_a_norm():
    x, gamma, beta = numbers(15, 64, 96, dtype=np.float32), numbers(16, 96, dtype=np.float32), numbers(17, 96, dtype=np.float32)
    w, v = numbers(18, 32, 96, dtype=np.float32), numbers(19, 96, 32, dtype=np.float32)
    norm_out = fp64_norm(x, gamma, beta, 1e-5)
    y = norm_out @ w.astype(np.float64).T
    options = dict(recipe="bf16", arithmetic="fp32", norm={"kind": "layernorm", "epsilon": 1e-5})
    # Results in binary64 of one operation after the other are within the bound of the last, of operands that were rounded.
    testing.assert_layernorm_linear(None, x, w, gamma=gamma, beta=beta, norm_out=norm_out.astype(np.float32),
                                    return_norm_output=True, **options)
    wrong = norm_out.astype(np.float32)
    wrong[63, 95] *= np.float32(1.001)
    mismatch = red(testing.assert_layernorm_linear, None, x, w, gamma=gamma, beta=beta, norm_out=wrong, return_norm_output=True,
                   **options)
    assert mismatch.counts == {"norm_out": 1} and "first at (63, 95)" in str(mismatch).splitlines()[0]
    right = qg.run(x, w, layer="layernorm_linear", gamma=gamma, beta=beta, **options).outputs["y"]
    assert np.abs(right - y).max() < 1e-3
    testing.assert_layernorm_linear(right, x, w, gamma=gamma, beta=beta, within="bits", **options)
    parameters = {"gamma": gamma, "beta": beta, "fc1.weight": w, "fc2.weight": v}
    given = dict(options, activation="relu")
    right = qg.run(x, layer="layernorm_mlp", parameters=parameters, **given).outputs["y"]
    assert np.abs(right - np.maximum(y, 0) @ v.astype(np.float64).T).max() < 1e-2
    testing.assert_layernorm_mlp(right, x, parameters, **given)
    wrong = right.copy()
    wrong[0, 0] += 1
    assert red(testing.assert_layernorm_mlp, wrong, x, parameters, **given).counts == {"y": 1}


def test_attention_and_a_transformer_layer():
    x = numbers(20, 16, 32, dtype=np.float32)
    weights = {"qkv.weight": numbers(21, 96, 32, dtype=np.float32), "proj.weight": numbers(22, 32, 32, dtype=np.float32)}
    options = dict(recipe="bf16", arithmetic="fp32", attention={"heads": 1})
    q, k, v = np.split(x.astype(np.float64) @ weights["qkv.weight"].astype(np.float64).T, 3, axis=1)
    scores = np.exp((q @ k.T) / np.sqrt(32) - ((q @ k.T) / np.sqrt(32)).max(axis=1, keepdims=True))
    y = scores / scores.sum(axis=1, keepdims=True) @ v @ weights["proj.weight"].astype(np.float64).T
    right = qg.run(x, layer="attention", parameters=weights, **options).outputs["y"]
    assert np.abs(right - y).max() < 1e-3
    testing.assert_attention(right, x, weights, **options)
    wrong = right.copy()
    wrong[15, 31] += 1
    assert red(testing.assert_attention, wrong, x, weights, **options).counts == {"y": 1}
    parameters = {**weights, **{f"norm{i}.{name}": np.full(32, value, np.float32)
                                for i in (1, 2) for name, value in (("gamma", 1), ("beta", 0))},
                  "fc1.weight": numbers(23, 64, 32, dtype=np.float32), "fc2.weight": numbers(24, 32, 64, dtype=np.float32)}
    options.update(activation="relu", norm="layernorm")
    right = qg.run(x, layer="transformer_layer", parameters=parameters, **options).outputs["y"]
    testing.assert_transformer_layer(right, x, parameters, **options)
    wrong = right.copy()
    wrong[15, 31] += 1
    assert red(testing.assert_transformer_layer, wrong, x, parameters, **options).counts == {"y": 1}


# --- Tensors.

def test_same_bits():
    a = numbers(25, 33, 65, dtype=np.float32)
    a[0, 0], a[1, 1] = np.nan, 0.0
    testing.assert_same_bits(a, a.copy())
    for index, mask in (((0, 0), 1), ((1, 1), 0x80000000), ((32, 64), 1)):
        wrong, before, after = changed(a, index, mask)
        mismatch = red(testing.assert_same_bits, wrong, a)
        assert mismatch.counts == {"tensor": 1} and f"first {index}: " in str(mismatch)
        assert hexed(after, 4) in str(mismatch) and hexed(before, 4) in str(mismatch)
    mismatch = red(testing.assert_same_bits, {"a": a}, {"a": a, "b": a})
    assert "b is absent" in str(mismatch) and mismatch.counts == {"a": 0, "b": a.size}
    assert "b is not in theirs" in str(red(testing.assert_same_bits, {"a": a, "b": a}, {"a": a}))
    mismatch = red(testing.assert_same_bits, a, a.astype(np.float64))
    assert "tensor is f32[33][65], expected f64[33][65]" in str(mismatch)
    assert mismatch.report.to_html().startswith("<!") and not mismatch.report.passed


def test_nearer():
    a, b = numbers(26, 40, 64), numbers(27, 48, 64)
    exact = exact_product(a, b)
    off = exact.copy()
    off.view(np.uint32)[:, 47] += 4
    testing.assert_nearer(exact, off, exact_of={"a": a, "b": b})
    testing.assert_nearer(exact, exact, exact_of=exact)
    mismatch = red(testing.assert_nearer, off, exact, exact_of={"a": a, "b": b})
    assert str(mismatch).startswith("theirs is nearer to the exact result: in 40 of 1,920 elements, mine in 0, neither in 0")
    bits = int(off.view(np.uint32)[0, 47])
    assert f"first (0, 47): {off[0, 47]:.9g} {hexed(bits, 4)}, theirs {exact[0, 47]:.9g}" in str(mismatch)
    # On both sides of the exact value, half a unit of which is not known: nobody is nearer.
    around = np.array([1.0, 1.0], np.float32)
    testing.assert_nearer(np.nextafter(around, np.float32(2)), np.nextafter(around, np.float32(0)), exact_of=around)
    broken = exact.copy()
    broken[3, 3] = np.nan
    assert str(red(testing.assert_nearer, broken, off, exact_of=exact)).startswith("mine is not finite in 1 element where ")


def test_whose_engine_computes(x):
    calls = []

    class Counting(qg.Local):
        def quantize(self, *arguments, **keywords):
            calls.append("quantize")
            return super().quantize(*arguments, **keywords)

        def verify(self, *arguments, **keywords):
            calls.append("verify")
            return super().verify(*arguments, **keywords)

    codes, scales = mxfp8(x)
    testing.assert_quantized(codes, scales, x, recipe="mxfp8", client=Counting())
    assert calls == ["quantize"]
    before = testing.use_client(Counting())
    try:
        a = np.eye(4, dtype=np.float32)
        testing.assert_linear(a, a, a, recipe="bf16")
        assert calls == ["quantize", "verify"] and isinstance(testing.default_client(), Counting)
    finally:
        testing.use_client(before)
    assert not isinstance(testing.default_client(), Counting)


@pytest.mark.parametrize("call,error,words", [
    (lambda x: testing.assert_quantized(x, x, x, recipe="mxfp8", within="bound"), ValueError, "within is 'bound': must be bits"),
    (lambda x: testing.assert_quantized(x, x, x, recipe="mxfp8", usage="both"), ValueError, "usage is 'both': must be rowwise"),
    (lambda x: testing.assert_quantized(x, x, x, recipe="bf16"), ValueError, "recipe is \"bf16\": makes no rowwise codes"),
    (lambda x: testing.assert_quantized(x, None, x, recipe="mxfp8"), TypeError, "scale_inv is None"),
    (lambda x: testing.assert_quantized(x, x, x, recipe="mxfp9"), ValueError, "mxfp9"),
    (lambda x: testing.assert_gemm(x, x, x, within="ulp"), ValueError, "within is 'ulp': must be bound or bits"),
    (lambda x: testing.assert_gemm(x, x, x, colour=1), TypeError, "colour: no such argument of assert_gemm"),
    (lambda x: testing.assert_linear(None, x, x, recipe="bf16"), ValueError, "one output must be given at least"),
    (lambda x: testing.assert_linear(x, x, x, recipe="bf16", outputs={"z": x}), ValueError, "is no output of this layer"),
    (lambda x: testing.assert_linear(x, x, x, recipe="bf16", outputs={"y": x}), ValueError, "y is given as an argument"),
    (lambda x: testing.assert_linear(x, x, x, recipe="bf16", dx=x), ValueError, "dx"),
    (lambda x: testing.assert_nearer(x, x, exact_of={"a": x}), ValueError, "must have a and b"),
    (lambda x: testing.assert_same_bits(x, x, client="localhost:1"), TypeError, "must be a quantgate.Client"),
])
def test_what_is_asked_wrongly_is_refused(call, error, words):
    with pytest.raises(error) as caught:
        call(np.ones((32, 32), np.float32))
    assert not isinstance(caught.value, AssertionError)
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "f8_e8m0", "i8", "i16", "i32", "i64", "u8"])
def test_first_and_worst_are_those_of_the_engines_report(dtype):
    """Two implementations of the same: here numpy's, in the report of diff the engine's."""
    size = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2}.get(dtype, 1)
    random = np.random.default_rng(29)
    raw = random.integers(0, 256, (17, 23 * size), np.uint8)
    other = raw.copy()
    other[random.integers(3, 17, 40), random.integers(0, 23 * size, 40)] ^= random.integers(1, 256, 40).astype(np.uint8)
    mine, theirs = (array.view(f"u{size}") for array in (other, raw))
    if dtype[0] in "fb":
        # Distances between NaN and numbers are told apart only by convention.
        nan = [np.isnan(array.view({"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": BF16, "f8_e4m3": E4M3,
                                    "f8_e5m2": ml_dtypes.float8_e5m2, "f8_e8m0": E8M0}[dtype]).astype(np.float64))
               for array in (mine, theirs)]
        mine, theirs = (np.where(nan[0] | nan[1], 0, array).astype(array.dtype) for array in (mine, theirs))
    mismatch = red(testing.assert_same_bits, (mine, dtype), (theirs, dtype))
    parity = mismatch.report.comparisons[0].parity
    assert mismatch.counts["tensor"] == parity.mismatch_count > 20
    for label, element in (("first", parity.first), ("worst", parity.worst)):
        place = tuple(element.coordinate)
        assert f"  {label} {place}: " in str(mismatch), f"{label} {place}\n{mismatch}"
        assert f"[{element.subject_bits}], expected " in str(mismatch)
