"""Tests of the Python package: PYTHONPATH has the package, unless it is installed; QUANTGATE_PROGRAM is the command that it is
compared with. Files that need what is not there are left out, and said."""

import importlib.util
import os

LIBRARIES = {"torch_test.py": "torch", "capture_test.py": "torch", "jax_test.py": "jax", "remote_test.py": "grpc",
             "parity_test.py": "grpc"}


def _missing(name):
    """What a file of tests needs and does not have; empty where it has all."""
    library = LIBRARIES.get(name)
    if library is not None and importlib.util.find_spec(library) is None:
        return f"{library} is not installed"
    if name == "wheel_test.py" and "QUANTGATE_WHEEL" not in os.environ:
        return "QUANTGATE_WHEEL names no wheel"
    return ""


def pytest_ignore_collect(collection_path):
    return True if _missing(collection_path.name) else None


def pytest_terminal_summary(terminalreporter):
    for name in [*LIBRARIES, "wheel_test.py"]:
        if _missing(name):
            terminalreporter.write_line(f"left out: {name}, since {_missing(name)}")
