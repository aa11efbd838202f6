"""Independent activation functions and their vectors: numpy for the fp32 steps, mpmath for tanh and sigmoid.

Each fp32 operation is one numpy float32 operation in the order of docs/quantizers.md section 10.6; exp, tanh and sigmoid
are mpmath's, rounded once to binary32 (correctly: 60 digits are taken, and 400 where those do not decide). Nothing is
shared with the C++ code. Writes tests/data/activation_vectors.txt. Run by hand from the repository root:
python3 tests/vectors/activation_reference.py
"""

import pathlib

import mpmath
import numpy as np

from number_formats import F32, SOURCES, digest, hex_of, to_output
from vector_tensors import TensorWriter

GATED = ("geglu", "glu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu")
KINDS = ("gelu", "geglu", "glu", "qgelu", "qgeglu", "relu", "reglu", "srelu", "sreglu", "silu", "swiglu", "clamped_swiglu")
# Without its gate, what a kind does to the activated half.
PLAIN = {"geglu": "gelu", "glu": "sigmoid", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu", "swiglu": "silu",
         "clamped_swiglu": "clamped_silu"}
SIGMOID_KINDS = ("glu", "qgelu", "qgeglu", "silu", "swiglu", "clamped_swiglu")
VARIANTS = {**{kind: ("canonical", "fp32_sigmoid") for kind in SIGMOID_KINDS},
            "gelu": ("canonical", "jit_gelu"), "geglu": ("canonical", "jit_gelu")}
ONE, HALF, ZERO = F32(1), F32(0.5), F32(0)


def rounded(value):
    """An mpf to binary32, to nearest even: by the integer nearest to it in units of the last place."""
    if value == 0:
        return 0.0
    unit = max(mpmath.frexp(value)[1] - 24, -149)
    result = float(mpmath.ldexp(mpmath.nint(mpmath.ldexp(value, -unit)), unit))
    return result if abs(result) <= float(np.finfo(F32).max) else np.copysign(np.inf, result)


def decided(function, x):
    """function(x) in enough digits that a change of the last ones changes no rounding."""
    for digits in (60, 400):
        with mpmath.workdps(digits):
            value = function(mpmath.mpf(float(x)))
            low, high = (rounded(value * (1 + sign * mpmath.mpf(10)**(6 - digits))) for sign in (-1, 1))
        if low == high:
            return low
    raise ValueError(f"undecided at {x}")


def each(function, limits):
    """A function of one binary32 number as one of arrays; `limits` gives its values at infinities."""
    known = {}

    def one(x):
        if np.isnan(x):
            return np.nan
        if np.isinf(x):
            return limits[int(x > 0)]
        if x == 0:
            return limits[2] if not np.signbit(x) else limits[3]
        if x not in known:
            known[x] = decided(function, x)
        return known[x]

    return lambda values: np.array([one(x) for x in values.ravel()], F32).reshape(values.shape)


def mp_exp(x):
    # Beyond these the result is infinite or 0; exp itself would take memory without bound.
    return mpmath.exp(min(max(x, -200), 200))


exp = each(mp_exp, (0.0, np.inf, 1.0, 1.0))
exact_tanh = each(lambda x: mpmath.tanh(x) if abs(x) < 100 else mpmath.sign(x) * (1 - mpmath.mpf(10)**-80), (-1, 1, 0.0, -0.0))
exact_sigmoid = each(lambda x: 1 / (1 + mp_exp(-x)) if abs(x) < 200 else mp_exp(min(x, 0)), (0.0, 1.0, 0.5, 0.5))


def sigmoid(x, variant):
    return ONE / (ONE + exp(-x)) if variant == "fp32_sigmoid" else exact_sigmoid(x)


def gelu_tanh(x):
    return exact_tanh((F32(0.79788456) * x) * (ONE + (F32(0.044715) * x) * x))


def keep_nan(x, values):
    return np.where(np.isnan(x), F32(np.nan), values).astype(F32)


def times_sigmoid(x, alpha, variant):
    return x * sigmoid(alpha * x, variant)


def times_sigmoid_derivative(x, alpha, variant):
    scaled = alpha * x
    s = sigmoid(scaled, variant)
    return scaled * (s * (ONE - s)) + s


def value_of(kind, x, variant, limit, alpha):
    if kind == "gelu":
        if variant == "jit_gelu":
            return (HALF * x) * (ONE + gelu_tanh(x))
        return x * (HALF + HALF * exact_tanh(x * (F32(0.79788456) + (F32(0.03567741) * x) * x)))
    if kind == "sigmoid":
        return sigmoid(x, variant)
    if kind == "relu":
        return keep_nan(x, np.where(x > 0, x, ZERO))
    if kind == "srelu":
        return keep_nan(x, np.where(x > 0, x * x, ZERO))
    if kind == "silu":
        return x * sigmoid(x, variant)
    if kind == "qgelu":
        return times_sigmoid(x, F32(1.702), variant)
    return times_sigmoid(keep_nan(x, np.where(x > limit, limit, x)), alpha, variant)


def derivative_of(kind, x, variant, limit, alpha):
    if kind == "gelu":
        t = gelu_tanh(x)
        return (HALF * x) * ((ONE - t * t) * (F32(0.79788456) + (F32(0.1070322243) * x) * x)) + HALF * (ONE + t)
    if kind == "sigmoid":
        s = sigmoid(x, variant)
        return s * (ONE - s)
    if kind == "relu":
        return keep_nan(x, np.where(x > 0, ONE, ZERO))
    if kind == "srelu":
        return keep_nan(x, np.where(x > 0, F32(2) * x, ZERO))
    if kind == "silu":
        s = sigmoid(x, variant)
        return x * (s * (ONE - s)) + s
    if kind == "qgelu":
        return times_sigmoid_derivative(x, F32(1.702), variant)
    return np.where(x > limit, ZERO, times_sigmoid_derivative(x, alpha, variant)).astype(F32)


def split(kind, h):
    """The activated half and the gate, both fp32."""
    h = h.astype(F32)
    return (h[..., :h.shape[-1] // 2], h[..., h.shape[-1] // 2:]) if kind in GATED else (h, None)


def gate_factor(kind, gate, limit, offset):
    if kind != "clamped_swiglu":
        return gate
    return keep_nan(gate, np.where(gate > limit, limit, np.where(gate < -limit, -limit, gate))) + offset


def forward(kind, h, variant, limit, alpha, offset):
    x, gate = split(kind, h)
    value = value_of(PLAIN.get(kind, kind), x, variant, limit, alpha)
    return value if gate is None else value * gate_factor(kind, gate, limit, offset)


def backward(kind, dy, h, variant, limit, alpha, offset):
    (x, gate), dy = split(kind, h), dy.astype(F32)
    plain = PLAIN.get(kind, kind)
    dx = derivative_of(plain, x, variant, limit, alpha) * dy
    if gate is None:
        return dx
    dx = dx * gate_factor(kind, gate, limit, offset)
    dgate = dy * value_of(plain, x, variant, limit, alpha)
    if kind == "clamped_swiglu":
        dgate = keep_nan(gate, np.where((gate > limit) | (gate < -limit), ZERO, dgate))
    return np.concatenate([dx, dgate], axis=-1)


def edge_values(limits):
    """Zeros, infinities, NaN, subnormals, huge numbers, ones around each limit and where results change."""
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 1e-40, -1e-40, 1e-38, -1e-38, 3e38, -3e38, 1e19, -1e19,
              1.8e19, 6e4, -6e4, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 5.0, -5.0, 9.0, -9.0, 10.0, -10.0, 17.0, 18.0, -17.0, -88.0,
              -89.0, -103.9, -104.0, 88.72, 88.73, 104.0, 2.0**-12, -2.0**-12, 3 * 2.0**-24, -3 * 2.0**-24, 2.0**-23]
    for limit in limits:
        for sign in (1, -1):
            at = F32(sign * limit)
            values += [at, np.nextafter(at, F32(np.inf)), np.nextafter(at, F32(-np.inf)), at * F32(1.0078125)]
    return np.array(values, F32)


def tensors(writer):
    edges = edge_values((7.0, 2.5))
    for source in SOURCES:
        # Every edge in the activated half beside every edge of a shorter list in the gate, and the reverse.
        gates = edges[[0, 1, 2, 3, 4, 6, 12, 19, 20, len(edges) - 16, len(edges) - 15, len(edges) - 14, len(edges) - 12]]
        pairs = [(x, g) for x in edges for g in gates] + [(g, x) for x in edges for g in gates]
        pairs = np.array(pairs, F32).reshape(-1, 26, 2)
        writer.hex("edges", source, np.concatenate([pairs[..., 0], pairs[..., 1]], axis=-1))
        bias = 15 if source == "f16" else 127
        writer.mix("mix", source, (31, 2 * 33), 11, bias - 9, 14, 40)
        writer.mix("wide", source, (5, 3, 2 * 7), 12, bias - 14 if source == "f16" else 60, 29 if source == "f16" else 120, 20)
        writer.mix("empty", source, (0, 12), 13, bias, 1)
        for name, shape in (("edges", (pairs.shape[0], 52)), ("mix", (31, 66)), ("wide", (5, 3, 14)), ("empty", (0, 12))):
            for suffix, last in ((".dy", shape[-1]), (".dy_gated", shape[-1] // 2)):
                writer.mix(name + suffix, source, (*shape[:-1], last), 14 + len(suffix), bias - 6, 9, 30 if name == "edges" else 0)


def cases(writer):
    outs = {"f32": "bf16", "bf16": "f32", "f16": "f16"}
    for kind in KINDS:
        for variant in VARIANTS.get(kind, ("canonical",)):
            numbers = [(7.0, 1.702, 1.0)] + ([(2.5, 1.25, 0.5)] if kind == "clamped_swiglu" else [])
            for limit, alpha, offset in numbers:
                rules = (variant, F32(limit), F32(alpha), F32(offset))
                for name in ("edges", "mix", "wide", "empty"):
                    for source in SOURCES:
                        # dy of another dtype than h, and every output dtype.
                        dy_source = outs[source]
                        h = writer.tensors[name, source]
                        dy_name = name + (".dy_gated" if kind in GATED else ".dy")
                        dy = writer.tensors[dy_name, dy_source]
                        for out in ("f32", "bf16" if source == "f32" else source):
                            with np.errstate(all="ignore"):
                                y = to_output(forward(kind, h, *rules), out)
                                dh = to_output(backward(kind, dy, h, *rules), out)
                            numbers_hex = " ".join(hex_of(n) for n in rules[1:])
                            yield (f"case {kind} {variant} {numbers_hex} {name} {source} {dy_name} {dy_source} {out} "
                                   f"{digest(y)} {digest(dh)}\n")


def main():
    writer = TensorWriter()
    tensors(writer)
    path = pathlib.Path("tests/data/activation_vectors.txt")
    with path.open("w") as out:
        out.write("# Activations by an independent implementation (tests/vectors/activation_reference.py; numpy "
                  f"{np.__version__}, mpmath {mpmath.__version__})\n"
                  "# case KIND VARIANT LIMIT ALPHA OFFSET H H_DTYPE DY DY_DTYPE OUT_DTYPE SHA256_64(y) SHA256_64(dh)\n")
        out.writelines(writer.lines)
        out.writelines(cases(writer))
        print(out.tell(), "bytes")


if __name__ == "__main__":
    main()
