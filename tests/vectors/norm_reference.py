"""Norms forward and backward in numpy's float32, and the vectors made with them.

Written from docs/numerics.md section 5 alone, one numpy operation for each operation there; nothing is shared with the C++
code. Writes tests/data/norm_vectors.txt. Run by hand from the repository root: python3 tests/vectors/norm_reference.py
"""

import hashlib
import pathlib

import ml_dtypes
import numpy as np

from number_formats import F32, SOURCES
from vector_tensors import TensorWriter

FLOATS = ("f32", "bf16", "f16")


def pairwise(values):
    """Along the last axis: padded with -0.0 to a power of two, neighbours added level by level."""
    count = values.shape[-1]
    if count == 0:
        return np.zeros(values.shape[:-1], F32)
    padded = np.full(values.shape[:-1] + (1 << (count - 1).bit_length(),), F32(-0.0), F32)
    padded[..., :count] = values
    while padded.shape[-1] > 1:
        padded = padded[..., 0::2] + padded[..., 1::2]
    return padded[..., 0]


def stored(values, dtype):
    """Bytes of float32 values in a type, every NaN canonical."""
    codes = np.ascontiguousarray(values.astype(F32).astype(SOURCES[dtype]))
    bits = codes.view(np.uint32 if dtype == "f32" else np.uint16).copy()
    bits[np.isnan(values)] = 0x7FFFFFFF if dtype == "f32" else 0x7FFF
    return bits.tobytes()


def widen(values):
    return values.astype(F32)


def weight(gamma, zero_centered):
    return widen(gamma) + F32(1) if zero_centered else widen(gamma)


def forward(kind, zero_centered, epsilon, x, gamma, beta):
    x = widen(x)
    inverse = F32(1) / F32(x.shape[-1])
    mean = pairwise(x) * inverse if kind == "layernorm" else None
    centered = x - mean[:, None] if kind == "layernorm" else x
    rstd = F32(1) / np.sqrt(pairwise(centered * centered) * inverse + F32(epsilon))
    y = weight(gamma, zero_centered) * (rstd[:, None] * centered)
    return (y if beta is None else y + widen(beta)), mean, rstd


def backward(kind, zero_centered, dz, x, gamma, mean, rstd, residual):
    x, dz = widen(x), widen(dz)
    inverse = F32(1) / F32(x.shape[-1])
    hat = rstd[:, None] * (x - mean[:, None] if kind == "layernorm" else x)
    dyg = weight(gamma, zero_centered) * dz
    a = pairwise(dyg * hat) * inverse
    inner = a[:, None] * hat
    if kind == "layernorm":
        inner = inner + (pairwise(dyg) * inverse)[:, None]
    dx = rstd[:, None] * (dyg - inner)
    if residual is not None:
        dx = dx + widen(residual)
    dgamma = pairwise((dz * hat).T)
    dbeta = pairwise(dz.T) if kind == "layernorm" else None
    return dx, dgamma, dbeta


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


class Cases:
    def __init__(self):
        self.writer, self.lines = TensorWriter(), []

    def take(self, name, source):
        return self.writer.tensors[name, source] if name != "-" else None

    def add(self, kind, zero_centered, epsilon, x, gamma, beta, dz, residual, out):
        """Operands are (name, source); ("-", "-") is absent."""
        if kind == "rmsnorm":
            beta = ("-", "-")
        values = {k: self.take(*v) for k, v in (("x", x), ("gamma", gamma), ("beta", beta), ("dz", dz), ("residual", residual))}
        with np.errstate(all="ignore"):
            y, mean, rstd = forward(kind, zero_centered, epsilon, values["x"], values["gamma"], values["beta"])
            saved = [None if s is None else np.frombuffer(stored(s, "f32"), F32) for s in (mean, rstd)]
            dx, dgamma, dbeta = backward(kind, zero_centered, values["dz"], values["x"], values["gamma"], *saved,
                                         values["residual"])
            words = [kind, str(int(zero_centered)), F32(epsilon).tobytes().hex()]
            for name, source in (x, gamma, beta, dz, residual):
                words += [name, source]
            words += [out, digest(stored(y, out)), "-" if mean is None else stored(mean, "f32").hex() or "empty",
                      stored(rstd, "f32").hex() or "empty", digest(stored(dx, x[1])), digest(stored(dgamma, gamma[1])),
                      "-" if dbeta is None else digest(stored(dbeta, gamma[1]))]
        self.lines.append("case " + " ".join(words) + "\n")


def exponents(source, around, span):
    """Biased exponents of which the middle one is 2^around."""
    return (15 if source == "f16" else 127) + around - span // 2, span


def every_setting(cases, x, gamma, beta, dz, residual, outs):
    for kind in ("layernorm", "rmsnorm"):
        for i, out in enumerate(outs):
            cases.add(kind, i % 2 == 1, 1e-5, x, gamma, beta, dz, residual if i % 2 == 0 else ("-", "-"), out)


def main():
    cases = Cases()
    w = cases.writer
    seed = 100
    for rows, columns in ((3, 1), (5, 7), (33, 16), (9, 31), (5, 1000), (3, 4096), (0, 7), (600, 5)):
        for s, source in enumerate(FLOATS):
            other = FLOATS[(s + 1) % 3]
            names = {}
            for operand, shape, type_, around in (("x", (rows, columns), source, 0), ("gamma", (columns,), other, -1),
                                                  ("beta", (columns,), source, -2), ("dz", (rows, columns), other, -3),
                                                  ("residual", (rows, columns), source, -3)):
                seed += 1
                names[operand] = (f"{operand}{rows}x{columns}", type_)
                w.mix(*names[operand], shape, seed, *exponents(type_, around, 6))
            every_setting(cases, *(names[k] for k in ("x", "gamma", "beta", "dz", "residual")), FLOATS)
            cases.add("layernorm", False, 0.0, names["x"], names["gamma"], ("-", "-"), names["dz"], ("-", "-"), source)
            cases.add("layernorm", True, 0.5, names["x"], names["gamma"], ("-", "-"), names["dz"], names["residual"], "f32")
    # All of a type's exponents, so that squares overflow and underflow; specials in some rows; subnormal rows.
    for name, low, span, specials in (("wide", None, None, 0), ("laced", -4, 8, 200), ("tiny", 0, 2, 0)):
        for s, source in enumerate(FLOATS):
            other = FLOATS[(s + 2) % 3]
            bias, top = (15, 30) if source == "f16" else (127, 254)
            first, count = (0, top) if low is None else (max(0, bias + low) if name == "laced" else low, span)
            w.mix(name, source, (17, 100), 40 + s, first, count, specials)
            w.mix(name + "_dz", source, (17, 100), 50 + s, *exponents(source, 0, 8), specials)
            w.mix(name + "_gamma", other, (100,), 60 + s, *exponents(other, 0, 4))
            for epsilon in (1e-5, 0.0):
                for kind in ("layernorm", "rmsnorm"):
                    cases.add(kind, epsilon == 0, epsilon, (name, source), (name + "_gamma", other), (name + "_gamma", other),
                              (name + "_dz", source), ("-", "-"), source)
    # Constant rows, whose variance is 0, one of them of -0.
    constant = np.repeat(np.array([[3.0], [-0.0], [0.0], [1e-3], [-65504.0]]), 24, axis=1)
    for source in FLOATS:
        w.hex("constant", source, constant)
        w.mix("constant_dz", source, (5, 24), 70, *exponents(source, 0, 4))
        w.mix("constant_gamma", source, (24,), 71, *exponents(source, 0, 4))
        for epsilon in (1e-5, 0.0):
            for kind in ("layernorm", "rmsnorm"):
                cases.add(kind, False, epsilon, ("constant", source), ("constant_gamma", source), ("-", "-"),
                          ("constant_dz", source), ("constant", source), source)
    origin = f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}"
    head = (f"# Norms by an independent implementation (tests/vectors/norm_reference.py, {origin})\n"
            "# tensors as tests/vectors/vector_tensors.py describes them\n"
            "# case KIND ZERO_CENTERED EPSILON then NAME SOURCE of x, gamma, beta, dz, residual (-: none), then OUT DIGEST(y) MEAN|-"
            " RSTD DIGEST(dx) DIGEST(dgamma) DIGEST(dbeta)|-; DIGEST: 64 bits of SHA-256\n")
    pathlib.Path("tests/data/norm_vectors.txt").write_text(head + "".join(w.lines) + "".join(cases.lines))


if __name__ == "__main__":
    main()
