"""Reports and outputs are those of the `quantgate` command (QUANTGATE_PROGRAM) for the same operands."""

import json
import os
import subprocess

import pytest

import quantgate as qg
from tensor_files import ROOT, bits, read_file

PROGRAM = os.environ.get("QUANTGATE_PROGRAM", "quantgate")
# What differs from one run to the next, or is the command itself.
OF_THE_RUN = {"command", "reproduce", "run_id", "seconds", "stages", "seconds_bits", "name", "source", "environment"}


def command(*arguments):
    result = subprocess.run([PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stderr
    return result.stdout


def without_the_run(value):
    if isinstance(value, dict):
        return {key: without_the_run(entry) for key, entry in value.items() if key not in OF_THE_RUN}
    if isinstance(value, list):
        return [without_the_run(entry) for entry in value]
    return value


X, W, DY = "gen:normal,seed=1,shape=64x96,dtype=bf16", "gen:normal,seed=2,shape=32x96,dtype=bf16", \
    "gen:normal,seed=3,shape=64x32,dtype=bf16"


@pytest.fixture(scope="module")
def operands():
    return dict(x=qg.generate("normal", (64, 96), "bf16", seed=1), weight=qg.generate("normal", (32, 96), "bf16", seed=2),
                grad_output=qg.generate("normal", (64, 32), "bf16", seed=3))


@pytest.mark.parametrize("recipe", ["bf16", "fp8_current", "mxfp8"])
def test_a_run_is_that_of_the_command(recipe, operands, tmp_path):
    out = tmp_path / "out.safetensors"
    text = command("run", "--input", X, "--weight", W, "--grad-output", DY, "--recipe", recipe, "--require", "bound",
                   "--format", "json", "-o", str(out))
    report = qg.run(recipe=recipe, require="bound", **operands)
    expected = without_the_run(json.loads(text))
    actual = without_the_run(report.to_dict())
    # How the operands came is told of the request: generated there, uploaded here.
    for document in (expected, actual):
        del document["run"]["request"]["step"]
    assert actual["run"]["variants"] == expected["run"]["variants"]
    assert actual["verdict"] == expected["verdict"] and report.passed
    assert set(actual) == set(expected)
    for name, tensor in read_file(out)[0].items():
        assert bits(tensor) == bits(report.outputs[name]), name


def test_codes_are_those_of_the_command(operands, tmp_path):
    for recipe in ("nvfp4", "mxfp8", "fp8_block", "int4:group=32"):
        out = tmp_path / "codes.safetensors"
        columnwise = not recipe.startswith("int4")
        command("quantize", X, "--recipe", recipe, "--role", "weight", "--usage",
                "rowwise,columnwise" if columnwise else "rowwise", "-o", str(out))
        q = qg.quantize(operands["x"], recipe, role="weight", columnwise=columnwise)
        expected = read_file(out)[0]
        assert set(expected) == set(q.tensors)
        for name, tensor in expected.items():
            assert bits(tensor) == bits(q.tensors[name]), (recipe, name)
