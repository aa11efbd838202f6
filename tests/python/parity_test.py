"""One table of runs, codes and GEMMs, each computed three ways: by Python in this process, by the `quantgate` command and by a
server through quantgate.connect. All give the same bytes.

Every layer kind meets every recipe, every recipe every backward override and every arithmetic, every recipe of codes every
role."""

import os
import subprocess
from typing import NamedTuple

import numpy as np
import pytest

import quantgate as qg
from server import serving
from tensor_files import ROOT, bits, read_file

PROGRAM = os.environ.get("QUANTGATE_PROGRAM", "quantgate")


class Layer(NamedTuple):
    """A layer as the command's options and as keywords, with the shapes of its tensors."""

    options: list
    keywords: dict
    x: tuple
    parameters: dict
    grad_output: tuple


LAYERS = {
    "linear": Layer([], {}, (64, 64), {"weight": (96, 64), "bias": (96,)}, (64, 96)),
    "layernorm_linear": Layer(
        ["--norm", "rmsnorm,eps=1e-6", "--return-norm-output"],
        {"norm": {"kind": "rmsnorm", "epsilon": 1e-6}, "return_norm_output": True},
        (64, 64), {"gamma": (64,), "weight": (96, 64)}, (64, 96)),
    "layernorm_mlp": Layer(
        ["--activation", "swiglu"], {"activation": "swiglu"},
        (64, 64), {"gamma": (64,), "beta": (64,), "fc1.weight": (128, 64), "fc2.weight": (96, 64)}, (64, 96)),
    "grouped_linear": Layer(
        ["--m-splits", "32,0,32"], {"m_splits": [32, 0, 32]},
        (64, 64), {f"weight.{expert}": (96, 64) for expert in range(3)}, (64, 96)),
    "chain": Layer(
        ["--operation", "fc=basic_linear", "--operation", "act=activation,gelu", "--operation", "sum=add,x"],
        {"operations": [{"name": "fc", "kind": "basic_linear"},
                        {"name": "act", "kind": "activation", "activation": {"kind": "gelu"}},
                        {"name": "sum", "kind": "add", "addend": "x"}]},
        (64, 64), {"fc.weight": (64, 64)}, (64, 64)),
    "attention": Layer(
        ["--heads", "2", "--mask", "causal"], {"attention": {"heads": 2, "mask": "causal"}},
        (32, 2, 64), {"qkv.weight": (192, 64), "proj.weight": (64, 64)}, (32, 2, 64)),
    "transformer_layer": Layer(
        ["--heads", "4", "--groups", "2", "--mask", "causal", "--rotary-base", "100"],
        {"attention": {"heads": 4, "groups": 2, "mask": "causal", "rotary_base": 100}},
        (16, 2, 32), {"qkv.weight": (64, 32), "proj.weight": (32, 32), "norm1.gamma": (32,), "norm2.gamma": (32,),
                      "fc1.weight": (64, 32), "fc2.weight": (32, 64)}, (16, 2, 32)),
}
OVERRIDES = ("none", "high_precision", "dequantized")
_ANY = ("exact", "fp32")
_MX = ("sm100", "sm120", *_ANY)
_FP8 = ("sm89", "sm90", "sm90:fast", "sm90:split", "sm90_mma_fp8", "sm100", "sm100_mma_fp8", "sm120", *_ANY)
# The arithmetics that take each recipe, of bfloat16 tensors; all others of a build refuse it.
RECIPES = {
    "bf16": ("sm80", "sm86", "sm89", "sm90", "sm90:fast", "sm90:split", *_MX),
    "fp8_delayed": _FP8,
    "fp8_current": _FP8,
    "fp8_rowwise": _FP8,
    "fp8_block": ("sm90", "sm90:split", *_MX),
    "mxfp8": _MX, "mxfp6_e2m3": _MX, "mxfp6_e3m2": _MX, "mxfp4": _MX, "nvfp4": _MX,
    "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=nvfp4": _MX,
    'custom:rules=[{"tensor_type":"weight","quantizer":{"format":"mxfp8","element":"f6_e3m2"}},{"quantizer":"mxfp8"}]': _MX,
}
# These take tensors of float16, or integers.
OTHERS = {"sm70": "f16", "sm75": "f16", "int32": "i8"}
CODES = {"int8": ("input", "weight", "grad_output"), "int4:group=32": ("input", "weight", "grad_output"),
         "nf4": ("weight",), "bnb_fp4": ("weight",)}


class Run(NamedTuple):
    layer: str
    recipe: str
    override: str
    arithmetic: str = "auto"
    dtype: str = "bf16"

    def __str__(self):
        return "-".join((self.layer, self.recipe.partition(":")[0], *self[2:]))


def overrides_of(recipe):
    return OVERRIDES[:1] if recipe == "fp8_delayed" else OVERRIDES


def table():
    """Each pair once at least. Overrides take turns over layers and recipes."""
    runs = []
    for i, layer in enumerate(LAYERS):
        for j, recipe in enumerate(RECIPES):
            overrides = overrides_of(recipe)
            runs.append(Run(layer, recipe, overrides[(i + j) % len(overrides)]))
    runs += [Run("linear", recipe, override) for recipe in RECIPES for override in overrides_of(recipe)]
    runs += [Run("linear", recipe, "none", arithmetic) for recipe, taken in RECIPES.items() for arithmetic in taken]
    runs += [Run("linear", "bf16", "none", arithmetic, "f16") for arithmetic, dtype in OTHERS.items() if dtype == "f16"]
    return list(dict.fromkeys(runs))


RUNS = table()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    pytest.importorskip("grpc")
    with serving(tmp_path_factory.mktemp("server") / "data") as server, qg.connect(server.address) as client:
        yield client


def command(*arguments):
    done = subprocess.run([PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def generated(seed, shape, dtype="bf16"):
    return f"gen:normal,seed={seed},dtype={dtype},shape={'x'.join(map(str, shape))}"


def tensors_of(run):
    """Shapes of the run's tensors by name, numbered as they are seeded."""
    layer = LAYERS[run.layer]
    return {"x": layer.x, "grad_output": layer.grad_output, **layer.parameters}


def by_command(run, path):
    tensors = {name: generated(seed, shape, run.dtype) for seed, (name, shape) in enumerate(tensors_of(run).items())}
    arguments = ["--input", tensors.pop("x"), "--grad-output", tensors.pop("grad_output")]
    for name, tensor in tensors.items():
        arguments += ["--param", f"{name}={tensor}"]
    command("run", "--layer", run.layer, *LAYERS[run.layer].options, *arguments, "--recipe", run.recipe,
            "--backward-override", run.override, "--arithmetic", run.arithmetic, "-o", str(path))
    return read_file(path)[0]


def by_python(client, run):
    tensors = {name: qg.generate("normal", shape, run.dtype, seed=seed) for seed, (name, shape) in
               enumerate(tensors_of(run).items())}
    x, grad_output = tensors.pop("x"), tensors.pop("grad_output")
    return client.run(x, parameters=tensors, grad_output=grad_output, layer=run.layer, recipe=run.recipe,
                      backward_override=run.override, arithmetic=run.arithmetic, **LAYERS[run.layer].keywords).outputs


def check(expected, actual, who):
    """The same names, types, shapes and bytes."""
    assert set(actual) == set(expected) and expected, who
    for name, tensor in expected.items():
        assert actual[name].shape == tensor.shape, (who, name)
        # Files have FP6 as bytes.
        is_bytes = who == "the command" and actual[name].dtype == np.uint8 and tensor.dtype.itemsize == 1
        assert actual[name].dtype == tensor.dtype or is_bytes, (who, name)
        assert bits(actual[name]) == bits(tensor), (who, name)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_run(run, client, tmp_path):
    outputs = by_python(qg, run)
    assert {"y", "dx"} <= set(outputs) and len(outputs) >= 3
    written = by_command(run, tmp_path / "out.safetensors")
    # The command also writes the state of delayed scaling.
    check(outputs, {name: tensor for name, tensor in written.items() if name in outputs}, "the command")
    check(outputs, by_python(client, run), "the server")


CASTS = [(recipe, role) for recipe in (*RECIPES, *CODES) if recipe != "bf16"
         for role in CODES.get(recipe, ("input", "weight", "grad_output"))]


@pytest.mark.parametrize("recipe, role", CASTS, ids=lambda text: text.partition(":")[0])
def test_codes_and_their_values(recipe, role, client, tmp_path):
    x = qg.generate("normal", (64, 64), "bf16", seed=1)
    columnwise = recipe not in CODES
    seed = 3 if role == "grad_output" and "nvfp4" in recipe and "hybrid" not in recipe else 0
    local, remote = (c.quantize(x, recipe, role=role, columnwise=columnwise, seed=seed) for c in (qg, client))
    path = tmp_path / "codes.safetensors"
    command("quantize", generated(1, (64, 64)), "--recipe", recipe, "--role", role, "--usage",
            "rowwise,columnwise" if columnwise else "rowwise", *(["--seed", str(seed)] if seed else []), "-o", str(path))
    check(local.tensors, read_file(path)[0], "the command")
    check(local.tensors, remote.tensors, "the server")
    # Columnwise codes of nvfp4 are not dequantized.
    for usage in ("rowwise", "columnwise") if columnwise and "nvfp4" not in recipe else ("rowwise",):
        values = qg.dequantize(local, usage=usage)
        command("dequantize", str(path), "--usage", usage, "-o", str(tmp_path / "values.safetensors"))
        check({"data": values}, read_file(tmp_path / "values.safetensors")[0], "the command")
        check({"data": values}, {"data": client.dequantize(remote, usage=usage)}, "the server")


def test_a_gemm_of_integers(client, tmp_path):
    a, b = (qg.quantize(qg.generate("normal", (64, 64), "bf16", seed=seed), "int8", role=role)
            for seed, role in ((1, "input"), (2, "weight")))
    path = tmp_path / "d.safetensors"
    for seed, role in ((1, "input"), (2, "weight")):
        command("quantize", generated(seed, (64, 64)), "--recipe", "int8", "--role", role, "-o", f"{tmp_path / role}.safetensors")
    operands = []
    for side, role in (("a", "input"), ("b", "weight")):
        file = f"{tmp_path / role}.safetensors"
        operands += [f"--{side}", f"{file}:rowwise_data", f"--{side}-scale-inv", f"{file}:rowwise_scale_inv"]
    command("gemm", *operands, "--arithmetic", "int32", "-o", str(path))
    d = qg.gemm(a, b, arithmetic="int32").d
    check({"d": d}, read_file(path)[0], "the command")
    check({"d": d}, {"d": client.gemm(a, b, arithmetic="int32").d}, "the server")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.partition(":")[0])
def test_what_an_arithmetic_does_not_take(recipe, client):
    for arithmetic in qg.info().arithmetics:
        if arithmetic.name in RECIPES[recipe] or arithmetic.name == "cublaslt":
            continue
        told = []
        for c in (qg, client):
            with pytest.raises(qg.Error) as raised:
                by_python(c, Run("linear", recipe, "none", arithmetic.name))
            told.append((type(raised.value), raised.value.field, raised.value.value, raised.value.rule))
        assert told[0] == told[1] and told[0][3]


def test_the_table_is_whole():
    """What this build has, and nothing else, is in the table."""
    info = qg.info()
    met = {(name, run[i]) for run in RUNS for name, i in (("layer", 0), ("override", 2), ("arithmetic", 3))}
    recipes = {recipe.partition(":")[0] for recipe in (*RECIPES, *CODES)}
    assert recipes == {recipe.name for recipe in info.recipes}
    assert {(recipe, role) for recipe, role in CASTS if recipe in RECIPES} == {
        (recipe, role) for recipe in RECIPES if recipe != "bf16" for role in ("input", "weight", "grad_output")}
    assert {layer for name, layer in met if name == "layer"} == set(info.capabilities.layers)
    arithmetics = {arithmetic.name for arithmetic in info.arithmetics if not arithmetic.is_hardware}
    assert {arithmetic for name, arithmetic in met if name == "arithmetic"} - {"auto"} == arithmetics - {"int32"}
    for recipe, taken in RECIPES.items():
        runs = [run for run in RUNS if run.recipe == recipe]
        assert {run.layer for run in runs} == set(LAYERS)
        assert {run.override for run in runs} == set(overrides_of(recipe))
        assert {run.arithmetic for run in runs if run.dtype == "bf16"} == {"auto", *taken}


def test_one_byte_is_seen(tmp_path):
    """The comparison of this file fails where one byte of one output differs, whichever it is."""
    run = RUNS[0]
    outputs, written = by_python(qg, run), by_command(run, tmp_path / "out.safetensors")
    check(outputs, written, "the command")
    for name, tensor in written.items():
        for place in (0, tensor.nbytes // 2, tensor.nbytes - 1):
            changed = tensor.copy()
            changed.view(np.uint8).reshape(-1)[place] ^= 1
            with pytest.raises(AssertionError):
                check(outputs, {**written, name: changed}, "the command")
