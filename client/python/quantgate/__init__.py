"""QuantGate: are these the numbers that low-precision training arithmetic gives, down to the bit?

The verbs compute in this process; ``Local(device="cuda")`` on a GPU of this machine. docs/python.md describes them. What is
exported is in ``_package.py``, which is imported where the first name is asked for: pytest imports this package for its plugin
in every run.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from ._package import *  # noqa: F403

_SUBMODULES = ("testing",)

# Held while the package is read. A fork waits for that: an import that another thread had begun would never end in the child.
_reading = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release)


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from importlib.metadata import version

        return version("quantgate")
    if name in _SUBMODULES:
        with _reading:
            return importlib.import_module(f"{__name__}.{name}")
    # Not "from . import": that asks for the name here again. Dunders are asked for by inspection alone.
    if name == "__all__" or not name.startswith("__"):
        with _reading:
            package = importlib.import_module(f"{__name__}._package")
        if name in ("__all__", "_local") or name in package.__all__:
            value = getattr(package, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module quantgate has no {name}")


def __dir__() -> List[str]:
    return sorted([*__getattr__("__all__"), *_SUBMODULES, "__version__"])
