"""What a call of the package costs beyond the engine, as ratios and differences of one run: medians of alternated pairs.

    python speed_bench.py [RECIPE...]

No test: a machine with other work gives other numbers, which is why each is taken beside what it is compared with.
"""

import statistics
import subprocess
import sys
import time
from typing import Callable, List, Tuple

import numpy as np

import quantgate as qg
from quantgate import _recipes, _tensors

PAIRS = 41
SMALL_PAIRS = 4001


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def medians(first: Callable[[], float], second: Callable[[], float], pairs: int) -> Tuple[float, float, float]:
    """The medians of both, and of their ratios pair by pair; the order changes from pair to pair."""
    times: List[Tuple[float, float]] = []
    for pair in range(pairs):
        if pair % 2:
            b = second()
            a = first()
        else:
            a = first()
            b = second()
        times.append((a, b))
    return (statistics.median(a for a, _ in times), statistics.median(b for _, b in times),
            statistics.median(a / b for a, b in times))


def engine_seconds(x: np.ndarray, recipe: str) -> float:
    """The engine's own time, by its stopwatch, in memory of its own."""
    return _client_engine().quantize(_tensors.read("x", x).tensor, _recipes.read_recipe("recipe", recipe).parsed, "input", True,
                                     False, 0, None, None, "logical", None, False).seconds


def _client_engine():
    return qg.quantize.__self__._local


def say(what: str, wall: float, engine: float) -> None:
    print(f"{what:23} {wall * 1e6:7.1f} us, the engine {engine * 1e6:7.1f} us, beyond it {(wall - engine) * 1e6:6.1f} us")


def small_calls() -> None:
    x = qg.generate("normal", (8, 32), "f32", seed=1)  # 1 KiB.
    q = qg.quantize(x, "mxfp8")
    wall, engine, _ = medians(lambda: seconds_of(lambda: qg.quantize(x, "mxfp8")), lambda: engine_seconds(x, "mxfp8"),
                              SMALL_PAIRS)
    say("quantize of 1 KiB", wall, engine)
    wall, engine, _ = medians(lambda: seconds_of(lambda: qg.gemm(x, x)), lambda: qg.gemm(x, x).seconds, SMALL_PAIRS)
    say("gemm of 1 KiB", wall, engine)
    wall = statistics.median(seconds_of(lambda: qg.dequantize(q)) for _ in range(SMALL_PAIRS))
    print(f"dequantize of 1 KiB     {wall * 1e6:7.1f} us, with the engine's time")


def large_calls(recipe: str) -> None:
    x = qg.generate("normal", (4096, 8192), "bf16", seed=1)  # 64 MiB.
    own = qg.quantize(x, recipe)
    memory = {name: np.empty_like(tensor) for name, tensor in own.tensors.items()}
    aligned = all(tensor.ctypes.data % 64 == 0 for tensor in memory.values())
    cases = (("out= a result", lambda: qg.quantize(x, recipe, out=own)),
             (f"out= numpy, {'' if aligned else 'un'}aligned", lambda: qg.quantize(x, recipe, out=memory)),
             ("allocating", lambda: qg.quantize(x, recipe)))
    for name, call in cases:
        call()
        wall, engine, ratio = medians(lambda: seconds_of(call), lambda: engine_seconds(x, recipe), PAIRS)
        print(f"quantize of 64 MiB, {recipe:12} {name:22} {wall * 1e3:7.2f} ms, the engine {engine * 1e3:7.2f} ms, "
              f"ratio {ratio:5.3f}")


def imports() -> None:
    def of(program: str) -> float:
        return seconds_of(lambda: subprocess.run([sys.executable, "-c", program], check=True))

    for name, program in (("numpy", "import numpy"), ("nothing", "pass")):
        wall, base, _ = medians(lambda: of("import quantgate; quantgate.quantize"), lambda: of(program), 11)
        print(f"import quantgate        {wall * 1e3:7.1f} ms, import {name:8} {base * 1e3:6.1f} ms, "
              f"beyond it {(wall - base) * 1e3:6.1f} ms")
    program = "import sys, quantgate; quantgate.quantize; print(','.join(sorted({'torch', 'jax', 'google.protobuf'} & set(sys.modules))) or 'none')"
    frameworks = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()
    print(f"frameworks that the import brings: {frameworks}")


def main() -> None:
    imports()
    small_calls()
    for recipe in sys.argv[1:] or ("mxfp8", "fp8_current", "fp8_block", "nvfp4"):
        large_calls(recipe)


if __name__ == "__main__":
    main()
