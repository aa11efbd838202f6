"""Two versions of a library: dumps of the same step, compared tensor by tensor, and what changed between them.

    python examples/two_versions.py OLD.npz NEW.npz
    python examples/two_versions.py                  # makes two dumps of a small layer first
"""

import pathlib
import sys
import tempfile

import numpy as np

import quantgate as qg


def dump(path, gradient_scale):
    """A linear of 64 x 128 in fp32, forward and backward, as some library would dump it."""
    x, w, dy = (qg.generate("normal", shape, seed=seed) for seed, shape in ((1, (64, 128)), (2, (32, 128)), (3, (64, 32))))
    y, dx, dw = qg.gemm(x, w).d, qg.gemm(dy, w, layout="nn").d, qg.gemm(dy, x, layout="nt").d
    np.savez(path, y=y, dx=dx, dw=dw * np.float32(gradient_scale))


def compare(old, new):
    with np.load(old) as before, np.load(new) as after:
        return qg.diff(dict(after), dict(before), names=(pathlib.Path(new).stem, pathlib.Path(old).stem))


if len(sys.argv) == 3:
    report = compare(*sys.argv[1:])
else:
    with tempfile.TemporaryDirectory() as folder:
        old, new = pathlib.Path(folder, "v1.npz"), pathlib.Path(folder, "v2.npz")
        dump(old, 1)
        dump(new, 1 / 64)  # The new version divides the weight's gradient by the number of rows.
        report = compare(old, new)
print(report)
print("unchanged:", ", ".join(c.tensor for c in report.comparisons if c.passes) or "nothing")
print("changed:", ", ".join(c.tensor for c in report.comparisons if not c.passes) or "nothing")
if report.diagnosis is not None:
    print("what changed:", report.diagnosis.sentence)
