"""Norms and activations in 60-digit arithmetic, forward and backward, and the vectors made with them.

Written from docs/numerics.md section 5 and docs/quantizers.md section 10.6 alone: the formulas over real numbers, with their
constants as fp32 has them. Writes tests/data/operation_values.txt: numbers as hexadecimal fp64. Run by hand from the repository
root: python3 tests/vectors/operation_values.py
"""

import pathlib
import random
import struct

import mpmath
from mpmath import mpf

mpmath.mp.dps = 60
GATED = {"geglu", "glu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu"}
LIMIT, ALPHA, OFFSET = 2.5, 1.25, 0.75  # Of clamped_swiglu, not its defaults.


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def constant(value):
    return mpf(f32(value))


def sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


def product(x, alpha):
    """x sigmoid(alpha x) and its derivative."""
    s = sigmoid(alpha * x)
    return x * s, alpha * x * s * (1 - s) + s


def gelu(x, variant):
    inner = constant(0.79788456) * x * (1 + constant(0.044715) * x * x)
    t = mpmath.tanh(inner)
    slope = x / 2 * ((1 - t * t) * (constant(0.79788456) + constant(0.1070322243) * x * x)) + (1 + t) / 2
    if variant == "jit_gelu":
        return x / 2 * (1 + t), slope
    return x * (mpf(1) / 2 + mpmath.tanh(x * (constant(0.79788456) + constant(0.03567741) * x * x)) / 2), slope


def activated(kind, variant, x):
    """f(x) and f'(x)."""
    base = {"geglu": "gelu", "glu": "sigmoid", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu", "swiglu": "silu"}
    kind = base.get(kind, kind)
    if kind == "gelu":
        return gelu(x, variant)
    if kind == "sigmoid":
        s = sigmoid(x)
        return s, s * (1 - s)
    if kind == "qgelu":
        return product(x, constant(1.702))
    if kind == "relu":
        return max(x, mpf(0)), mpf(1 if x > 0 else 0)
    if kind == "srelu":
        return max(x, mpf(0)) ** 2, max(2 * x, mpf(0))
    if kind == "silu":
        return product(x, mpf(1))
    value, slope = product(min(x, mpf(LIMIT)), mpf(ALPHA))
    return value, mpf(0) if x > LIMIT else slope


def activation(kind, variant, x, gate, dy):
    value, slope = activated(kind, variant, x)
    if kind not in GATED:
        return [value], [slope * dy]
    factor, passes = gate, True
    if kind == "clamped_swiglu":
        factor, passes = max(min(gate, mpf(LIMIT)), -mpf(LIMIT)) + mpf(OFFSET), abs(gate) <= LIMIT
    return [value * factor], [slope * dy * factor, dy * value if passes else mpf(0)]


def norm(kind, zero_centered, epsilon, x, gamma, beta, dz):
    """Rows of x and dz; y, dx, dgamma, dbeta, each flat."""
    count = len(gamma)
    weight = [g + 1 if zero_centered else g for g in gamma]
    y, dx, dgamma, dbeta = [], [], [mpf(0)] * count, [mpf(0)] * count
    for row, gradient in zip(x, dz):
        mean = mpmath.fsum(row) / count if kind == "layernorm" else mpf(0)
        centered = [v - mean for v in row]
        rstd = 1 / mpmath.sqrt(mpmath.fsum(c * c for c in centered) / count + epsilon)
        hat = [rstd * c for c in centered]
        y += [w * h + b for w, h, b in zip(weight, hat, beta)]
        dyg = [w * g for w, g in zip(weight, gradient)]
        a = mpmath.fsum(d * h for d, h in zip(dyg, hat)) / count
        b = mpmath.fsum(dyg) / count if kind == "layernorm" else mpf(0)
        dx += [rstd * (d - (a * h + b)) for d, h in zip(dyg, hat)]
        for n in range(count):
            dgamma[n] += gradient[n] * hat[n]
            dbeta[n] += gradient[n]
    return y, dx, dgamma, dbeta


def text(values):
    return " ".join(float(v).hex() for v in values)


def main():
    rng = random.Random(5)
    lines = ["# Norms and activations in 60-digit arithmetic (tests/vectors/operation_values.py, mpmath " + mpmath.__version__ + ")",
             "# activation KIND VARIANT LIMIT ALPHA OFFSET x [gate] dy | y | dx [dgate]",
             "# norm KIND ZERO_CENTERED EPSILON ROWS COLUMNS then x, gamma, beta, dz | y | dx | dgamma | dbeta"]
    points = [0.0, 1.0, -1.0, 3.0, -3.0, 9.5, -9.5, 2.0**-20, -(2.0**-70), 40.0, -40.0]
    points += [f32(rng.gauss(0, 2)) for _ in range(12)]
    kinds = ["gelu", "geglu", "glu", "qgelu", "qgeglu", "relu", "reglu", "srelu", "sreglu", "silu", "swiglu", "clamped_swiglu"]
    cases = [(kind, "canonical") for kind in kinds]
    cases += [("gelu", "jit_gelu"), ("silu", "fp32_sigmoid"), ("glu", "fp32_sigmoid")]
    for kind, variant in cases:
        for x in points:
            gate, dy = f32(rng.gauss(0, 2)), f32(rng.gauss(0, 1))
            given = [x, gate, dy] if kind in GATED else [x, dy]
            y, dx = activation(kind, variant, mpf(x), mpf(gate), mpf(dy))
            lines.append(f"activation {kind} {variant} {LIMIT} {ALPHA} {OFFSET} {text(given)} | {text(y)} | {text(dx)}")
    for kind in ("layernorm", "rmsnorm"):
        for rows, columns, offset, zero_centered in ((1, 1, 0.5, 0), (3, 7, 0.0, 1), (2, 33, 100.0, 0)):
            def row(scale, shift):
                return [mpf(f32(rng.gauss(0, scale) + shift)) for _ in range(columns)]
            x = [row(1, offset) for _ in range(rows)]
            dz = [row(1, 0) for _ in range(rows)]
            gamma, beta = row(0.5, 1), row(0.5, 0) if kind == "layernorm" else [mpf(0)] * columns
            epsilon = f32(1e-5)
            outs = norm(kind, zero_centered, mpf(epsilon), x, gamma, beta, dz)
            given = [v for r in x for v in r] + gamma + beta + [v for r in dz for v in r]
            lines.append(f"norm {kind} {zero_centered} {epsilon.hex()} {rows} {columns} {text(given)} | "
                         + " | ".join(text(out) for out in outs))
    pathlib.Path("tests/data/operation_values.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
