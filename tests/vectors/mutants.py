"""Mutants of quantizers, GEMMs and layers: what went wrong in each is known, so that a diagnosis can be held to it.

python3 tests/vectors/mutants.py draws them from a seed and writes tests/data/mutants.json; --check demands that the
file is what is drawn, that each mutant differs from what it is a mutant of, and that each is the same when it is made
again.

A mutant has: name; kind (quantizer, gemm, layer); subject and input (what is mutated, and the numbers that its inputs
are drawn from); change, in words; cause, the words that a right diagnosis would say, or "none" for a quarter of the 200
that no rule names, most of which are noise, or "no rule" for further ones ("without_rule") that are mistakes of
kernels; maker and parameters. make(mutant) gives (inputs, right results, mutated results), arrays by name. The
causes come from what goes wrong in the field, not from what any diagnosis can find.
"""

import json
import math
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "libraries"))
from formats import (  # noqa: E402
    ELEMENTS, F32, QUIET, decode, encode, largest, magnitude_codes, magnitudes, nibbles, power_of_two, round_to, sign_bit)
from rules import swizzle  # noqa: E402

SEED = 20261127
COUNTS = {"quantizer": (60, 20), "gemm": (50, 16), "layer": (40, 14)}  # With a cause, with none.
NO_RULE_COUNTS = {"quantizer": 20, "gemm": 18, "layer": 20}
PATH = pathlib.Path(__file__).resolve().parents[1] / "data" / "mutants.json"
MAKERS = {"quantizer": {}, "gemm": {}, "layer": {}}


def maker(kind, cause, subjects=None, **choices):
    """Registers a function (inputs, parameters, right results) -> mutated results, whose doc is the change in words.
    `choices`: parameter to the values that are drawn from."""
    def register(function):
        MAKERS[kind][function.__name__] = dict(function=function, cause=cause, subjects=subjects, choices=choices)
        return function
    return register


# Quantizers, by the rules of docs/quantizers.md sections 3 to 6.

def blocks_of(x, length):
    return x.reshape(x.shape[0], -1, length)


def tensor_scale(x):
    amax = np.abs(x).max()
    scale = F32(448) / amax
    return scale, (F32(1) / scale).astype(F32).reshape(1)


def scales_of(x, subject):
    """(factor of each element, stored scales, amax of the tensor or None)"""
    if subject == "fp8_current":
        scale, stored = tensor_scale(x)
        return np.broadcast_to(scale, x.shape), stored, None
    if subject == "fp8_block":
        scale = (F32(448) / np.abs(blocks_of(x, 128)).max(axis=2)).astype(F32)
        return np.repeat(scale, 128, axis=1), (F32(1) / scale).astype(F32), None
    if subject == "mxfp8":
        fraction, exponent = np.frexp(np.abs(blocks_of(x, 32)).max(axis=2).astype(np.float64) / 448)
        exponent = exponent - (fraction == 0.5)
        return np.repeat(power_of_two(-exponent), 32, axis=1), (exponent + 127).astype(np.uint8), None
    amax = np.abs(x).max()
    encode_scale = F32(2688) / amax
    unit = (np.abs(blocks_of(x, 16)).max(axis=2) * F32(encode_scale * F32(1 / 6))).astype(F32)
    codes = encode(unit, "e4m3")
    factor = (F32(1) / (decode(codes, "e4m3") * F32(1 / encode_scale)).astype(F32)).astype(F32)
    return np.repeat(factor, 16, axis=1), codes, amax.reshape(1)


def element_of(subject):
    return "e2m1" if subject == "nvfp4" else "e4m3"


def codes_of(scaled, subject, ties="even"):
    codes = encode(scaled, element_of(subject), ties)
    return nibbles(codes) if subject == "nvfp4" else codes


def quantized(x, subject):
    factor, scales, amax = scales_of(x, subject)
    made = dict(codes=codes_of((x * factor).astype(F32), subject), scale_inv=scales)
    return made if amax is None else dict(made, amax=amax)


def quantizer_inputs(subject, given):
    random = np.random.default_rng(given["seed"])
    shape = given["rows"], given["columns"]
    made = {}
    for name, size in (("x", 1.0), ("other", 0.06)):
        values = random.standard_normal(shape) * size * np.exp2(random.integers(-3, 4, (shape[0], 1)))
        values = np.where(random.random(shape) < 0.01, values * 20, values)
        made[name] = round_to(values.astype(F32), given["dtype"])
    return made


BLOCKS = ("fp8_block", "mxfp8", "nvfp4")
ORDER = "scales right, codes wrong: elements were scaled by another order of operations"


def unpacked(codes):
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)


def decoded_scales(right, subject):
    """What codes are multiplied by, as fp32, and how to store such numbers again."""
    scales = right["scale_inv"]
    if subject == "mxfp8":
        return power_of_two(scales.astype(np.int64) - 127), lambda s: (np.frexp(s)[1] + 126).astype(np.uint8)
    if subject == "nvfp4":
        return decode(scales, "e4m3"), lambda s: encode(np.minimum(s, F32(448)), "e4m3")
    return scales, lambda s: s.astype(F32)


def with_scales(right, subject, change):
    values, stored = decoded_scales(right, subject)
    return dict(right, scale_inv=stored(change(values)))


@maker("quantizer", ORDER, ("fp8_current", "fp8_block"))
def divides_by_scale_inv(inputs, p, right):
    """x / scale_inv in place of x * scale"""
    stored = right["scale_inv"] if p["subject"] == "fp8_current" else np.repeat(right["scale_inv"], 128, axis=1)
    return dict(right, codes=codes_of((inputs["x"] / stored).astype(F32), p["subject"]))


@maker("quantizer", ORDER, ("fp8_current", "fp8_block"))
def divides_in_bf16(inputs, p, right):
    """the quotient of x and a bf16 scale_inv is rounded to bf16 before the cast; the stored scale_inv is as it was"""
    stored = right["scale_inv"] if p["subject"] == "fp8_current" else np.repeat(right["scale_inv"], 128, axis=1)
    return dict(right, codes=codes_of(round_to(inputs["x"] / round_to(stored, "bf16"), "bf16"), p["subject"]))


@maker("quantizer", ORDER, ("nvfp4",))
def multiplies_by_two_factors(inputs, p, right):
    """x * (S / block scale) in place of x * (1 / (block scale * (1 / S)))"""
    ratio = ((F32(2688) / right["amax"][0]) / np.repeat(decode(right["scale_inv"], "e4m3"), 16, axis=1)).astype(F32)
    return dict(right, codes=codes_of((inputs["x"] * ratio).astype(F32), p["subject"]))


@maker("quantizer", "scales were rounded to bf16", ("fp8_current", "fp8_block"))
def scales_in_bf16(inputs, p, right):
    """scale_inv is rounded to bf16, the codes stay"""
    return dict(right, scale_inv=round_to(right["scale_inv"], "bf16"))


@maker("quantizer", "scales were rounded to bf16", ("fp8_current", "fp8_block"))
def scales_in_bf16_before_the_cast(inputs, p, right):
    """scale_inv is rounded to bf16 and the codes are made with that"""
    scales = round_to(right["scale_inv"], "bf16")
    spread = scales if p["subject"] == "fp8_current" else np.repeat(scales, 128, axis=1)
    return dict(right, scale_inv=scales, codes=codes_of((inputs["x"] / spread).astype(F32), p["subject"]))


@maker("quantizer", "scales are reciprocals: scale in place of scale_inv", ("fp8_current", "fp8_block", "mxfp8"))
def reciprocal_scales(inputs, p, right):
    """scale is stored where scale_inv belongs"""
    if p["subject"] == "mxfp8":
        return dict(right, scale_inv=(254 - right["scale_inv"].astype(np.int64)).astype(np.uint8))
    return with_scales(right, p["subject"], lambda s: F32(1) / s)


@maker("quantizer", "scales were coerced to powers of two", ("fp8_current", "fp8_block", "nvfp4"), up=[True, False])
def powers_of_two(inputs, p, right):
    """scales become powers of two while the codes stay"""
    round_exponent = np.ceil if p["up"] else np.floor
    return with_scales(right, p["subject"], lambda s: np.exp2(
        round_exponent(np.log2(np.maximum(s, F32(2.0**-30)).astype(np.float64)))).astype(F32))


@maker("quantizer", "scales lie K-major", BLOCKS)
def k_major_scales(inputs, p, right):
    """scales are stored column after column under the shape that they had"""
    return dict(right, scale_inv=np.ascontiguousarray(right["scale_inv"].T).reshape(right["scale_inv"].shape))


@maker("quantizer", "codes are transposed", ("fp8_current", "fp8_block", "mxfp8"))
def transposed_codes(inputs, p, right):
    """codes are those of the transpose, under the shape that they had"""
    return dict(right, codes=np.ascontiguousarray(right["codes"].T).reshape(right["codes"].shape))


@maker("quantizer", "bytes of two codes were transposed as if each were one", ("nvfp4",))
def transposed_bytes(inputs, p, right):
    """packed bytes are transposed, so that pairs of codes stay together along K"""
    return dict(right, codes=np.ascontiguousarray(right["codes"].T).reshape(right["codes"].shape))


@maker("quantizer", "scales are swizzled as tensor cores read them", ("mxfp8", "nvfp4"))
def swizzled_scales(inputs, p, right):
    """scales lie in tiles of 128 x 4, padded to whole ones"""
    scales = right["scale_inv"]
    columns = scales.shape[1] + -scales.shape[1] % 4
    return dict(right, scale_inv=swizzle(scales).reshape(-1, columns))


@maker("quantizer", "scales are padded", BLOCKS, rows=[128, 256], columns=[4, 16], shape=["padded", "kept"])
def padded_scales(inputs, p, right):
    """scales are padded with zeros to multiples of rows and columns; their shape says so, or is as without"""
    scales = right["scale_inv"]
    padded = np.pad(scales, ((0, -scales.shape[0] % p["rows"]), (0, 1 + (-scales.shape[1] - 1) % p["columns"])))
    kept = padded.reshape(-1)[:scales.size].reshape(scales.shape)
    return dict(right, scale_inv=padded if p["shape"] == "padded" else kept)


@maker("quantizer", "scales are half or twice what they should be", ("fp8_current", *BLOCKS), factor=[0.5, 2.0])
def halved_scales(inputs, p, right):
    """every scale times factor, the codes stay"""
    if p["subject"] == "mxfp8":
        return dict(right, scale_inv=(right["scale_inv"] + int(math.log2(p["factor"]))).astype(np.uint8))
    return with_scales(right, p["subject"], lambda s: s * F32(p["factor"]))


@maker("quantizer", "scales are the other operand's", ("fp8_current", *BLOCKS))
def scales_of_the_other(inputs, p, right):
    """codes of x under the scales of the other tensor"""
    return dict(right, scale_inv=quantized(inputs["other"], p["subject"])["scale_inv"])


@maker("quantizer", "codes are of another format", ("fp8_current", "fp8_block", "mxfp8"),
       element=["e5m2", "e4m3fnuz", "e5m2fnuz"])
def another_format(inputs, p, right):
    """elements are cast to another format under the scales of E4M3"""
    factor, _, _ = scales_of(inputs["x"], p["subject"])
    return dict(right, codes=encode((inputs["x"] * factor).astype(F32), p["element"]))


@maker("quantizer", "the two codes of each byte are swapped", ("nvfp4",))
def swapped_nibbles(inputs, p, right):
    """the even column is the high nibble"""
    return dict(right, codes=(right["codes"] << 4 | right["codes"] >> 4).astype(np.uint8))


@maker("quantizer", "elements are truncated or rounded away from zero, not to nearest",
       ("fp8_current", *BLOCKS), rounding=["truncated", "up"])
def another_rounding(inputs, p, right):
    """elements are truncated, or rounded away from zero, in place of to nearest"""
    factor, _, _ = scales_of(inputs["x"], p["subject"])
    scaled, element = (inputs["x"] * factor).astype(F32), element_of(p["subject"])
    codes = magnitude_codes(scaled, element)
    values = np.abs(decode(codes, element))
    above, below = values > np.abs(scaled), values < np.abs(scaled)
    codes = codes - above if p["rounding"] == "truncated" else codes + below.astype(np.int64)
    codes = np.minimum(codes, ELEMENTS[element][3] - 1).astype(np.uint8)
    codes = codes | np.where(np.signbit(scaled), sign_bit(element), 0).astype(np.uint8)
    return dict(right, codes=nibbles(codes) if element == "e2m1" else codes)


@maker("quantizer", "one amax for the whole tensor in place of one for each block", ("fp8_block", "mxfp8"))
def one_amax(inputs, p, right):
    """every block has the scale of the largest one"""
    scales = np.broadcast_to(right["scale_inv"].max(), right["scale_inv"].shape)
    length = 128 if p["subject"] == "fp8_block" else 32
    values, _ = decoded_scales(dict(scale_inv=scales), p["subject"])
    return dict(right, scale_inv=np.array(scales),
                codes=codes_of((inputs["x"] / np.repeat(values, length, axis=1)).astype(F32), p["subject"]))


@maker("quantizer", "scales are shifted by one block", BLOCKS, by=[-1, 1])
def shifted_scales(inputs, p, right):
    """each block has its neighbour's scale"""
    return dict(right, scale_inv=np.roll(right["scale_inv"], p["by"], axis=1))


@maker("quantizer", "the scale is of another amax than the source's", ("fp8_current",), factor=[0.4, 1.7])
def stale_scale(inputs, p, right):
    """codes and scale by an amax that is factor times this tensor's"""
    scale = F32(448) / F32(np.abs(inputs["x"]).max() * F32(p["factor"]))
    return dict(codes=codes_of((inputs["x"] * scale).astype(F32), p["subject"]),
                scale_inv=(F32(1) / scale).astype(F32).reshape(1))


@maker("quantizer", "the columns of x are rotated: codes of a shifted tensor", ("fp8_block", "mxfp8"), by=[1, 16])
def rotated_columns(inputs, p, right):
    """codes and scales are those of x rotated along K"""
    return quantized(np.roll(inputs["x"], p["by"], axis=1), p["subject"])


@maker("quantizer", "none", ("fp8_current", *BLOCKS), count=[2, 5, 40], seed=list(range(1000)))
def turned_bits(inputs, p, right):
    """random bits of a few codes are turned"""
    random, codes = np.random.default_rng(p["seed"]), right["codes"].copy()
    places = random.choice(codes.size, p["count"], replace=False)
    codes.reshape(-1)[places] ^= (1 << random.integers(0, 8, p["count"])).astype(np.uint8)
    return dict(right, codes=codes)


@maker("quantizer", "none", ("fp8_current", *BLOCKS), share=[0.02, 0.2], seed=list(range(1000)))
def replaced_codes(inputs, p, right):
    """a random share of the bytes of codes is replaced by random bytes"""
    random, codes = np.random.default_rng(p["seed"]), right["codes"]
    noise = random.integers(0, 256, codes.shape).astype(np.uint8)
    return dict(right, codes=np.where(random.random(codes.shape) < p["share"], noise, codes))


@maker("quantizer", "none", ("fp8_block", "mxfp8"), share=[0.1, 0.5], seed=list(range(1000)))
def scattered_scales(inputs, p, right):
    """random scales are replaced by others of the tensor"""
    random, scales = np.random.default_rng(p["seed"]), right["scale_inv"]
    others = random.permutation(scales.reshape(-1)).reshape(scales.shape)
    return dict(right, scale_inv=np.where(random.random(scales.shape) < p["share"], others, scales))


@maker("quantizer", "none", ("fp8_current", "fp8_block"), seed=list(range(1000)))
def noisy_source(inputs, p, right):
    """noise of a hundredth was added to x before it was quantized"""
    random = np.random.default_rng(p["seed"])
    noise = 1 + random.uniform(-0.01, 0.01, inputs["x"].shape)
    return quantized((inputs["x"] * noise).astype(F32), p["subject"])


# What no rule names, as it is met in kernels: drawn apart from the mutants above, which stay as they were.

NO_RULE = "no rule"


@maker("quantizer", NO_RULE, ("fp8_current", *BLOCKS), width=[0.3, 0.6], seed=list(range(1000)))
def narrow_dither(inputs, p, right):
    """stochastic rounding whose random numbers cover a part of the distance: a draw of too few bits"""
    factor, _, _ = scales_of(inputs["x"], p["subject"])
    scaled, element = (inputs["x"] * factor).astype(F32), element_of(p["subject"])
    ladder = magnitudes(element)
    size = np.minimum(np.abs(scaled).astype(np.float64), ladder[-1])
    below = np.minimum(np.searchsorted(ladder, size, side="right") - 1, len(ladder) - 2)
    share = (size - ladder[below]) / (ladder[below + 1] - ladder[below])
    drawn_shares = 0.5 + np.random.default_rng(p["seed"]).uniform(-p["width"] / 2, p["width"] / 2, size.shape)
    codes = (below + (share > drawn_shares)).astype(np.uint8)
    codes = codes | np.where(np.signbit(scaled), sign_bit(element), 0).astype(np.uint8)
    return dict(right, codes=nibbles(codes) if element == "e2m1" else codes)


def quantized_by(x, subject, amaxes):
    """Of block amaxes [rows][blocks] in place of the blocks' own, by the rules of scales_of."""
    length = x.shape[1] // amaxes.shape[1]
    if subject == "fp8_block":
        scale = (F32(448) / amaxes).astype(F32)
        factor, stored = scale, (F32(1) / scale).astype(F32)
    else:
        fraction, exponent = np.frexp(amaxes.astype(np.float64) / 448)
        exponent = exponent - (fraction == 0.5)
        factor, stored = power_of_two(-exponent), (exponent + 127).astype(np.uint8)
    return dict(codes=codes_of((x * np.repeat(factor, length, axis=1)).astype(F32), subject), scale_inv=stored)


def block_magnitudes(x, subject):
    return np.abs(blocks_of(x, 128 if subject == "fp8_block" else 32))


@maker("quantizer", NO_RULE, ("fp8_block", "mxfp8"), quantile=[0.9, 0.97])
def scale_of_a_quantile(inputs, p, right):
    """the amax of a block is a quantile of its magnitudes: the largest are clipped"""
    amaxes = np.quantile(block_magnitudes(inputs["x"], p["subject"]), p["quantile"], axis=2, method="lower")
    return quantized_by(inputs["x"], p["subject"], amaxes.astype(F32))


@maker("quantizer", NO_RULE, ("fp8_block", "mxfp8"), part=[0.25, 0.5])
def amax_of_a_part(inputs, p, right):
    """the amax is of the first part of each block: some lanes are left out of the reduction"""
    sizes = block_magnitudes(inputs["x"], p["subject"])
    return quantized_by(inputs["x"], p["subject"], sizes[:, :, :int(sizes.shape[2] * p["part"])].max(axis=2))


@maker("quantizer", NO_RULE, ("fp8_block", "mxfp8"))
def amax_that_is_not_reset(inputs, p, right):
    """the amax of a block is the largest so far in its row: a register is not cleared"""
    amaxes = block_magnitudes(inputs["x"], p["subject"]).max(axis=2)
    return quantized_by(inputs["x"], p["subject"], np.maximum.accumulate(amaxes, axis=1))


@maker("quantizer", NO_RULE, ("fp8_block", "mxfp8"))
def blocks_of_24(inputs, p, right):
    """blocks have 24 elements, under as many scales"""
    x = inputs["x"]
    if x.shape[1] % 24 != 0:
        return right
    return quantized_by(x, p["subject"], np.abs(blocks_of(x, 24)).max(axis=2))


@maker("quantizer", NO_RULE, ("mxfp8", "nvfp4"), seed=list(range(1000)))
def permuted_blocks(inputs, p, right):
    """the scales of each row are those of its blocks in one random order"""
    order = np.random.default_rng(p["seed"]).permutation(right["scale_inv"].shape[1])
    return dict(right, scale_inv=np.ascontiguousarray(right["scale_inv"][:, order]))


@maker("quantizer", NO_RULE, ("fp8_current", *BLOCKS), factor=[1.0371, 0.93])
def factor_in_codes(inputs, p, right):
    """x has a factor that the scales do not have"""
    return dict(right, codes=quantized_under(inputs["x"] * F32(p["factor"]), inputs["x"], p["subject"]))


def quantized_under(x, scales_source, subject):
    factor, _, _ = scales_of(scales_source, subject)
    return codes_of((x * factor).astype(F32), subject)


@maker("quantizer", NO_RULE, ("fp8_current", *BLOCKS))
def swapped_lanes(inputs, p, right):
    """of each four columns the second and the third are swapped: a shuffle of the wrong mask"""
    x = inputs["x"].reshape(inputs["x"].shape[0], -1, 4)[:, :, [0, 2, 1, 3]].reshape(inputs["x"].shape)
    return dict(right, codes=quantized_under(x, inputs["x"], p["subject"]))


@maker("quantizer", NO_RULE, ("fp8_current", *BLOCKS), rows=[5, 32])
def rows_not_written(inputs, p, right):
    """the codes of the last rows are 0"""
    codes = right["codes"].copy()
    codes[-p["rows"]:] = 0
    return dict(right, codes=codes)


@maker("quantizer", NO_RULE, ("fp8_current", "fp8_block", "mxfp8"), row=[32, 64])
def another_format_from_a_row_on(inputs, p, right):
    """from a row on elements are cast to E5M2"""
    factor, _, _ = scales_of(inputs["x"], p["subject"])
    other, codes = encode((inputs["x"] * factor).astype(F32), "e5m2"), right["codes"].copy()
    codes[p["row"]:] = other[p["row"]:]
    return dict(right, codes=codes)


# GEMMs: d = out(alpha * sum over k of a[m][k] * b[n][k] + beta * c + bias), the sum exact, then fp32; operands are
# codes under scales but for bf16.

def gemm_operand(values, subject):
    """(what is multiplied, as float64; the stored operand)"""
    if subject == "bf16":
        return values.astype(np.float64), dict(values=values)
    if subject == "fp8":
        scale, stored = tensor_scale(values)
        codes = encode((values * scale).astype(F32), "e4m3")
        return decode(codes, "e4m3").astype(np.float64), dict(codes=codes, scale_inv=stored)
    made = quantized(values, {"fp8_1x128": "fp8_block", "mxfp8": "mxfp8"}[subject])
    return decode(made["codes"], "e4m3").astype(np.float64), made


def gemm_scales(stored, subject, columns):
    """The scale of each element of an operand, float64; 1 where there is none."""
    if subject == "bf16":
        return 1.0
    if subject == "fp8":
        return float(stored["scale_inv"][0])
    scales, _ = decoded_scales(stored, {"fp8_1x128": "fp8_block", "mxfp8": "mxfp8"}[subject])
    return np.repeat(scales.astype(np.float64), columns // scales.shape[1], axis=1)


def gemm_inputs(subject, given):
    random = np.random.default_rng(given["seed"])
    m, n, k = given["m"], given["n"], given["k"]
    made = {}
    for name, shape in (("a", (m, k)), ("b", (n, k))):
        values = random.standard_normal(shape) * np.exp2(random.integers(-2, 3, (shape[0], 1))) * 0.3
        elements, stored = gemm_operand(round_to(values.astype(F32), "bf16"), subject)
        made[name], made[f"{name}_scales"] = elements, gemm_scales(stored, subject, k)
        made.update({f"{name}_{part}": array for part, array in stored.items()})
    made["c"] = round_to(random.standard_normal((m, n)).astype(F32), given["out"])
    made["bias"] = round_to(random.standard_normal(n).astype(F32), "bf16")
    made["alpha"], made["beta"] = F32(given["alpha"]), F32(given["beta"])
    return made


def product(inputs, a=None, b=None):
    a = inputs["a"] * inputs["a_scales"] if a is None else a
    b = inputs["b"] * inputs["b_scales"] if b is None else b
    return (a @ b.T).astype(F32)


def epilogue(inputs, p, accumulator, alpha=None, beta=None, bias=1):
    alpha = inputs["alpha"] if alpha is None else F32(alpha)
    beta = inputs["beta"] if beta is None else F32(beta)
    value = (alpha * accumulator).astype(F32) + (beta * inputs["c"]).astype(F32)
    return dict(d=round_to((value + F32(bias) * inputs["bias"]).astype(F32), p["out"]))


def gemm_result(inputs, p):
    return epilogue(inputs, p, product(inputs))


@maker("gemm", "partial sums are kept in bf16", length=[8, 16, 32, 64, 128])
def partial_sums_in_bf16(inputs, p, right):
    """sums over length of K are added in bf16"""
    total = np.zeros(right["d"].shape, F32)
    a, b = inputs["a"] * inputs["a_scales"], inputs["b"] * inputs["b_scales"]
    for begin in range(0, a.shape[1], p["length"]):
        part = product(inputs, a[:, begin:begin + p["length"]], b[:, begin:begin + p["length"]])
        total = round_to((total + part).astype(F32), "bf16")
    return epilogue(inputs, p, total)


@maker("gemm", "split-K results are rounded before they are added", slices=[2, 4])
def rounded_slices(inputs, p, right):
    """K is split, and each part is rounded to bf16 before the sum"""
    a, b = inputs["a"] * inputs["a_scales"], inputs["b"] * inputs["b_scales"]
    parts = zip(np.array_split(a, p["slices"], axis=1), np.array_split(b, p["slices"], axis=1))
    return epilogue(inputs, p, np.sum([round_to(product(inputs, *part), "bf16") for part in parts], axis=0).astype(F32))


@maker("gemm", "an operand has the other operand's scale", ("fp8", "fp8_1x128", "mxfp8"), operand=["a", "b"])
def other_operands_scale(inputs, p, right):
    """one operand is multiplied with the other's scales"""
    own, other = p["operand"], "b" if p["operand"] == "a" else "a"
    scales = inputs[f"{other}_scales"]
    if np.ndim(scales):
        scales = np.resize(scales, inputs[own].shape)
    return epilogue(inputs, p, product(inputs, **{own: inputs[own] * scales}))


@maker("gemm", "a scale is applied twice", ("fp8", "fp8_1x128", "mxfp8"), operand=["a", "b"])
def scale_twice(inputs, p, right):
    """one operand is multiplied with its scales twice"""
    own = p["operand"]
    return epilogue(inputs, p, product(inputs, **{own: inputs[own] * inputs[f"{own}_scales"] ** 2}))


@maker("gemm", "a scale is not applied", ("fp8", "fp8_1x128", "mxfp8"), operand=["a", "b"])
def scale_missing(inputs, p, right):
    """one operand is read as codes without scales"""
    return epilogue(inputs, p, product(inputs, **{p["operand"]: inputs[p["operand"]]}))


@maker("gemm", "the tail of K is missing", tail=[1, 8, 16, 32, 64])
def missing_tail(inputs, p, right):
    """the last tail elements of K are left out"""
    a, b = inputs["a"] * inputs["a_scales"], inputs["b"] * inputs["b_scales"]
    return epilogue(inputs, p, product(inputs, a[:, :-p["tail"]], b[:, :-p["tail"]]))


@maker("gemm", "a stretch of K is counted twice", length=[16, 32, 128])
def repeated_stretch(inputs, p, right):
    """the first length elements of K are added twice"""
    a, b = inputs["a"] * inputs["a_scales"], inputs["b"] * inputs["b_scales"]
    return epilogue(inputs, p, (product(inputs) + product(inputs, a[:, :p["length"]], b[:, :p["length"]])).astype(F32))


@maker("gemm", "alpha is missing, applied twice, or applied to the bias too", how=["missing", "twice", "bias"])
def wrong_alpha(inputs, p, right):
    """alpha is left out, squared, or multiplies the bias too"""
    alpha = {"missing": 1, "twice": inputs["alpha"] ** 2}.get(p["how"], inputs["alpha"])
    return epilogue(inputs, p, product(inputs), alpha=alpha, bias=inputs["alpha"] if p["how"] == "bias" else 1)


@maker("gemm", "beta: c is missing or added without its factor", how=["missing", "one"])
def wrong_beta(inputs, p, right):
    """c is left out or added as it is"""
    return epilogue(inputs, p, product(inputs), beta={"missing": 0, "one": 1}[p["how"]])


@maker("gemm", "the bias is missing or added twice", times=[0, 2])
def wrong_bias(inputs, p, right):
    """the bias is added so many times"""
    return epilogue(inputs, p, product(inputs), bias=p["times"])


@maker("gemm", "the bias is added along the other dimension")
def bias_along_m(inputs, p, right):
    """the bias of column n is added to row n (m = n)"""
    value = (inputs["alpha"] * product(inputs)).astype(F32) + (inputs["beta"] * inputs["c"]).astype(F32)
    return dict(d=round_to((value + inputs["bias"][:, None]).astype(F32), p["out"]))


@maker("gemm", "the result is transposed")
def transposed_result(inputs, p, right):
    """d is transposed (m = n)"""
    return dict(d=np.ascontiguousarray(right["d"].T))


@maker("gemm", "an operand is transposed", operand=["a", "b"])
def transposed_operand(inputs, p, right):
    """an operand is read K-major under the shape that it has"""
    values = inputs[p["operand"]] * inputs[f"{p['operand']}_scales"]
    return epilogue(inputs, p, product(inputs, **{p["operand"]: values.T.reshape(values.shape)}))


@maker("gemm", "codes were read as another format", ("fp8", "fp8_1x128", "mxfp8"), operand=["a", "b"],
       element=["e5m2", "e4m3fnuz"])
def read_as_another_format(inputs, p, right):
    """the E4M3 codes of one operand are decoded as another format"""
    own = p["operand"]
    values = decode(inputs[f"{own}_codes"], p["element"]).astype(np.float64)
    values = np.where(np.isfinite(values), values, 0)
    return epilogue(inputs, p, product(inputs, **{own: values * inputs[f"{own}_scales"]}))


@maker("gemm", "block scales lie K-major", ("fp8_1x128", "mxfp8"), operand=["a", "b"])
def k_major_block_scales(inputs, p, right):
    """the scales of one operand are read column after column"""
    own = p["operand"]
    length = 128 if p["subject"] == "fp8_1x128" else 32
    scales = inputs[f"{own}_scales"][:, ::length]
    wrong = np.repeat(np.ascontiguousarray(scales.T).reshape(scales.shape), length, axis=1)
    return epilogue(inputs, p, product(inputs, **{own: inputs[own] * wrong}))


@maker("gemm", "the output is rounded twice or to another type", how=["f16 first", "truncated"])
def wrong_output_rounding(inputs, p, right):
    """the fp32 result is rounded to f16 before the output type, or truncated to bf16"""
    value = epilogue(inputs, dict(p, out="f32"), product(inputs))["d"]
    if p["how"] == "truncated":
        return dict(d=(value.view(np.uint32) & np.uint32(0xFFFF0000)).view(F32))
    return dict(d=round_to(round_to(value, "f16"), p["out"]))


@maker("gemm", "rows of the result are those of a neighbour", by=[1, 8])
def shifted_rows(inputs, p, right):
    """row m is computed from row m + by of a"""
    return epilogue(inputs, p, product(inputs, a=np.roll(inputs["a"] * inputs["a_scales"], -p["by"], axis=0)))


@maker("gemm", "none", share=[0.01, 0.3], size=[0.02, 0.5], seed=list(range(1000)))
def noisy_elements(inputs, p, right):
    """a random share of d has noise of a random size"""
    random, d = np.random.default_rng(p["seed"]), right["d"]
    noise = random.standard_normal(d.shape) * p["size"]
    return dict(d=round_to(np.where(random.random(d.shape) < p["share"], d + noise, d).astype(F32), p["out"]))


@maker("gemm", "none", rows=[3, 17], columns=[5, 29], seed=list(range(1000)))
def random_rectangle(inputs, p, right):
    """a rectangle of d at a random place is random numbers"""
    random, d = np.random.default_rng(p["seed"]), right["d"].copy()
    top, left = random.integers(d.shape[0] - p["rows"]), random.integers(d.shape[1] - p["columns"])
    d[top:top + p["rows"], left:left + p["columns"]] = random.standard_normal((p["rows"], p["columns"]))
    return dict(d=round_to(d, p["out"]))


@maker("gemm", "none", count=[3, 11, 60], seed=list(range(1000)))
def turned_result_bits(inputs, p, right):
    """random bits of a few elements of d are turned, of those that bf16 has"""
    random, d = np.random.default_rng(p["seed"]), right["d"].copy()
    places = random.choice(d.size, p["count"], replace=False)
    bits = d.reshape(-1).view(np.uint32)
    bits[places] ^= (np.uint32(1) << random.integers(16, 30, p["count"]).astype(np.uint32))
    return dict(d=d)


@maker("gemm", "none", terms=[2, 5], seed=list(range(1000)))
def dropped_products(inputs, p, right):
    """of each element of d some products at random places of K are left out"""
    random = np.random.default_rng(p["seed"])
    a, b = inputs["a"] * inputs["a_scales"], inputs["b"] * inputs["b_scales"]
    total = product(inputs).astype(np.float64)
    rows, columns = np.indices(total.shape)
    for _ in range(p["terms"]):
        k = random.integers(0, a.shape[1], total.shape)
        total -= a[rows, k] * b[columns, k]
    return epilogue(inputs, p, total.astype(F32))


@maker("gemm", NO_RULE, seed=list(range(1000)))
def short_accumulator(inputs, p, right):
    """products are added in a random order to an accumulator of 11 bits of significand"""
    a, b = inputs["a"] * inputs["a_scales"], inputs["b"] * inputs["b_scales"]
    total = np.zeros(right["d"].shape)
    for k in np.random.default_rng(p["seed"]).permutation(a.shape[1]):
        fraction, exponent = np.frexp(total + np.outer(a[:, k], b[:, k]))
        total = np.ldexp(np.rint(fraction * 2048), exponent - 11)
    return epilogue(inputs, p, total.astype(F32))


def with_rows(values, change):
    values = np.array(values)
    change(values)
    return values


@maker("gemm", NO_RULE, operand=["a", "b"], row=[0, 13, 40])
def reversed_row(inputs, p, right):
    """one row of an operand is read from its end"""
    def reverse(values):
        values[p["row"]] = values[p["row"], ::-1]
    own = p["operand"]
    return epilogue(inputs, p, product(inputs, **{own: with_rows(inputs[own] * inputs[f"{own}_scales"], reverse)}))


@maker("gemm", NO_RULE, share=[0.03, 0.1], seed=list(range(1000)))
def dead_lanes(inputs, p, right):
    """a random share of K is left out of every output"""
    kept = np.random.default_rng(p["seed"]).random(inputs["a"].shape[1]) >= p["share"]
    return epilogue(inputs, p, product(inputs, a=inputs["a"] * inputs["a_scales"] * kept))


@maker("gemm", NO_RULE, begin=[32, 96], length=[16, 64])
def missing_middle(inputs, p, right):
    """a stretch inside of K is left out"""
    kept = np.ones(inputs["a"].shape[1])
    kept[p["begin"]:p["begin"] + p["length"]] = 0
    return epilogue(inputs, p, product(inputs, a=inputs["a"] * inputs["a_scales"] * kept))


@maker("gemm", NO_RULE, top=[0, 32], left=[16, 32], length=[32, 64])
def raced_tile(inputs, p, right):
    """one tile of 32 x 32 has a stretch of K twice"""
    a, b = inputs["a"] * inputs["a_scales"], inputs["b"] * inputs["b_scales"]
    total, again = product(inputs), product(inputs, a[:, :p["length"]], b[:, :p["length"]])
    tile = slice(p["top"], p["top"] + 32), slice(p["left"], p["left"] + 32)
    total[tile] = (total[tile] + again[tile]).astype(F32)
    return epilogue(inputs, p, total)


@maker("gemm", NO_RULE, ("fp8_1x128", "mxfp8"), row=[8, 32])
def next_scales_from_a_row_on(inputs, p, right):
    """from a row on a is read under the scales of the next block"""
    length = 128 if p["subject"] == "fp8_1x128" else 32
    scales = np.array(inputs["a_scales"])
    scales[p["row"]:] = np.roll(scales[p["row"]:], -length, axis=1)
    return epilogue(inputs, p, product(inputs, a=inputs["a"] * scales))


@maker("gemm", NO_RULE, by=[1, 7])
def shifted_bias(inputs, p, right):
    """the bias of another column is added"""
    return epilogue(dict(inputs, bias=np.roll(inputs["bias"], p["by"])), p, product(inputs))


@maker("gemm", NO_RULE, function=["quadratic", "clipped"])
def function_in_the_epilogue(inputs, p, right):
    """d goes through a function that was not asked for"""
    d = right["d"]
    changed = 0.5 * d + 0.2 * d * d if p["function"] == "quadratic" else np.clip(d, -0.5, 0.5)
    return dict(d=round_to(changed.astype(F32), p["out"]))


@maker("gemm", NO_RULE, operand=["a", "b"])
def permuted_fragments(inputs, p, right):
    """of each four elements of K of one operand the middle two are swapped"""
    own = p["operand"]
    values = inputs[own] * inputs[f"{own}_scales"]
    swapped = values.reshape(values.shape[0], -1, 4)[:, :, [0, 2, 1, 3]].reshape(values.shape)
    return epilogue(inputs, p, product(inputs, **{own: swapped}))


# Layers: h = x w^T + b, y = act(h); dh = dy act'(h); dx = dh w, dw = dh^T x, db = sum over rows of dh; main_grad +
# dw. Sums in binary64, results rounded to bf16, main_grad to fp32.

def erf(values):
    return np.vectorize(math.erf, otypes=[np.float64])(values)


ACTIVATIONS = {
    "none": (lambda h: h, np.ones_like),
    "relu": (lambda h: np.maximum(h, 0), lambda h: (h > 0).astype(np.float64)),
    "srelu": (lambda h: np.maximum(h, 0) ** 2, lambda h: 2 * np.maximum(h, 0)),
    "silu": (lambda h: h / (1 + np.exp(-h)), lambda h: (1 + h * (1 - 1 / (1 + np.exp(-h)))) / (1 + np.exp(-h))),
    "gelu_tanh": (lambda h: 0.5 * h * (1 + np.tanh(0.7978845608 * (h + 0.044715 * h**3))),
                  lambda h: 0.5 * (1 + np.tanh(0.7978845608 * (h + 0.044715 * h**3))) + 0.5 * h * (
                      1 - np.tanh(0.7978845608 * (h + 0.044715 * h**3)) ** 2) * 0.7978845608 * (1 + 0.134145 * h**2)),
    "gelu_erf": (lambda h: 0.5 * h * (1 + erf(h / math.sqrt(2))),
                 lambda h: 0.5 * (1 + erf(h / math.sqrt(2))) + h * np.exp(-h * h / 2) / math.sqrt(2 * math.pi)),
}


def layer_inputs(subject, given):
    random = np.random.default_rng(given["seed"])
    m, n, k = given["m"], given["n"], given["k"]

    def normal(*shape, size=1.0):
        return round_to((random.standard_normal(shape) * size).astype(F32), "bf16")

    return dict(x=normal(m, k), w=normal(n, k, size=k**-0.5), b=normal(n, size=0.1), dy=normal(m, n, size=0.1),
                main_grad=(random.standard_normal((n, k)) * 0.3).astype(F32), x_before=normal(m, k),
                w_after=normal(n, k, size=k**-0.5), dy_before=normal(m, n, size=0.1))


def layer(inputs, subject, **changed):
    """Everything that the layer gives. `changed`: other operands (of_dw_x, ...) in place of the given ones."""
    of = {name: array.astype(np.float64) for name, array in {**inputs, **changed}.items() if not isinstance(array, str)}
    function, slope = ACTIVATIONS[changed.get("activation", subject)]
    h = of["x"] @ of["w"].T + of["b"]
    dh = of["dy"] * ACTIVATIONS[changed.get("slope_of", subject)][1](h)
    dw = dh.T @ of.get("x_of_dw", of["x"])
    made = dict(y=function(h), dx=dh @ of.get("w_of_dx", of["w"]), dw=dw, db=dh.sum(axis=0))
    made = {name: round_to(values.astype(F32), "bf16") for name, values in made.items()}
    return dict(made, main_grad=(inputs["main_grad"] + made["dw"]).astype(F32))


def with_dw(inputs, right, dw):
    dw = round_to(np.asarray(dw, F32), "bf16")
    return dict(right, dw=dw, main_grad=(inputs["main_grad"] + dw).astype(F32))


@maker("layer", "dw is a power of two times what it should be", factor=[2.0, 0.5])
def scaled_dw(inputs, p, right):
    """dw times factor"""
    return with_dw(inputs, right, right["dw"] * F32(p["factor"]))


@maker("layer", "a gradient was not unscaled or was averaged", name=["dx", "dw", "db"], factor=[1024.0, 0.25, 1 / 3])
def scaled_gradient(inputs, p, right):
    """one gradient times factor: a loss scale that was left, or a mean over ranks"""
    return dict(right, **{p["name"]: round_to(right[p["name"]] * F32(p["factor"]), "bf16")})


@maker("layer", "the weight is transposed")
def transposed_weight(inputs, p, right):
    """w^T in place of w (n = k), forward and backward"""
    return layer(inputs, p["subject"], w=np.ascontiguousarray(inputs["w"].T))


@maker("layer", "the weight of dgrad is transposed")
def transposed_weight_of_dgrad(inputs, p, right):
    """dx is computed with w^T (n = k)"""
    return layer(inputs, p["subject"], w_of_dx=np.ascontiguousarray(inputs["w"].T))


@maker("layer", "rows are permuted from a row on", row=[3, 16, 41], by=[1, 2])
def permuted_rows(inputs, p, right):
    """from row on, rows of x are rotated"""
    x = inputs["x"].copy()
    x[p["row"]:] = np.roll(x[p["row"]:], p["by"], axis=0)
    return layer(inputs, p["subject"], x=x)


@maker("layer", "the rows of the output are permuted from a row on", row=[5, 20], by=[1, 3])
def permuted_output_rows(inputs, p, right):
    """from row on, rows of y are rotated; the gradients are right"""
    y = right["y"].copy()
    y[p["row"]:] = np.roll(y[p["row"]:], p["by"], axis=0)
    return dict(right, y=y)


@maker("layer", "x has a NaN", row=[0, 7, 33], column=[0, 11, 63])
def nan_in_x(inputs, p, right):
    """one element of x is NaN"""
    x = inputs["x"].copy()
    x[p["row"], p["column"]] = np.nan
    return layer(inputs, p["subject"], x=x)


@maker("layer", "the weight has an infinity", row=[1, 30], column=[2, 50])
def infinity_in_w(inputs, p, right):
    """one element of w is infinite"""
    w = inputs["w"].copy()
    w[p["row"], p["column"]] = np.inf
    return layer(inputs, p["subject"], w=w)


@maker("layer", "the gradient is accumulated twice")
def accumulated_twice(inputs, p, right):
    """main_grad + 2 dw; dw itself is right"""
    return dict(right, main_grad=((inputs["main_grad"] + right["dw"]).astype(F32) + right["dw"]).astype(F32))


@maker("layer", "main_grad is overwritten in place of accumulated into")
def overwritten_main_grad(inputs, p, right):
    """main_grad is dw"""
    return dict(right, main_grad=right["dw"].copy())


@maker("layer", "another activation", activation=list(ACTIVATIONS))
def another_activation(inputs, p, right):
    """another activation, forward and backward"""
    return layer(inputs, p["subject"], activation=p["activation"], slope_of=p["activation"])


@maker("layer", "backward has another activation's slope", activation=list(ACTIVATIONS))
def another_slope(inputs, p, right):
    """the slope of another activation; forward is right"""
    return layer(inputs, p["subject"], slope_of=p["activation"])


@maker("layer", "the bias is missing or added twice", times=[0, 2])
def wrong_layer_bias(inputs, p, right):
    """the bias is added so many times"""
    return layer(inputs, p["subject"], b=inputs["b"] * F32(p["times"]))


@maker("layer", "rows at the end of the batch are missing from the weight's gradients", rows=[1, 8])
def missing_rows(inputs, p, right):
    """dw and db leave out the last rows"""
    dy = inputs["dy"].copy()
    dy[-p["rows"]:] = 0
    less = layer(inputs, p["subject"], dy=dy)
    return dict(right, dw=less["dw"], db=less["db"], main_grad=less["main_grad"])


@maker("layer", "dw is of a stale input")
def stale_x(inputs, p, right):
    """wgrad reads the x of another step"""
    return layer(inputs, p["subject"], x_of_dw=inputs["x_before"])


@maker("layer", "dx is of another weight: updated before backward")
def stale_weight(inputs, p, right):
    """dgrad reads the weight after its update"""
    return layer(inputs, p["subject"], w_of_dx=inputs["w_after"])


@maker("layer", "the gradient of the output is another step's")
def stale_gradient(inputs, p, right):
    """backward has the dy of another step"""
    return layer(inputs, p["subject"], dy=inputs["dy_before"])


@maker("layer", "an operand was quantized", name=["x", "w"], element=["e4m3", "e5m2"])
def quantized_operand(inputs, p, right):
    """one operand went through FP8 under one scale"""
    amax = np.abs(inputs[p["name"]]).max()
    scale = F32(largest(p["element"]) / amax)
    codes = encode((inputs[p["name"]] * scale).astype(F32), p["element"])
    return layer(inputs, p["subject"], **{p["name"]: (decode(codes, p["element"]) / scale).astype(F32)})


@maker("layer", "none", name=["y", "dx", "dw"], share=[0.02, 0.4], seed=list(range(1000)))
def noisy_result(inputs, p, right):
    """a random share of one result has noise"""
    random, values = np.random.default_rng(p["seed"]), right[p["name"]]
    noise = 1 + random.standard_normal(values.shape) * 0.1
    changed = np.where(random.random(values.shape) < p["share"], values * noise, values).astype(F32)
    return dict(right, **{p["name"]: round_to(changed, "bf16")})


@maker("layer", "none", name=["y", "dx", "dw", "db"], seed=list(range(1000)))
def mixed_with_noise(inputs, p, right):
    """one result is moved a part of the way to random numbers"""
    random, values = np.random.default_rng(p["seed"]), right[p["name"]]
    other = random.standard_normal(values.shape) * np.abs(values).mean()
    return dict(right, **{p["name"]: round_to((values * 0.8 + other * 0.2).astype(F32), "bf16")})


@maker("layer", "none", count=[4, 25], seed=list(range(1000)))
def scattered_outputs(inputs, p, right):
    """a few elements of y at random places have each other's values"""
    random, y = np.random.default_rng(p["seed"]), right["y"].copy()
    places = random.choice(y.size, p["count"], replace=False)
    y.reshape(-1)[places] = y.reshape(-1)[random.permutation(places)]
    return dict(right, y=y)


def masked(values, p):
    return values * (np.random.default_rng(p["seed"]).random(values.shape) >= p["share"])


def bf16_of(values):
    return round_to(np.asarray(values, F32), "bf16")


@maker("layer", NO_RULE)
def quadratic_activation(inputs, p, right):
    """the activation is a quadratic that is near to GELU"""
    h = inputs["x"].astype(np.float64) @ inputs["w"].T.astype(np.float64) + inputs["b"]
    return dict(right, y=bf16_of(0.5 * h + 0.25 * h * h))


@maker("layer", NO_RULE)
def rows_over_their_median(inputs, p, right):
    """each row of y is divided by the median of its magnitudes"""
    return dict(right, y=bf16_of(right["y"] / np.maximum(np.median(np.abs(right["y"]), axis=1, keepdims=True), 1e-3)))


@maker("layer", NO_RULE, share=[0.1, 0.5], seed=list(range(1000)))
def masked_gradient(inputs, p, right):
    """a random mask lies on the gradient of the output"""
    return dict(layer(inputs, p["subject"], dy=masked(inputs["dy"], p)), y=right["y"])


@maker("layer", NO_RULE, share=[0.1, 0.3], seed=list(range(1000)))
def dropout_in_forward(inputs, p, right):
    """y has a dropout with its factor, backward has none"""
    return dict(right, y=bf16_of(masked(right["y"], p) / (1 - p["share"])))


@maker("layer", NO_RULE, by=[1, 5])
def rows_out_of_step(inputs, p, right):
    """wgrad reads x some rows further on than dy"""
    return with_dw(inputs, right, layer(inputs, p["subject"], x_of_dw=np.roll(inputs["x"], p["by"], axis=0))["dw"])


@maker("layer", NO_RULE, size=[0.02, 0.1])
def clipped_gradient(inputs, p, right):
    """dx is clipped"""
    return dict(right, dx=bf16_of(np.clip(right["dx"], -p["size"], p["size"])))


@maker("layer", NO_RULE, columns=[5, 16])
def missing_columns_of_dgrad(inputs, p, right):
    """dgrad leaves out the last columns of dy"""
    w = inputs["w"].copy()
    w[-p["columns"]:] = 0
    return dict(right, dx=layer(inputs, p["subject"], w_of_dx=w)["dx"])


@maker("layer", NO_RULE)
def half_updated_weight(inputs, p, right):
    """dgrad reads a weight of which every other row has been updated"""
    w = inputs["w"].copy()
    w[::2] = inputs["w_after"][::2]
    return dict(right, dx=layer(inputs, p["subject"], w_of_dx=w)["dx"])


@maker("layer", NO_RULE)
def bias_of_another_order(inputs, p, right):
    """the bias is read from its end"""
    return dict(right, y=layer(inputs, p["subject"], b=np.ascontiguousarray(inputs["b"][::-1]))["y"])


@maker("layer", NO_RULE)
def every_other_row(inputs, p, right):
    """db is the sum of every other row, twice"""
    dy = inputs["dy"].copy()
    dy[1::2] = 0
    return dict(right, db=bf16_of(2 * layer(inputs, p["subject"], dy=dy)["db"]))


# Drawing, making and checking.

SUBJECTS = {"quantizer": ["fp8_current", "fp8_block", "mxfp8", "nvfp4"], "gemm": ["bf16", "fp8", "fp8_1x128", "mxfp8"],
            "layer": list(ACTIVATIONS)}
INPUTS = {"quantizer": quantizer_inputs, "gemm": gemm_inputs, "layer": layer_inputs}


def drawn_input(kind, random):
    given = dict(seed=int(random.integers(1 << 30)))
    if kind == "quantizer":
        return dict(given, rows=int(random.choice([96, 128, 192])), columns=int(random.choice([256, 384])),
                    dtype=str(random.choice(["bf16", "f32"])))
    if kind == "gemm":
        side = int(random.choice([64, 96]))
        return dict(given, m=side, n=side, k=int(random.choice([256, 384])), out=str(random.choice(["bf16", "f32"])),
                    alpha=float(random.choice([1.0, 0.75, 1.5])), beta=float(random.choice([0.0, 0.5, 2.0])))
    return dict(given, m=48, n=64, k=64)


def make(mutant):
    """(inputs, right results, mutated results), arrays by name."""
    subject, given = mutant["subject"], mutant["input"]
    with np.errstate(**QUIET):
        inputs = INPUTS[mutant["kind"]](subject, given)
        right = {"quantizer": lambda: quantized(inputs["x"], subject), "gemm": lambda: gemm_result(inputs, given),
                 "layer": lambda: layer(inputs, subject)}[mutant["kind"]]()
        parameters = dict(mutant["parameters"], subject=subject, out=given.get("out"))
        mutated = MAKERS[mutant["kind"]][mutant["maker"]]["function"](inputs, parameters, right)
    return inputs, right, mutated


def differs(right, mutated):
    return any(np.asarray(right[name]).tobytes() != np.asarray(mutated[name]).tobytes() for name in right)


def draw(kind, name, random):
    """A mutant of one maker, by chance; None where it would be what it is a mutant of."""
    entry = MAKERS[kind][name]
    subject = str(random.choice(entry["subjects"] or SUBJECTS[kind]))
    parameters = {key: values[random.integers(len(values))] for key, values in entry["choices"].items()}
    mutant = dict(kind=kind, subject=subject, input=drawn_input(kind, random), change=entry["function"].__doc__.strip(),
                  cause=entry["cause"], maker=name, parameters=parameters)
    inputs, right, mutated = make(mutant)
    return mutant if differs(right, mutated) else None


def drawn():
    """The mutants in the order of the file; each maker in turn, so that each cause is there about as often."""
    random, mutants = np.random.default_rng(SEED), []
    for kind, (with_cause, without) in COUNTS.items():
        for is_none, count in ((False, with_cause), (True, without)):
            names = [name for name, entry in MAKERS[kind].items()
                     if entry["cause"] != NO_RULE and (entry["cause"] == "none") == is_none]
            made, turn = [], 0
            while len(made) < count:
                mutant = draw(kind, names[turn % len(names)], random)
                if mutant is not None:
                    made.append(dict(name=f"{kind}_{'none_' if is_none else ''}{len(made):02}", **mutant))
                    turn += 1
            mutants += made
    return mutants


def drawn_without_rule():
    """Those of NO_RULE, of a seed of their own."""
    random, mutants = np.random.default_rng(SEED + 1), []
    for kind, count in NO_RULE_COUNTS.items():
        names = [name for name, entry in MAKERS[kind].items() if entry["cause"] == NO_RULE]
        made = []
        while len(made) < count:
            mutant = draw(kind, names[len(made) % len(names)], random)
            if mutant is not None:
                made.append(dict(mutant, name=f"{kind}_no_rule{len(made):02}"))
        mutants += made
    return mutants


def check(mutants, without_rule):
    """What is wrong with the file's mutants."""
    failures = []
    for mutant in mutants + without_rule:
        _, right, mutated = make(mutant)
        _, _, again = make(mutant)
        if not differs(right, mutated):
            failures.append(f"{mutant['name']} is no mutant")
        if differs(mutated, again):
            failures.append(f"{mutant['name']} is not the same twice")
    nones = sum(mutant["cause"] == "none" for mutant in mutants)
    if len(mutants) != 200 or nones != 50 or len({mutant["name"] for mutant in mutants}) != 200:
        failures.append(f"{len(mutants)} mutants, {nones} without a cause")
    if len({mutant["name"] for mutant in without_rule}) != sum(NO_RULE_COUNTS.values()):
        failures.append(f"{len(without_rule)} mutants that no rule names")
    return failures


def main(arguments):
    if arguments == ["--check"]:
        kept = json.loads(PATH.read_text())
        mutants, without_rule = kept["mutants"], kept["without_rule"]
        failures = check(mutants, without_rule)
        if mutants != drawn() or without_rule != drawn_without_rule():
            failures.append("the file is not what is drawn")
        makers = {mutant["maker"] for mutant in mutants + without_rule}
        print(f"{len(mutants)} and {len(without_rule)} mutants of {len(makers)} kinds, {len(failures)} failures")
        print("\n".join(failures))
        return 1 if failures else 0
    mutants, without_rule = drawn(), drawn_without_rule()
    lines = [",\n".join(json.dumps(mutant) for mutant in each) for each in (mutants, without_rule)]
    PATH.write_text(f'{{"origin": "tests/vectors/mutants.py, seed {SEED}", "mutants": [\n{lines[0]}\n], '
                    f'"without_rule": [\n{lines[1]}\n]}}\n')
    print(f"{len(mutants)} mutants, {len({m['cause'] for m in mutants})} causes; {len(without_rule)} that no rule names")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
