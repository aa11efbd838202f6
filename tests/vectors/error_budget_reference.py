"""Error budgets of one linear layer's y, by exact rational arithmetic, and the vectors made with them.

Written from docs/reports.md section 3 alone: every exact product is a Fraction rounded once to fp32, every quantizer is
numpy and ml_dtypes. Writes tests/data/error_budget_vectors.txt. Run by hand from the repository root:
python3 tests/vectors/error_budget_reference.py
"""

import math
import pathlib
from fractions import Fraction

import ml_dtypes
import numpy as np

F32 = np.float32
E4M3 = ml_dtypes.float8_e4m3fn
M, N, K = 8, 16, 64


def round_f32(value):
    """Nearest even fp32 number of a Fraction: fp64 cannot stand between, so the candidates are compared exactly."""
    guess = F32(float(value))
    candidates = [np.nextafter(guess, F32(-np.inf)), guess, np.nextafter(guess, F32(np.inf))]
    distances = [abs(Fraction(float(c)) - value) for c in candidates]
    best = min(distances)
    nearest = [c for c, d in zip(candidates, distances) if d == best]
    if len(nearest) == 1:
        return nearest[0]
    return next(c for c in nearest if np.array([c]).view(np.uint32)[0] % 2 == 0)


def exact(a, b, factor=Fraction(1)):
    """round(sum over k of a[m][k] b[n][k] * factor) to fp32, of fp32 matrices."""
    fa = [[Fraction(float(v)) for v in row] for row in a]
    fb = [[Fraction(float(v)) for v in row] for row in b]
    return np.array([[round_f32(sum(x * y for x, y in zip(ra, rb)) * factor) for rb in fb] for ra in fa], F32)


def fma_chain(a, b):
    """Sequential fp32 fused multiply-add over k."""
    out = np.zeros((len(a), len(b)), F32)
    for m, row_a in enumerate(a):
        for n, row_b in enumerate(b):
            total = F32(0)
            for x, y in zip(row_a, row_b):
                total = round_f32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(total)))
            out[m, n] = total
    return out


def cast_e4m3(values):
    return np.clip(values.astype(F32), F32(-448), F32(448)).astype(E4M3).astype(F32)


def ideal(x):
    scale = F32(np.abs(x).max() / F32(448))
    return cast_e4m3(x / scale) * scale


def current(x):
    scale = F32(F32(448) / np.abs(x).max())
    return cast_e4m3(x * scale), F32(F32(1) / scale)


def current_power_2(x):
    scale = (np.array([F32(448) / np.abs(x).max()], F32).view(np.uint32) & np.uint32(0xFF800000)).view(F32)[0]
    return cast_e4m3(x * scale), F32(F32(1) / scale)


def line(stage, term, total, share=None):
    t, whole = term.astype(np.float64).ravel(), total.astype(np.float64).ravel()
    mean = math.fsum(t) / t.size
    rms = math.sqrt(math.fsum(t * t) / t.size)
    if share is None:
        share = math.fsum(t * whole) / math.fsum(whole * whole)
    return f"term {mean.hex()} {rms.hex()} {float(np.abs(t).max()).hex()} {share.hex()} {stage}"


def case(name, quantize, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((M, K)) * np.exp2(rng.integers(-3, 4, (M, 1)))).astype(ml_dtypes.bfloat16)
    w = (rng.standard_normal((N, K)) * 0.05).astype(ml_dtypes.bfloat16)
    ox, ow = x.astype(F32), w.astype(F32)
    (qx, sx), (qw, sw) = quantize(ox), quantize(ow)
    ux, uw = qx * sx, qw * sw
    base = exact(ox, ow)
    ideal_x, used_x = exact(ideal(ox), ow), exact(ux, ow)
    ideal_w, used_w = exact(ox, ideal(ow)), exact(ox, uw)
    both = exact(qx, qw, Fraction(float(sx)) * Fraction(float(sw)))
    # Epilogue: coefficient f32(scale_inv of w * scale_inv of x), then one fp32 product.
    summed = fma_chain(qx, qw) * F32(sw * sx)
    y = summed.astype(ml_dtypes.bfloat16).astype(F32)
    f64 = lambda *parts: sum(s * p.astype(np.float64) for s, p in parts)
    total = f64((1, y), (-1, base))
    rows = [
        ("total", total),
        ("x: elements", f64((1, ideal_x), (-1, base))),
        ("x: scale rule", f64((1, used_x), (-1, ideal_x))),
        ("weight: elements", f64((1, ideal_w), (-1, base))),
        ("weight: scale rule", f64((1, used_w), (-1, ideal_w))),
        ("both operands together", f64((1, both), (-1, used_x), (-1, used_w), (1, base))),
        ("accumulation", f64((1, summed), (-1, both))),
        ("output cast", f64((1, y), (-1, summed))),
    ]
    text = [f"case {name} {M} {N} {K} {x.tobytes().hex()} {w.tobytes().hex()}"]
    shares = {}
    for name in ("x", "weight"):
        ideal_error = dict(rows)[f"{name}: elements"].ravel()
        actual_error = ideal_error + dict(rows)[f"{name}: scale rule"].ravel()
        whole = total.ravel()
        together = math.fsum(actual_error * whole) / math.fsum(whole * whole)
        ratio = math.fsum(ideal_error**2) / math.fsum(actual_error**2)
        shares[f"{name}: elements"] = together * ratio
        shares[f"{name}: scale rule"] = together - together * ratio
    return text + [line(stage, term, total, shares.get(stage)) for stage, term in rows]


def main():
    lines = ["# tests/vectors/error_budget_reference.py: y of a linear layer, fp32 arithmetic, terms as mean rms max share"]
    lines += case("fp8_current:fp8_format=e4m3", current, 1)
    lines += case("fp8_current:fp8_format=e4m3,power_2_scales=true", current_power_2, 2)
    (pathlib.Path("tests/data") / "error_budget_vectors.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
