"""The mutants of tests/data/mutants.json through the assertions: each red, with its cause or none; what they were made of green.

What is right and what is mutated is computed by numpy alone (tests/vectors/mutants.py), from the numbers that the file's seeds
draw. By default each maker's first mutant goes through, one of each mistake; QUANTGATE_ALL_MUTANTS=1 takes all 258 of them but 8
of gelu by erf, which the engine does not have. Layers are those of the engine: their operations round to bf16, which mutants.py
does at the end alone, so that its layer is replaced here by one that does, in numpy too.
"""

import json
import os
import sys

import ml_dtypes
import numpy as np
import pytest

from quantgate import testing
from tensor_files import DATA, ROOT

sys.path.insert(0, str(ROOT / "tests" / "vectors"))
import mutants  # noqa: E402

KEPT = json.loads((DATA / "mutants.json").read_text())
ALL = KEPT["mutants"] + KEPT["without_rule"]
EVERY = os.environ.get("QUANTGATE_ALL_MUTANTS") == "1"
# Its nearest arithmetic is of hardware that refuses its scales, which is no reason to explain nothing.
ALWAYS = ("gemm_31",)
NO_CAUSE = ("none", "no rule")
DTYPES = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}


def of_kind(kind):
    """Each maker's first mutant, and with QUANTGATE_ALL_MUTANTS=1 all of them."""
    chosen, makers = [], set()
    for mutant in ALL:
        if mutant["kind"] == kind and (EVERY or mutant["maker"] not in makers or mutant["name"] in ALWAYS):
            chosen.append(pytest.param(mutant, id=mutant["name"]))
            makers.add(mutant["maker"])
    return chosen


def failed(call):
    """The Mismatch that an assertion raises; None where it holds. Scales that fit no blocks are a Mismatch, too."""
    try:
        call()
    except testing.Mismatch as mismatch:
        return mismatch
    return None


def check_first_line(mismatch, cause):
    first = str(mismatch).splitlines()[0]
    assert first.startswith(cause or "cause unknown: "), first


# --- Quantizers.

QUANTIZERS = {"fp8_current": "fp8_current", "fp8_block": "fp8_block:power_2_scales=false", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
CODES = {"nvfp4": "f4_e2m1x2"}
SCALES = {"mxfp8": ml_dtypes.float8_e8m0fnu, "nvfp4": ml_dtypes.float8_e4m3fn}


def quantizer_call(mutant, source, made):
    subject = mutant["subject"]
    codes, scales = made["codes"].astype(np.uint8), np.ascontiguousarray(made["scale_inv"])
    if subject in SCALES:
        scales = scales.astype(np.uint8).view(SCALES[subject])
    amax = {"amax": made["amax"].astype(np.float32)} if "amax" in made else {}
    return lambda: testing.assert_quantized((codes, CODES.get(subject, "f8_e4m3")), scales, source,
                                            recipe=QUANTIZERS[subject], within="bits", **amax)


@pytest.mark.parametrize("mutant", of_kind("quantizer"))
def test_quantizer(mutant):
    inputs, right, made = mutants.make(mutant)
    source = inputs["x"].astype(DTYPES[mutant["input"]["dtype"]])
    quantizer_call(mutant, source, right)()
    mismatch = failed(quantizer_call(mutant, source, made))
    assert mismatch is not None
    if mutant["cause"] in NO_CAUSE:
        assert mismatch.cause == "" and mismatch.is_unknown
    elif mutant["name"] in ("quantizer_23", "quantizer_44"):
        # This is how torchao's NVFP4 scales elements, which the explanation says of it.
        assert mismatch.cause.startswith("codes and scales are what another rule makes: f4_e2m1 1x16, ")
        assert "torchao, NVFP4" in mismatch.cause
    else:
        assert mismatch.cause == mutant["cause"] and not mismatch.is_unknown
    check_first_line(mismatch, mismatch.cause)


# --- GEMMs, under the arithmetic that rounds once.

def rounded_once(values, dtype):
    """Wide numbers to bf16 or f32 with one rounding, to nearest even."""
    bits = {"bf16": 8, "f32": 24}[dtype]
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits).astype(np.float32).astype(DTYPES[dtype])


def exact_gemm(inputs, out):
    """Sums of products in 64 bits: more than the products of codes and their scales have, but for a few sums' last ones."""
    a, b = (inputs[name].astype(np.longdouble) * np.asarray(inputs[f"{name}_scales"], np.longdouble) for name in "ab")
    wide = np.longdouble(inputs["alpha"]) * (a @ b.T)
    return rounded_once(wide + np.longdouble(inputs["beta"]) * inputs["c"].astype(np.longdouble) +
                        inputs["bias"].astype(np.longdouble), out)


def gemm_operands(mutant, inputs):
    subject = mutant["subject"]
    if subject == "bf16":
        return {name: inputs[f"{name}_values"].astype(ml_dtypes.bfloat16) for name in "ab"}
    scaling = {"fp8": "tensor", "fp8_1x128": "1x128", "mxfp8": "mx32"}[subject]
    operands = {}
    for name in "ab":
        operands[name] = inputs[f"{name}_codes"].astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
        scales = np.ascontiguousarray(inputs[f"{name}_scale_inv"])
        operands[f"{name}_scale_inv"] = scales.astype(np.uint8).view(SCALES["mxfp8"]) if subject == "mxfp8" else scales
        operands[f"{name}_scaling"] = scaling
    return operands


def elements(count):
    return "element" if count == 1 else f"{count} elements"


# What names the cause with its parameters, by maker.
GEMM_WORDS = {
    "partial_sums_in_bf16": lambda p: f"partial sums are kept in bf16, each over {p['length']}",
    "rounded_slices": lambda p: f"split-K results are rounded to bf16 before they are added: {p['slices']}",
    "other_operands_scale": lambda p: f"{p['operand']} has the scale of {'b' if p['operand'] == 'a' else 'a'}",
    "scale_twice": lambda p: f"the scale of {p['operand']} is applied twice",
    "scale_missing": lambda p: f"the scale of {p['operand']} is not applied",
    "missing_tail": lambda p: f"the tail of K is missing: the last {elements(p['tail'])}",
    "repeated_stretch": lambda p: f"a stretch of K is counted twice: the first {elements(p['length'])}",
    "wrong_alpha": lambda p: {"missing": "alpha is missing", "twice": "alpha is applied twice",
                              "bias": "alpha is applied to the bias too"}[p["how"]],
    "wrong_beta": lambda p: "beta: c is missing" if p["how"] == "missing" else "beta: c is added without its factor",
    "wrong_bias": lambda p: "the bias is missing" if p["times"] == 0 else "the bias is added twice",
    "bias_along_m": lambda p: "the bias is added along the other dimension",
    "transposed_result": lambda p: "the result is transposed",
    "transposed_operand": lambda p: f"operand {p['operand']} is transposed",
    "read_as_another_format": lambda p: f"the codes of {p['operand']} were read as {p['element']}",
    "k_major_block_scales": lambda p: f"the block scales of {p['operand']} are read as if they lay K-major",
    "wrong_output_rounding": lambda p: "the output is truncated to bf16" if p["how"] == "truncated" else "to f16 first",
    "shifted_rows": lambda p: f"rows of the result are those of a neighbour, {p['by']} further on",
}


@pytest.mark.parametrize("mutant", of_kind("gemm"))
def test_gemm(mutant):
    inputs, _, made = mutants.make(mutant)
    out = mutant["input"]["out"]
    options = dict(gemm_operands(mutant, inputs), alpha=float(inputs["alpha"]), beta=float(inputs["beta"]),
                   bias=inputs["bias"].astype(ml_dtypes.bfloat16), arithmetic="exact", within="bits")
    if inputs["beta"] != 0:
        options["c"] = inputs["c"].astype(DTYPES[out])
    testing.assert_gemm(exact_gemm(inputs, out), **options)
    mismatch = failed(lambda: testing.assert_gemm(made["d"].astype(DTYPES[out]), **options))
    assert mismatch is not None
    if mutant["cause"] in NO_CAUSE:
        assert mismatch.cause == "" and mismatch.is_unknown
    else:
        # One that gives the same numbers may be told with it: "..., or ...".
        assert GEMM_WORDS[mutant["maker"]](mutant["parameters"]) in mismatch.cause
        assert not mismatch.is_unknown
    assert "not explained" not in str(mismatch)
    check_first_line(mismatch, mismatch.cause)


# --- Layers: linear, or linear and an activation, whose results the engine rounds to bf16 one after the other.

# The engine has gelu by tanh alone.
ACTIVATIONS = {"none": None, "relu": "relu", "srelu": "srelu", "silu": "silu", "gelu_tanh": "gelu"}
OF_MAIN_GRAD = ("accumulated_twice", "overwritten_main_grad")


def bf16(values):
    return rounded_once(np.asarray(values, np.float64), "bf16")


def engine_layer(inputs, subject, **changed):
    """What mutants.layer gives, of operands in bf16, with what the linear layer and the activation's gradient give in bf16."""
    of = {name: bf16(array).astype(np.float64) for name, array in {**inputs, **changed}.items() if not isinstance(array, str)}
    function = mutants.ACTIVATIONS[changed.get("activation", subject)][0]
    slope = mutants.ACTIVATIONS[changed.get("slope_of", subject)][1]
    h = bf16(of["x"] @ of["w"].T + of["b"]).astype(np.float64)
    dh = bf16(of["dy"] * slope(h)).astype(np.float64)
    dw = dh.T @ of.get("x_of_dw", of["x"])
    made = dict(y=function(h), dx=dh @ of.get("w_of_dx", of["w"]), dw=dw, db=dh.sum(axis=0))
    made = {name: bf16(values).astype(np.float32) for name, values in made.items()}
    return dict(made, main_grad=rounded_once(inputs["main_grad"].astype(np.longdouble) + dw, "f32"), dw_f32=dw.astype(np.float32))


@pytest.fixture
def layer_of_the_engine(monkeypatch):
    monkeypatch.setattr(mutants, "layer", engine_layer)


def layer_call(mutant, inputs, made, within="bits"):
    subject, of = mutant["subject"], {name: value.astype(ml_dtypes.bfloat16) for name, value in inputs.items()}
    names = ("y", "dx", "main_grad") if mutant["maker"] in OF_MAIN_GRAD else ("y", "dx", "dw", "db")
    outputs = {name: made[name].astype(np.float32 if name == "main_grad" else ml_dtypes.bfloat16) for name in names}
    options = dict(recipe="bf16", arithmetic="exact", grad_output=of["dy"], within=within,
                   related={name: of[name] for name in ("x_before", "w_after", "dy_before")})
    linear = subject == "none"
    if "main_grad" in outputs:
        options["main_grads"] = {"weight" if linear else "p.weight": inputs["main_grad"].astype(np.float32)}
    if linear:
        return lambda: testing.assert_linear(outputs.pop("y"), of["x"], of["w"], bias=of["b"], **outputs, **options)
    operations = [{"kind": "basic_linear", "name": "p"}, {"kind": "bias", "name": "q"},
                  {"kind": "activation", "name": "f", "activation": {"kind": ACTIVATIONS[subject]}}]
    renamed = {"dw": "p.dw", "main_grad": "p.main_grad", "db": "q.db"}
    others = {renamed.get(name, name): value for name, value in outputs.items() if name != "y"}
    return lambda: testing.assert_chain(outputs["y"], of["x"], operations, parameters={"p.weight": of["w"], "q.bias": of["b"]},
                                        outputs=others, **options)


def layers():
    return [parameter for parameter in of_kind("layer") if parameter.values[0]["subject"] in ACTIVATIONS]


def test_the_file_has_what_is_counted():
    kinds = [mutant["kind"] for mutant in ALL]
    assert [kinds.count(kind) for kind in ("quantizer", "gemm", "layer")] == [100, 84, 74]
    assert sum(mutant["kind"] == "layer" and mutant["subject"] not in ACTIVATIONS for mutant in ALL) == 8


LAYER_WORDS = {
    "scaled_dw": lambda p: ["dw is twice the expected", "dw is half the expected"],
    "scaled_gradient": lambda p: ["is 2^10 times the expected", "is 2^-2 times the expected", "is 1/3 of the expected"],
    "transposed_weight": lambda p: ["the weight is transposed ("],
    "transposed_weight_of_dgrad": lambda p: ["the weight of dgrad is transposed"],
    "permuted_rows": lambda p: [f"rows of x are permuted from row {p['row']} on"],
    "permuted_output_rows": lambda p: [f"y has its rows permuted from row {p['row']} on"],
    "nan_in_x": lambda p: [f"x has a NaN in row {p['row']}"],
    "infinity_in_w": lambda p: [f"the weight has an infinity in row {p['row']}"],
    "accumulated_twice": lambda p: ["main_grad has the gradient accumulated twice"],
    "overwritten_main_grad": lambda p: ["main_grad is overwritten"],
    "wrong_layer_bias": lambda p: ["the bias is missing" if p["times"] == 0 else "the bias is added twice"],
    "missing_rows": lambda p: ["of the batch are missing from the weight's gradients", "of the batch is missing"],
    "stale_x": lambda p: ["dw is of another input: x_before"],
    "stale_weight": lambda p: ["dx is of another weight: w_after"],
    "stale_gradient": lambda p: ["the gradient of the output is dy_before in place of grad_output"],
    "quantized_operand": lambda p: ["an operand was quantized: "],
}
# Activations of a chain are not exchanged, and a linear layer has none.
NOT_NAMED = ("another_activation", "another_slope")
# numpy's tanh in binary64 and the engine's in fp32 round y to neighbours, in one element or two.
ROUNDED_APART = ("layer_06", "layer_23", "layer_none_08", "layer_no_rule02")


def layer_mismatch(mutant, subject):
    """(that of what is right, that of the mutant) of one subject: None where an assertion holds."""
    mutant = dict(mutant, subject=subject)
    inputs, _, _ = mutants.make(mutant)
    right = engine_layer(inputs, subject)
    of_maker = dict(right, dw=right["dw_f32"]) if mutant["maker"] in OF_MAIN_GRAD else right
    with np.errstate(**mutants.QUIET):
        made = mutants.MAKERS["layer"][mutant["maker"]]["function"](
            inputs, dict(mutant["parameters"], subject=subject, out=None), of_maker)
    criterion = "bound" if mutant["name"] in ROUNDED_APART and subject != "none" else "bits"
    return failed(layer_call(mutant, inputs, right, criterion)), failed(layer_call(mutant, inputs, made))


@pytest.mark.parametrize("mutant", layers())
def test_layer(mutant, layer_of_the_engine):
    green, mismatch = layer_mismatch(mutant, mutant["subject"])
    assert green is None and mismatch is not None
    check_first_line(mismatch, mismatch.cause)
    words = LAYER_WORDS.get(mutant["maker"], lambda p: [])(mutant["parameters"])
    if mismatch.cause and mutant["name"] not in ROUNDED_APART:
        assert any(word in mismatch.cause for word in words), mismatch.cause
    if mutant["cause"] in NO_CAUSE or mutant["maker"] in NOT_NAMED:
        assert mismatch.is_unknown
    elif mismatch.is_unknown:
        # Mistakes of one GEMM of backward are tried on linear layers alone.
        green, mismatch = layer_mismatch(mutant, "none")
        assert green is None and mismatch is not None
        assert any(word in mismatch.cause for word in words) and not mismatch.is_unknown
