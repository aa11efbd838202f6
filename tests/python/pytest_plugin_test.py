"""The pytest plugin, in processes of pytest of its own: as it is installed, by the entry point that pyproject.toml names."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import quantgate
from tensor_files import ROOT

PACKAGE = pathlib.Path(quantgate.__file__).parent.parent
HAS_XDIST = importlib.util.find_spec("xdist") is not None

RIGHT = """
import ml_dtypes, numpy as np, pytest

def codes_of(x):
    blocks = x.astype(np.float32).reshape(x.shape[0], -1, 32)
    exponent = np.ceil(np.log2(np.abs(blocks).max(axis=2).astype(np.float64) / 448))
    codes = np.clip(blocks * np.exp2(-exponent)[:, :, None].astype(np.float32), -448, 448)
    return codes.astype(ml_dtypes.float8_e4m3fn).reshape(x.shape), (exponent + 127).astype(np.uint8)

x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
a = np.eye(8, dtype=np.float32)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that makes the package known to importlib.metadata, with the entry points of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    section = re.search(r"\[project\.entry-points\.pytest11\]\n(.*?)\n\n", text, re.DOTALL).group(1).replace('"', "")
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "quantgate-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quantgate\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{section}\n")
    return folder


@pytest.fixture
def run(installed, tmp_path):
    def run_pytest(source, *arguments):
        for name, content in (source if isinstance(source, dict) else {"test_it.py": source}).items():
            (tmp_path / name).write_text(content)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(installed)])}
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_CURRENT_TEST"):
            environment.pop(name, None)
        return subprocess.run([sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=tmp_path,
                              env=environment, capture_output=True, text=True, timeout=240)
    return run_pytest


MIXED = RIGHT + """
def test_codes(quantgate):
    codes, scales = codes_of(x)
    quantgate.assert_quantized(codes, scales, x, recipe="mxfp8")
    quantgate.assert_same_bits(codes, codes)

def test_layer(quantgate):
    quantgate.assert_linear(a, a, a, recipe="bf16")

def test_nothing():
    pass

def test_wrong(quantgate):
    codes, scales = codes_of(x)
    codes.view(np.uint8)[63, 63] ^= 1
    quantgate.assert_quantized(codes, scales, x, recipe="mxfp8")

def test_expected(quantgate):
    with pytest.raises(AssertionError):
        quantgate.assert_same_bits(a, 2 * a)

@pytest.mark.xfail(strict=True)
def test_known(quantgate):
    quantgate.assert_same_bits(a, 3 * a)
"""


def test_the_fixture_and_the_summary(run):
    result = run(MIXED, "-q")
    assert result.returncode == 1, result.stdout
    lines = result.stdout.splitlines()
    assert "quantgate: 5 assertions by bits, 1 by bound, 1 failed" in lines
    # pytest shows the line of the test, and none of the package's.
    assert '>       quantgate.assert_quantized(codes, scales, x, recipe="mxfp8")' in lines
    assert not re.search(r"^\S*(_assertions|testing)\.py:\d+", result.stdout, re.MULTILINE)
    assert re.search(r"^E +quantgate\.testing\.Mismatch: cause unknown: rowwise_data differs in 1 of 4,096 elements, first at "
                     r"\(63, 63\)$", result.stdout, re.MULTILINE)


def test_no_assertions_no_summary(run):
    result = run("def test_nothing():\n    pass\n", "-q")
    assert result.returncode == 0 and "quantgate:" not in result.stdout


def test_a_page_for_each_failed_assertion(run, tmp_path):
    source = MIXED + """
@pytest.mark.parametrize("factor", [2, 3])
def test_several(quantgate, factor):
    try:
        quantgate.assert_same_bits(a, factor * a)
    except AssertionError as error:
        raise RuntimeError("behind another error") from error

@pytest.fixture
def broken(quantgate):
    yield
    quantgate.assert_same_bits(a, 4 * a)

def test_at_both_ends(quantgate, broken):
    quantgate.assert_same_bits(a, 5 * a)
"""
    result = run(source, "-q", "--quantgate-report", "pages", "--junit-xml", "junit.xml")
    pages = sorted((tmp_path / "pages").iterdir())
    assert len(pages) == 5 == len(re.findall(r"^report: ", result.stdout, re.MULTILINE))
    assert "5 failed" in result.stdout
    cases = xml.etree.ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    linked = {}
    for case in cases:
        for entry in case.iter("property"):
            assert entry.get("name") == "quantgate_report"
            linked.setdefault(case.get("name"), []).append(entry.get("value"))
    assert {name: len(set(paths)) for name, paths in linked.items()} == {
        "test_wrong": 1, "test_several[2]": 1, "test_several[3]": 1, "test_at_both_ends": 2}
    assert sorted({path for paths in linked.values() for path in paths}) == [str(page) for page in pages]
    page = pathlib.Path(linked["test_wrong"][0]).read_text()
    assert "cause unknown: rowwise_data differs in 1 of 4,096 elements, first at (63, 63)" in page
    assert page.lower().startswith("<!doctype html>") and "<table" in page
    assert all(path in result.stdout for path in map(str, pages))


def test_a_folder_that_cannot_be(run, tmp_path):
    (tmp_path / "taken").write_text("")
    result = run("def test_nothing():\n    pass\n", "--quantgate-report", "taken")
    assert result.returncode == 4 and "--quantgate-report is taken: " in result.stderr


@pytest.mark.skipif(not HAS_XDIST, reason="pytest-xdist is not installed")
def test_workers_tell_the_controller(run, tmp_path):
    many = RIGHT + """
@pytest.mark.parametrize("i", range(12))
def test_many(quantgate, i):
    quantgate.assert_same_bits(a, a if i % 3 else 2 * a)
    quantgate.assert_linear(a, a, a, recipe="bf16")
"""
    files = {"test_one.py": many, "test_two.py": many}
    (tmp_path / "sub").mkdir()
    files["sub/test_one.py"] = many
    files["sub/__init__.py"] = files["__init__.py"] = ""
    result = run(files, "-q", "-n", "2", "--quantgate-report", "pages", "--junit-xml", "junit.xml")
    assert "quantgate: 36 assertions by bits, 24 by bound, 12 failed" in result.stdout, result.stdout[-3000:] + result.stderr
    pages = {str(page) for page in (tmp_path / "pages").iterdir()}
    root = xml.etree.ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert {entry.get("value") for entry in root.iter("property")} == pages and len(pages) == 12
    # Every test on each of the workers: their pages must not be each other's.
    result = run(files, "-q", "-n", "2", "--dist", "each", "--quantgate-report", "both")
    assert "quantgate: 72 assertions by bits, 48 by bound, 24 failed" in result.stdout, result.stdout[-3000:]
    assert len(list((tmp_path / "both").iterdir())) == 24


@pytest.mark.skipif(not HAS_XDIST, reason="pytest-xdist is not installed")
def test_a_worker_that_dies_takes_no_count_with_it(run):
    source = RIGHT + """
import os

@pytest.mark.parametrize("i", range(6))
def test_many(quantgate, i):
    quantgate.assert_same_bits(a, a)
    if i == 5:
        os._exit(1)
"""
    result = run(source, "-q", "-n", "1", "--max-worker-restart", "0")
    assert "quantgate: 5 assertions by bits, 0 failed" in result.stdout, result.stdout[-2000:]


def test_nothing_is_imported_before_a_test_needs_it(run):
    source = """
import sys
from quantgate.testing import backward_overrides, formats, recipes

@recipes("mxfp8", "fp8_current:power_2_scales=true", {"name": "nvfp4", "knobs": {"disable_rht": True}},
         {"name": "custom", "knobs": {"rules": [{"quantizer": "mxfp8"}]}})
@formats("e4m3")
@backward_overrides("none", "dequantized")
def test_heavy(recipe, fp8_format, backward_override):
    assert not {"numpy", "ml_dtypes", "quantgate._engine", "torch", "jax"} & set(sys.modules)

def test_engine(quantgate):
    import numpy as np
    quantgate.assert_same_bits(np.ones(3), np.ones(3))
    assert "quantgate._engine" in sys.modules
"""
    result = run(source, "-v")
    assert result.returncode == 0, result.stdout
    for name in ("mxfp8", "fp8_current:power_2_scales=true", "nvfp4:disable_rht=true"):
        assert f"test_heavy[none-e4m3-{name}] PASSED" in result.stdout, result.stdout
    assert re.search(r"test_heavy\[dequantized-e4m3-custom-[0-9a-f]{8}\] PASSED", result.stdout)


def test_parameters_are_all_of_them(run):
    source = """
from quantgate.testing import backward_overrides, formats, recipes

@recipes()
def test_recipes(recipe):
    pass

@formats(argument="format")
@backward_overrides(argument="mode")
def test_modes(format, mode):
    pass
"""
    result = run(source, "--collect-only", "-q")
    ids = re.findall(r"test_recipes\[(\w+)\]", result.stdout)
    assert set(ids) >= {"bf16", "fp8_current", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4"} and "int8" not in ids
    assert len(re.findall(r"test_modes\[(?:none|high_precision|dequantized)-(?:e4m3|hybrid|e5m2)\]", result.stdout)) == 9


def test_a_server_computes(run):
    # The server of the option is asked: one that is not there is an error of the test, and nothing passes instead.
    result = run(RIGHT + """
def test_server(quantgate):
    quantgate.assert_linear(a, a, a, recipe="bf16")

def test_client(quantgate):
    import quantgate as qg
    quantgate.assert_linear(a, a, a, recipe="bf16", client=qg.Local())
""", "-q", "--quantgate-server", "127.0.0.1:1")
    assert result.returncode == 1 and "1 failed, 1 passed" in result.stdout, result.stdout
    assert "Mismatch" not in result.stdout


def test_the_client_of_the_option(run):
    result = run({"conftest.py": """
import quantgate

class Counting(quantgate.Local):
    calls = 0
    def verify(self, *arguments, **keywords):
        Counting.calls += 1
        return super().verify(*arguments, **keywords)
    def close(self):
        print(f"closed after {Counting.calls} calls")

def connect(address):
    assert address == "host:1"
    return Counting()

quantgate.connect = connect
""", "test_it.py": RIGHT + """
def test_server(quantgate):
    quantgate.assert_linear(a, a, a, recipe="bf16")
    quantgate.assert_linear(a, a, a, recipe="bf16")
    assert quantgate.default_client() is quantgate.default_client()
"""}, "-q", "-s", "--quantgate-server", "host:1")
    assert result.returncode == 0 and "closed after 2 calls" in result.stdout, result.stdout


def test_collecting_costs_next_to_nothing(run, tmp_path):
    """What the plugin adds to the imports of a run that only collects: its own modules, and none of numpy or the engine."""
    (tmp_path / "empty.py").write_text("def test_nothing():\n    pass\n")
    result = run({"test_it.py": "def test_nothing():\n    pass\n", "conftest.py": """
import sys

def pytest_collection_finish(session):
    print("loaded", sorted(name for name in sys.modules if name.partition(".")[0] in ("quantgate", "numpy", "ml_dtypes")))
"""}, "--collect-only", "-q", "-s")
    assert "loaded ['quantgate', 'quantgate._pytest']" in result.stdout, result.stdout


# --- The page.

def blocks_of_the_page():
    text = (ROOT / "docs/pytest.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    named = {block.splitlines()[0].lstrip("# "): block for block in blocks}
    return blocks[:2], {name: named[name] for name in ("test_low_precision.py", "my_kernels.py")}


def test_the_examples_of_the_page_are_green(run):
    (first, second), files = blocks_of_the_page()
    assert len(first.strip().splitlines()) <= 10 and len(second.strip().splitlines()) <= 10
    result = run({**files, "test_first.py": first}, "-q")
    assert result.returncode == 0, result.stdout
    assert "quantgate: 7 assertions by bits, 4 by bound, 0 failed" in result.stdout


@pytest.mark.parametrize("wrong", ["", "2 * "])
def test_its_script_of_a_layer(tmp_path, wrong):
    (_, script), files = blocks_of_the_page()
    (tmp_path / "my_kernels.py").write_text(files["my_kernels.py"].replace("dy @ weight", f"{wrong}dy @ weight"))
    (tmp_path / "script.py").write_text(script)
    result = subprocess.run([sys.executable, "-B", "script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                            capture_output=True, text=True)
    if wrong:
        assert result.returncode == 1 and "Mismatch: dx is twice the expected" in result.stderr
    else:
        assert result.returncode == 0 and result.stdout == ""


@pytest.mark.parametrize("right,wrong,tests,cause", [
    ("(exponent + 127)", "(exponent + 126)", ["test_mxfp8", "test_mxfp8_gemm"], "scales are half or twice what they should be: "),
    ("codes[:, 0::2] | codes[:, 1::2] << 4", "codes[:, 1::2] | codes[:, 0::2] << 4", ["test_nvfp4"],
     "the two codes of each byte are swapped: "),
    ("values(b, b_scale_inv).T).astype(F32)", "values(b, b_scale_inv).T).astype(F32) * 2", ["test_mxfp8_gemm"], ""),
    ("dy.T @ x", "2 * dy.T @ x", ["test_linear"], "dw is twice the expected"),
])
def test_mistakes_of_its_kernels_are_red(run, right, wrong, tests, cause):
    _, files = blocks_of_the_page()
    broken = files["my_kernels.py"].replace(right, wrong)
    assert broken != files["my_kernels.py"]
    result = run({**files, "my_kernels.py": broken}, "-q")
    failed = {name for name in re.findall(r"FAILED test_low_precision\.py::(\w+)", result.stdout)}
    # A kernel whose scales are twice too small multiplies them as it made them.
    assert failed == set(tests) - ({"test_mxfp8_gemm"} if "exponent" in right else set()), result.stdout
    assert f"Mismatch: {cause}" in result.stdout
