"""The wheel itself (QUANTGATE_WHEEL), which is what is installed here, and the extension beside other libraries' protobuf."""

import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

WHEEL = pathlib.Path(os.environ["QUANTGATE_WHEEL"])
LIBRARIES = [name for name in ("google.protobuf", "grpc", "jax", "torch") if importlib.util.find_spec(name.split(".")[0]) is not None]
USES = {
    "google.protobuf": "from google.protobuf import struct_pb2; s = struct_pb2.Struct(); s['a'] = 1.5; "
                       "assert struct_pb2.Struct.FromString(s.SerializeToString())['a'] == 1.5",
    "grpc": "import grpc; grpc.insecure_channel('127.0.0.1:1').close()",
    "jax": "import jax.numpy; assert float(jax.numpy.ones(3).sum()) == 3",
    "torch": "import torch; assert float(torch.ones(3).sum()) == 3",
}
OURS = "import quantgate as qg; assert qg.run(qg.generate('normal', (32, 32), 'bf16'), qg.generate('normal', (32, 32), 'bf16'), " \
       "recipe='mxfp8', require='bound').passed"


def members():
    with zipfile.ZipFile(WHEEL) as wheel:
        return wheel.namelist()


def test_it_is_small_and_for_every_python():
    assert WHEEL.stat().st_size <= 25 << 20
    tags = re.fullmatch(r"quantgate-[\d.]+-cp310-abi3-(.*)\.whl", WHEEL.name)[1]
    versions = re.findall(r"manylinux_2_(\d+)_x86_64", tags)
    assert versions and min(map(int, versions)) <= 36, tags


def test_it_is_what_is_imported_here():
    code = "import quantgate._engine as e; print(e.__file__)"
    folder = pathlib.Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()).parent
    with zipfile.ZipFile(WHEEL) as wheel:
        for name in wheel.namelist():
            if name.startswith("quantgate/") and not name.endswith("/"):
                assert (folder.parent / name).read_bytes() == wheel.read(name), name
    assert "quantgate/py.typed" in members() and "quantgate/_engine.pyi" in members()


def test_the_extension_exports_its_entry_alone(tmp_path):
    with zipfile.ZipFile(WHEEL) as wheel:
        path = wheel.extract("quantgate/_engine.abi3.so", tmp_path)
    # An address, a letter and a name; gcc's own marks of a program's ends are no functions.
    lines = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["PyInit__engine"]
    needed = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in needed and not re.search(r"NEEDED\s+libgrpc", needed)


@pytest.mark.parametrize("first,library", itertools.product(("ours", "theirs"), LIBRARIES))
def test_other_libraries_live_beside_it(first, library):
    steps = [OURS, USES[library]] if first == "ours" else [USES[library], OURS]
    result = subprocess.run([sys.executable, "-c", "\n".join([*steps, steps[0]])], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_all_of_them_at_once():
    if len(LIBRARIES) < 2:
        pytest.fail("nothing to live beside: the tests' environment has none of the libraries")
    result = subprocess.run([sys.executable, "-c", "\n".join([*(USES[name] for name in LIBRARIES), OURS])], capture_output=True,
                            text=True, timeout=300)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("library", ["torch", "jax", "grpc", "google.protobuf", "pytest", "tqdm"])
def test_importing_it_imports_no_framework(library):
    code = f"import sys, quantgate as qg; qg.run; qg.testing; assert {library!r} not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
