"""Operands of a linear layer as codes and scales, made by numpy alone, and what the layer must give of them.

Writes tests/data/given_codes: a file of x, one of the weight and one of grad_output for each format, with the metadata
of docs/file-formats.md section 2, and the exact y, dx and dw, rounded once to float32. The rules are those of
docs/quantizers.md sections 1 to 6; scales are powers of two, so that sums of the values are exact in float64, which the
program checks. Run by hand from the repository root: python3 tests/vectors/given_codes_reference.py
"""

import pathlib

import ml_dtypes
import numpy as np
import safetensors.numpy

ROOT = pathlib.Path("tests/data/given_codes")
M, N, K = 32, 64, 96
E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
ORIGIN = f"tests/vectors/given_codes_reference.py, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def power_of_two_below(scale):
    return np.exp2(np.floor(np.log2(scale.astype(np.float64)))).astype(np.float32)


def blocks(x, rows, columns, reduce):
    """One value for each block of rows x columns elements, the last ones perhaps shorter, and its index by element."""
    row = np.arange(x.shape[0]) // rows
    column = np.arange(x.shape[1]) // columns
    values = np.array([[reduce(x[row == i][:, column == j]) for j in range(column[-1] + 1)]
                       for i in range(row[-1] + 1)])
    return values, np.ix_(row, column)


def amax_of(block):
    return np.abs(block).max()


def fp8_tensor(x, element):
    """fp8_current:power_2_scales=true. Columnwise codes are the transpose."""
    max_finite = np.float32(448 if element is E4M3 else 57344)
    scale = power_of_two_below(max_finite / np.float32(amax_of(x)))
    codes = (x * scale).astype(element)
    inverse = np.array([1 / scale], np.float32)
    values = codes.astype(np.float64) * float(inverse[0])
    return codes, inverse, values


def fp8_block(x, rows, columns, element):
    amax, of = blocks(x, rows, columns, amax_of)
    scale = power_of_two_below(np.float32(448) / amax.astype(np.float32))
    codes = (x * scale[of]).astype(element)
    inverse = (1 / scale).astype(np.float32)
    return codes, inverse, codes.astype(np.float64) * inverse.astype(np.float64)[of]


def mxfp8(x, rows, columns, element):
    amax, of = blocks(x, rows, columns, amax_of)
    v = (amax.astype(np.float32) * np.float32(1 / np.float32(448))).astype(np.float32)
    exponent = np.ceil(np.log2(v.astype(np.float64))).astype(np.int64)  # The next power of two, or itself.
    codes = (x * np.exp2(-exponent).astype(np.float32)[of]).astype(element)
    bytes_ = (exponent + 127).astype(np.uint8)
    return codes, bytes_.view(E8M0), codes.astype(np.float64) * np.exp2(exponent.astype(np.float64))[of]


def nearest_e2m1(x):
    """Codes 0 to 15, ties to even codes."""
    magnitude = np.minimum(np.abs(x), 6)
    distance = np.abs(magnitude[..., None] - E2M1)
    best = distance.min(axis=-1, keepdims=True)
    candidates = np.where(distance == best, np.arange(8), 99)
    even = np.where((candidates % 2 == 0) & (candidates < 99), candidates, 99).min(axis=-1)
    code = np.where(even < 99, even, candidates.min(axis=-1))
    return (code + 8 * np.signbit(x)).astype(np.uint8)


def nvfp4(x, rows, columns, element):
    """scale_rule=single_level."""
    amax, of = blocks(x, rows, columns, amax_of)
    t = np.minimum(np.maximum((amax.astype(np.float32) / np.float32(6)).astype(np.float32), np.float32(2**-6)), 448)
    scale = t.astype(E4M3)
    decoded = scale.astype(np.float32)
    codes = nearest_e2m1((x / decoded[of]).astype(np.float32))
    values = np.where(codes & 8, -1, 1) * E2M1[codes & 7].astype(np.float64) * decoded.astype(np.float64)[of]
    return codes, scale, values


def packed(codes):
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def replicated(scales, along, count, axis):
    return np.repeat(scales, along, axis=axis).take(range(count), axis=axis)


FORMATS = {
    # name: recipe, function, block length, dims of the blocks of x, weight and grad_output, elements
    "fp8_tensor": ("fp8_current:power_2_scales=true", fp8_tensor, 0, (1, 1, 1), (E4M3, E4M3, E5M2)),
    "fp8_block": ("fp8_block", fp8_block, 128, (1, 2, 1), (E4M3, E4M3, E4M3)),
    "mxfp8": ("mxfp8", mxfp8, 32, (1, 1, 1), (E4M3, E4M3, E4M3)),
    "nvfp4": ("nvfp4:scale_rule=single_level,disable_rht=true,disable_stochastic_rounding=true", nvfp4, 16, (1, 2, 1),
              (None, None, None)),
}
NAMES = {E4M3: "f8_e4m3", E5M2: "f8_e5m2", None: "f4_e2m1x2"}


def write_operand(path, format_name, x, block_dim, element, recipe):
    """The file of both directions; gives the values of each."""
    _, function, length, _, _ = FORMATS[format_name]
    tensors, values = {}, {}
    for usage in ("rowwise", "columnwise"):
        is_rowwise = usage == "rowwise"
        if format_name == "fp8_tensor":
            codes, scales_out, values[usage] = function(x, element)
        else:
            rows = length if block_dim == 2 or not is_rowwise else 1
            columns = length if block_dim == 2 or is_rowwise else 1
            codes, scales, values[usage] = function(x, rows, columns, element)
            scales_out = scales
            if format_name in ("mxfp8", "nvfp4") and block_dim == 2:
                axis = 0 if is_rowwise else 1
                raw = replicated(scales.view(np.uint8), length, x.shape[axis], axis)
                scales_out = raw.view(scales.dtype)
        is_turned = not is_rowwise and format_name != "mxfp8"
        data = codes.T if is_turned else codes
        if is_turned and format_name != "fp8_tensor":
            scales_out = scales_out.T
        data = packed(data) if format_name == "nvfp4" else data
        tensors[usage + "_data"] = np.ascontiguousarray(data).view(np.uint8)
        raw = np.ascontiguousarray(scales_out)
        tensors[usage + "_scale_inv"] = raw if raw.dtype == np.float32 else raw.view(np.uint8)
    description = f"{format_name}:element={NAMES[element]},block_dim={block_dim},e4m3_max=448,hadamard=false"
    metadata = {"quantgate.shape": "x".join(map(str, x.shape)), "quantgate.rowwise": description,
                "quantgate.columnwise": description, "quantgate.source_dtype": "f32", "quantgate.recipe": recipe,
                "origin": f"tests/vectors/given_codes_reference.py, numpy {np.__version__}"}
    safetensors.numpy.save_file(tensors, path, metadata=metadata)
    return values


def exact_product(a, b):
    """a b^T of float64 values, by integers, rounded once to float32."""
    def as_integers(values):
        unit = 2.0**-40
        scaled = values / unit
        assert (scaled == np.rint(scaled)).all()
        return np.vectorize(int, otypes=[object])(scaled), unit
    left, left_unit = as_integers(a)
    right, right_unit = as_integers(b)
    sums = left.dot(right.T)
    # float32 is the only rounding: float64 must hold each sum.
    exact = np.vectorize(float, otypes=[np.float64])(sums)
    assert all(int(value) == int(number) for value, number in zip(exact.ravel(), sums.ravel())), "a sum is not exact in float64"
    return (exact * (left_unit * right_unit)).astype(np.float32)


def main():
    ROOT.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(20261127)

    def draw(*shape):
        return generator.normal(size=shape).astype(np.float32)
    x, weight, grad_output = draw(M, K), draw(N, K) / 8, draw(M, N) / 64
    for name, (recipe, _, _, block_dims, elements) in FORMATS.items():
        of_x = write_operand(ROOT / f"{name}.x.safetensors", name, x, block_dims[0], elements[0], recipe)
        of_w = write_operand(ROOT / f"{name}.weight.safetensors", name, weight, block_dims[1], elements[1], recipe)
        of_dy = write_operand(ROOT / f"{name}.grad_output.safetensors", name, grad_output, block_dims[2], elements[2],
                              recipe)
        results = {"y": exact_product(of_x["rowwise"], of_w["rowwise"]),
                   "dx": exact_product(of_dy["rowwise"], of_w["columnwise"].T),
                   "dw": exact_product(of_dy["columnwise"].T, of_x["columnwise"].T)}
        safetensors.numpy.save_file(results, ROOT / f"{name}.expected.safetensors", metadata={"origin": ORIGIN, "recipe": recipe})
    safetensors.numpy.save_file({"x": x, "weight": weight, "grad_output": grad_output}, ROOT / "source.safetensors",
                                metadata={"origin": ORIGIN})


if __name__ == "__main__":
    main()
