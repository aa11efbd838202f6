"""Adam, AdamW and SGD steps, sums and multiples in numpy's float32, and the vectors made with them.

Written from docs/numerics.md section 6 alone, one numpy operation for each operation there; nothing is shared with
the C++ code. Writes tests/data/optimizer_vectors.txt. Run by hand from the repository root:
python3 tests/vectors/optimizer_reference.py
"""

import pathlib

import ml_dtypes
import numpy as np

from norm_reference import digest, exponents, stored, widen
from number_formats import F32
from vector_tensors import TensorWriter

FLOATS = ("f32", "bf16", "f16")
COUNT = 2051


def correction(beta, step):
    power, square = 1.0, float(beta)
    while step:
        if step & 1:
            power *= square
        square *= square
        step >>= 1
    return F32(1.0 - power)


def adam(p, g, m, v, lr, beta1, beta2, eps, wd, decoupled, step):
    decay = wd * p
    if not decoupled:
        g = g + decay
    m = beta1 * m + (F32(1) - beta1) * g
    v = beta2 * v + ((F32(1) - beta2) * g) * g
    update = (m / correction(beta1, step)) / (np.sqrt(v / correction(beta2, step)) + eps)
    if decoupled:
        update = update + decay
    return p - lr * update, m, v


def sgd(p, g, buffer, lr, momentum, wd, nesterov):
    if wd != 0:
        g = g + wd * p
    direction = g
    if momentum != 0:
        buffer = g if buffer is None else momentum * buffer + g
        direction = g + momentum * buffer if nesterov else buffer
    return p - lr * direction, buffer


def hex32(value):
    return F32(value).tobytes().hex()


def main():
    w, lines = TensorWriter(), []
    w.mix("p", "f32", (COUNT,), 1, *exponents("f32", -3, 8), 300)
    w.mix("m", "f32", (COUNT,), 2, *exponents("f32", -6, 12))
    w.mix("v", "f32", (COUNT,), 3, *exponents("f32", -12, 20))
    w.tensors["v", "f32"] = np.abs(w.tensors["v", "f32"])
    for source in FLOATS:
        w.mix("g", source, (COUNT,), 4, *exponents(source, -4, 12), 300)
        w.mix("a", source, (COUNT,), 5, 0, 30 if source == "f16" else 250, 50)
        w.mix("b", source, (COUNT,), 6, 0, 30 if source == "f16" else 250, 50)
    p, m, v = (w.tensors[name, "f32"] for name in ("p", "m", "v"))
    settings = [(1e-3, 0.9, 0.999, 1e-8, wd, decoupled, step) for wd in (0.0, 0.01) for decoupled in (True, False)
                for step in (1, 2, 1000)]
    settings += [(0.5, 0.0, 0.0, 0.0, 0.1, True, 3), (1e-2, 0.95, 0.9999, 1e-6, 0.1, True, (1 << 40) + 5)]
    with np.errstate(all="ignore"):
        for source in FLOATS:
            g = widen(w.tensors["g", source])
            for setting in settings:
                lr, beta1, beta2, eps, wd = map(F32, setting[:5])
                out = adam(p, g, m, v, lr, beta1, beta2, eps, wd, *setting[5:])
                words = [hex32(x) for x in setting[:5]] + [str(int(setting[5])), str(setting[6])]
                lines.append(f"case adam {source} {' '.join(words)} {' '.join(digest(stored(o, 'f32')) for o in out)}\n")
            for lr, momentum, wd, nesterov, first in ((0.1, 0.0, 0.0, 0, 1), (0.1, 0.0, 1e-2, 0, 1), (0.1, 0.9, 0.0, 0, 1),
                                                      (0.1, 0.9, 1e-2, 0, 0), (0.1, 0.9, 1e-2, 1, 1), (3e-3, 0.99, 0.0, 1, 0)):
                out = sgd(p, g, None if first else m, F32(lr), F32(momentum), F32(wd), nesterov)
                words = [hex32(x) for x in (lr, momentum, wd)] + [str(nesterov), str(first)]
                digests = [digest(stored(o, "f32")) if o is not None else "-" for o in out]
                lines.append(f"case sgd {source} {' '.join(words)} {' '.join(digests)}\n")
            for other in FLOATS:
                for out in FLOATS:
                    a, b = widen(w.tensors["a", source]), widen(w.tensors["b", other])
                    lines.append(f"case add {source} {other} {out} {digest(stored(a + b, out))}\n")
            for factor in (0.0, -1.0, 1 / 3, 1e30, float("inf")):
                for out in FLOATS:
                    a = widen(w.tensors["a", source])
                    lines.append(f"case scale {source} {hex32(factor)} {out} {digest(stored(a * F32(factor), out))}\n")
    origin = f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}"
    head = (f"# Optimizers, sums and multiples by an independent implementation (tests/vectors/optimizer_reference.py, {origin})\n"
            "# tensors as tests/vectors/vector_tensors.py describes them; v is taken without its signs\n"
            "# case adam SOURCE(g) LR BETA1 BETA2 EPS DECAY DECOUPLED STEP DIGEST(p) DIGEST(m) DIGEST(v)\n"
            "# case sgd SOURCE(g) LR MOMENTUM DECAY NESTEROV FIRST DIGEST(p) DIGEST(m)|-\n"
            "# case add SOURCE(a) SOURCE(b) OUT DIGEST; case scale SOURCE(a) FACTOR OUT DIGEST; DIGEST: 64 bits of SHA-256\n")
    pathlib.Path("tests/data/optimizer_vectors.txt").write_text(head + "".join(w.lines) + "".join(lines))


if __name__ == "__main__":
    main()
