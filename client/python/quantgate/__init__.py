"""QuantGate: are these the numbers that low-precision training arithmetic gives, down to the bit?

The verbs below compute in this process; ``Local(device="cuda")`` on a GPU of this machine. docs/python.md describes them.
"""

from __future__ import annotations

from typing import Any, List

from ._client import Client, GemmResult, Local
from ._errors import (Cancelled, DeadlineExceeded, Error, FailedPrecondition, InternalError, InvalidArgument, NotFound,
                      PermissionDenied, ResourceExhausted, Unavailable, Unimplemented)
from ._quantized import Quantized
from ._recipes import Recipe, recipe
from ._reports import DiffReport, Explanation, Info, Record, Report, RunReport, ScenarioReport, StepReport
from ._remote import Remote, connect
from ._sessions import Session

_local = Local()

quantize = _local.quantize
dequantize = _local.dequantize
gemm = _local.gemm
generate = _local.generate
run = _local.run
compare = _local.compare
verify = _local.verify
diff = _local.diff
explain = _local.explain
session = _local.session
restore = _local.restore
info = _local.info
scenarios = _local.scenarios
run_scenarios = _local.run_scenarios

__all__ = [
    "Cancelled", "Client", "DeadlineExceeded", "DiffReport", "Error", "Explanation", "FailedPrecondition", "GemmResult",
    "Info", "InternalError", "InvalidArgument", "Local", "NotFound", "PermissionDenied", "Quantized", "Recipe", "Record",
    "Remote", "Report", "ResourceExhausted", "RunReport", "ScenarioReport", "Session", "StepReport", "Unavailable",
    "Unimplemented", "compare", "connect", "dequantize", "diff", "explain", "gemm", "generate", "info", "quantize", "recipe", "restore", "run",
    "run_scenarios", "scenarios", "session", "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("quantgate")
    raise AttributeError(f"module quantgate has no {name}")


def __dir__() -> List[str]:
    return sorted([*__all__, "__version__"])
