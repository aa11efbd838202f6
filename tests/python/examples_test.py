"""The programs of examples/ and the blocks of Python in README.md and docs/python.md do what they say."""

import ast
import contextlib
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg
from server import serving
from tensor_files import ROOT

EXAMPLES = ROOT / "examples"
HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("safetensors") is not None


def run(*arguments, folder=ROOT):
    result = subprocess.run([sys.executable, "-B", *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_every_example_is_run_here():
    names = set(re.findall(r"EXAMPLES / \"(\w+\.py)\"", pathlib.Path(__file__).read_text()))
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py"} == names


def mxfp8(x, exponent_of):
    """Codes by the rule that gives a block's exponent from its amax, by numpy and ml_dtypes."""
    blocks = x.astype(np.float64).reshape(x.shape[0], -1, 32)
    exponent = exponent_of(np.abs(blocks).max(axis=-1, keepdims=True))
    return np.clip(blocks / 2.0**exponent, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).reshape(x.shape)


def test_my_quantizer():
    output = run(EXAMPLES / "my_quantizer.py")
    x = qg.generate("normal", (256, 512), seed=1)
    floor, ceil = mxfp8(x, lambda amax: np.floor(np.log2(amax)) - 8), mxfp8(x, lambda amax: np.ceil(np.log2(amax / 448)))
    differ = floor.view(np.uint8) != ceil.view(np.uint8)
    row, column = np.argwhere(differ)[0]
    assert output.count("PASS") == output.count("FAIL") == 1
    assert f"{differ.sum():,} in rowwise_data" in output
    assert (f"first wrong element: x[{row}, {column}] = {x[row, column]} is {float(floor[row, column])}, "
            f"expected {float(ceil[row, column])}\n") in output
    assert "these codes: floor: 2^(floor(log2 amax) - emax)" in output and "nearest_even, saturate\n" in output


def test_my_gemm():
    output = run(EXAMPLES / "my_gemm.py")
    a = qg.generate("normal", (64, 264), "bf16", seed=1).astype(np.float64)
    b = qg.generate("normal", (48, 264), "bf16", seed=2).astype(np.float64)
    assert "PASS  required: 0 differing elements" in output
    found = re.search(r"differs in 3,072 of 3,072 elements, first at \(0, 0\): (\S+) .* against (\S+) ", output)
    # Of 256 and 264 exact products summed in fp32: within gamma_264 of the sum of magnitudes.
    bound = 264 * 2.0**-24 / (1 - 264 * 2.0**-24) * np.abs(a[0] * b[0]).sum()
    assert abs(float(found[1]) - a[0, :256] @ b[0, :256]) <= bound
    assert abs(float(found[2]) - a[0] @ b[0]) <= bound
    assert "cause: the tail of K is missing: the last 8 elements" in output  # 264 = 8 * 32 + 8.


def test_two_versions(tmp_path):
    output = run(EXAMPLES / "two_versions.py")
    assert "unchanged: y, dx\n" in output and "changed: dw\n" in output
    assert "what changed: dw is 2^-6 times the expected\n" in output
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(old, weight=weight, bias=weight[0])
    np.savez(new, weight=weight.T.copy(), bias=weight[0])
    output = run(EXAMPLES / "two_versions.py", old, new)
    assert "unchanged: bias\n" in output and "what changed: weight" in output and "transpose" in output


def test_my_layer():
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "my_layer_test.py")
    assert "3 passed" in output


def test_capture_of_torch():
    output = run(EXAMPLES / "capture_torch.py")
    if importlib.util.find_spec("torch") is None:
        assert output == "torch is not installed: left out\n"
    else:
        assert "fc1" in output and "fc2" not in output and output.endswith("within its bound\n")


def test_without_torch_the_capture_is_left_out(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('hidden')\n")
    code = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path({str(EXAMPLES / 'capture_torch.py')!r})"
    assert run("-c", code) == "torch is not installed: left out\n"


class Block:
    """A block of Python in a document, and the block without a language behind it, which is what it prints."""

    def __init__(self, document, line, code, output):
        self.document, self.line, self.code, self.output = document, line, code, output

    def __str__(self):
        return f"{self.document}:{self.line}"


def blocks():
    found = []
    for document in ("README.md", "docs/python.md"):
        text = (ROOT / document).read_text()
        for match in re.finditer(r"(?ms)^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", text):
            found.append(Block(document, text.count("\n", 0, match.start()) + 1, match[1], match[2] or ""))
    return found


BLOCKS = blocks()
SERVER_OF_DOCUMENTS = "gpu-host:7470"
# What people save of their own training is there as a small linear's.
PRELUDE = """
import torch
x, weight, grad_output = torch.ones(32, 64), torch.ones(32, 64), torch.ones(32, 32)
y, dx, dw = x @ weight.T, grad_output @ weight, grad_output.T @ x
codes, scale_inv = x.to(torch.float8_e4m3fn), torch.ones(1)
"""


def documented_verbs():
    text = (ROOT / "docs/python.md").read_text()
    table = text[text.index("| verb | gives |"):text.index("**Recipes** are text")]
    return re.findall(r"`(\w+)\((.*?)\)`(?=[,| ])", table)


def test_documented_signatures_are_those_of_the_verbs():
    """Names and defaults; where "..." or an optional argument stands for itself, the verb may have more."""
    verbs = documented_verbs()
    functions = {name for name in qg.__all__ if name.islower()}
    # Sections of their own have what is no verb.
    assert functions - {"recipe", "capture", "connect"} <= {name for name, _ in verbs} <= functions
    for name, arguments in verbs:
        parameters = inspect.signature(getattr(qg, name)).parameters
        call = ast.parse(f"def verb({arguments.replace(', ...', '')}): pass").body[0].args
        documented = [argument.arg for argument in call.posonlyargs + call.args + call.kwonlyargs]
        defaults = dict(zip(reversed([argument.arg for argument in call.args]), reversed(call.defaults)))
        defaults.update({argument.arg: value for argument, value in zip(call.kwonlyargs, call.kw_defaults) if value is not None})
        for argument in documented:
            assert argument in parameters, f"{name} has no {argument}"
            if argument in defaults:
                assert parameters[argument].default == ast.literal_eval(defaults[argument]), f"{name}: {argument}"
        if "..." not in arguments and name != "explain":
            assert documented == list(parameters), name


def test_documents_have_blocks():
    assert {block.document for block in BLOCKS} == {"README.md", "docs/python.md"} and len(BLOCKS) >= 6
    assert sum(bool(block.output) for block in BLOCKS) >= 2


@pytest.mark.parametrize("block", [block for block in BLOCKS if HAS_TORCH or "torch" not in block.code], ids=str)
def test_blocks_of_documents_run(block, tmp_path):
    """In a folder of their own, each as its document has it. Of what one prints, "..." stands for lines left out."""
    program = tmp_path / "block.py"
    os.symlink(ROOT / "data", tmp_path / "data")
    with serving(tmp_path / "server") if SERVER_OF_DOCUMENTS in block.code else contextlib.nullcontext() as server:
        code = block.code.replace(SERVER_OF_DOCUMENTS, server.address) if server else block.code
        program.write_text((PRELUDE if "safetensors" in code else "") + code)
        printed = run(program, folder=tmp_path)
    at = 0
    for line in filter(lambda line: line.strip() != "...", block.output.splitlines(keepends=True)):
        assert line in printed[at:], f"{block}: {line!r} is not in\n{printed}"
        at = printed.index(line, at) + len(line)
