"""What ``quantgate`` exports: read where a name is first asked for, so that its pytest plugin costs nothing by itself."""

from __future__ import annotations

from ._capture import Capture as capture
from ._client import Client, GemmResult, Local
from ._errors import (Cancelled, DeadlineExceeded, Error, FailedPrecondition, InternalError, InvalidArgument, NotFound,
                      PermissionDenied, ResourceExhausted, Unavailable, Unimplemented)
from ._quantized import Quantized
from ._recipes import Recipe, recipe
from ._remote import Remote, connect
from ._reports import DiffReport, Explanation, Info, Record, Report, RunReport, ScenarioReport, StepReport, TraceReport
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
play = _local.play
info = _local.info
scenarios = _local.scenarios
run_scenarios = _local.run_scenarios

__all__ = [
    "Cancelled", "Client", "DeadlineExceeded", "DiffReport", "Error", "Explanation", "FailedPrecondition", "GemmResult",
    "Info", "InternalError", "InvalidArgument", "Local", "NotFound", "PermissionDenied", "Quantized", "Recipe", "Record",
    "Remote", "Report", "ResourceExhausted", "RunReport", "ScenarioReport", "Session", "StepReport", "TraceReport", "Unavailable",
    "Unimplemented", "capture", "compare", "connect", "dequantize", "diff", "explain", "gemm", "generate", "info", "play", "quantize", "recipe",
    "restore", "run", "run_scenarios", "scenarios", "session", "verify",
]
