"""Layers of attention, forward and backward, under recipe bf16: written from docs/quantizers.md sections 10.3 to 10.11 and
docs/numerics.md sections 1, 5 and 9 alone, one numpy operation for each fp32 operation there.

Every GEMM is a sum of integers, rounded once to bf16, which is what arithmetic `exact` gives; of the case `integers` every
sum is exact in any order, so that every arithmetic gives it. exp, sigmoid, tanh, cosine and sine are mpmath's. Nothing is
shared with the C++ code. Writes tests/data/attention_layers.safetensors. Run by hand from the repository root:
python3 tests/vectors/attention_layer_reference.py
"""

import mpmath
import numpy as np
from safetensors.numpy import save_file

import activation_reference as activation
import norm_reference as norm
from number_formats import F32, SOURCES

BF16 = SOURCES["bf16"]
# A sum that needs at most so many bits is exact in every order in the 24 bits of fp32, also where a tensor core cuts terms
# off one or two bits below the largest.
BITS_IN_ANY_ORDER = 21


def bf16(values):
    return np.asarray(values, F32).astype(BF16)


def f32(values):
    return np.asarray(values).astype(F32)


def integers(values):
    """The values times 2^shift, as Python's integers, and the shift."""
    values = f32(values)
    fractions, exponents = np.frexp(values.astype(np.float64))
    shift = int(24 - exponents[values != 0].min()) if np.any(values) else 0
    flat = [int(fraction * 2**24) << (int(exponent) - 24 + shift) if fraction else 0
            for fraction, exponent in zip(fractions.ravel(), exponents.ravel())]
    return np.array(flat, object).reshape(values.shape), shift


def rounded(number, shift):
    """number / 2^shift to bf16, nearest even."""
    size = abs(number)
    if size == 0:
        return 0.0
    last = max(size.bit_length() - 8, shift - 133)
    if last > 0:
        kept, rest = size >> last, size & ((1 << last) - 1)
        half = 1 << (last - 1)
        size = (kept + (rest > half or (rest == half and kept % 2 == 1))) << last
    return float(np.copysign(np.ldexp(float(size), -shift), number))


class Gemms:
    """Exact products. `any_order`: whether each had room for every order of its sum so far."""

    def __init__(self):
        self.any_order = True

    def __call__(self, a, b, bias=None):
        """a [m][k] b [k][n] + bias [n]."""
        (left, left_shift), (right, right_shift) = integers(a), integers(b)
        total = left.dot(right)
        shift = left_shift + right_shift
        size = np.abs(left).dot(np.abs(right))
        self.check(left, right, size)
        if bias is not None:
            added, bias_shift = integers(bias)
            common = max(shift, bias_shift)
            total = total * 2**(common - shift) + added * 2**(common - bias_shift)
            shift = common
        flat = [rounded(int(number), shift) for number in total.ravel()]
        return bf16(np.array(flat, np.float64).reshape(total.shape))

    def check(self, left, right, size):
        def lowest(matrix):
            """The power of two that divides every element."""
            bits = 0
            for number in matrix.ravel():
                bits |= abs(int(number))
            return (bits & -bits) or 1
        unit = lowest(left) * lowest(right)
        if any(int(number) // unit >= 1 << BITS_IN_ANY_ORDER for number in size.ravel()):
            self.any_order = False


def column_sums(values):
    return bf16(norm.pairwise(np.ascontiguousarray(f32(values).T)))


class Linear:
    """y = x w^T + bias and its gradients; x of several leading dims."""

    def __init__(self, gemms, parameters, name):
        self.gemms, self.name = gemms, name
        self.weight, self.bias = parameters[name + ".weight"], parameters.get(name + ".bias")

    def forward(self, x):
        self.x = x.reshape(-1, x.shape[-1])
        y = self.gemms(self.x, self.weight.T, self.bias)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def backward(self, dy, gradients):
        rows = dy.reshape(-1, dy.shape[-1])
        gradients[self.name + ".dw"] = self.gemms(rows.T, self.x)
        if self.bias is not None:
            gradients[self.name + ".db"] = column_sums(rows)
        return self.gemms(rows, self.weight).reshape(*dy.shape[:-1], self.x.shape[-1])


def rotary_table(base, positions, columns):
    """Cosines and sines of p * (1 / base^(2 i / columns)), [positions][columns / 2] in bf16."""
    cosines, sines = [], []
    for i in range(columns // 2):
        exponent = F32(2 * i) / F32(columns)
        power = F32(activation.decided(lambda e: mpmath.power(mpmath.mpf(float(F32(base))), e), exponent))
        inverse = F32(1) / power
        angles = [F32(p) * inverse for p in range(positions)]
        cosines.append([1.0 if a == 0 else activation.decided(mpmath.cos, a) for a in angles])
        sines.append([0.0 if a == 0 else activation.decided(mpmath.sin, a) for a in angles])
    return bf16(np.array(cosines, F32).T), bf16(np.array(sines, F32).T)


def rotate(head, table, transposed):
    if table is None:
        return head
    c, s = f32(table[0]), f32(table[1])
    s = -s if transposed else s
    half = head.shape[-1] // 2
    low, high = f32(head[:, :half]), f32(head[:, half:])
    product = lambda a, b: f32(bf16(a * b))
    return np.concatenate([bf16(product(low, c) - product(high, s)), bf16(product(high, c) + product(low, s))], axis=-1)


class Core:
    """Attention between its projections: [S][B][(heads + 2 groups) D] to [S][B][heads D]."""

    def __init__(self, gemms, options):
        self.gemms, self.options = gemms, options

    def forward(self, qkv):
        o, gemms = self.options, self.gemms
        s, b, width = qkv.shape
        self.per_group = o["heads"] // o["groups"]
        self.columns = width // (o["heads"] + 2 * o["groups"])
        base = o.get("rotary_base")
        self.table = None if base is None else rotary_table(base, s, self.columns)
        self.scale = F32(1 / np.sqrt(np.float64(self.columns)))
        self.taken = np.tril(np.ones((s, s), bool)) if o["mask"] == "causal" else np.ones((s, s), bool)
        self.heads = qkv.reshape(s, b, o["groups"], self.per_group + 2, self.columns)
        self.probabilities = {}
        context = np.zeros((s, b, o["heads"], self.columns), BF16)
        for batch in range(b):
            for group in range(o["groups"]):
                k, v = self.key(batch, group), self.heads[:, batch, group, -1]
                for i in range(self.per_group):
                    p = self.softmax(gemms(self.query(batch, group, i), k.T))
                    self.probabilities[batch, group, i] = p
                    context[:, batch, group * self.per_group + i] = gemms(bf16(p), v)
        return context.reshape(s, b, -1)

    def query(self, batch, group, i):
        return rotate(self.heads[:, batch, group, i], self.table, False)

    def key(self, batch, group):
        return rotate(self.heads[:, batch, group, self.per_group], self.table, False)

    def softmax(self, scores):
        z = f32(bf16(f32(scores) * self.scale))
        largest = np.where(self.taken, z, F32(-np.inf)).max(axis=-1)
        terms = np.where(self.taken, activation.exp(z - largest[:, None]), F32(0)).astype(F32)
        return terms / norm.pairwise(terms)[:, None]

    def softmax_backward(self, gradient, p):
        g = f32(gradient)
        total = norm.pairwise(np.where(self.taken, g * p, F32(0)).astype(F32))
        slope = f32(bf16((g - total[:, None]) * p))
        return bf16(np.where(self.taken, slope * self.scale, F32(0)))

    def backward(self, dcontext):
        o, gemms = self.options, self.gemms
        s, b = dcontext.shape[:2]
        dcontext = dcontext.reshape(s, b, o["groups"], self.per_group, self.columns)
        dheads = np.zeros(self.heads.shape, BF16)
        for batch in range(b):
            for group in range(o["groups"]):
                k, v = self.key(batch, group), self.heads[:, batch, group, -1]
                dk = dv = None
                for i in range(self.per_group):
                    d, p = dcontext[:, batch, group, i], self.probabilities[batch, group, i]
                    dscores = self.softmax_backward(gemms(d, v.T), p)
                    dheads[:, batch, group, i] = rotate(gemms(dscores, k), self.table, True)
                    parts = f32(gemms(dscores.T, self.query(batch, group, i))), f32(gemms(bf16(p).T, d))
                    dk, dv = parts if dk is None else (dk + parts[0], dv + parts[1])
                dheads[:, batch, group, self.per_group] = rotate(bf16(dk), self.table, True)
                dheads[:, batch, group, self.per_group + 1] = bf16(dv)
        return dheads.reshape(s, b, -1)


class Norm:
    def __init__(self, options, parameters, name):
        self.kind, self.name = options["norm"], name
        self.gamma, self.beta = parameters[name + ".gamma"], parameters.get(name + ".beta")

    def forward(self, x):
        self.x = x.reshape(-1, x.shape[-1])
        y, self.mean, self.rstd = norm.forward(self.kind, False, 1e-5, self.x, self.gamma, self.beta)
        return bf16(y).reshape(x.shape)

    def backward(self, dz, residual, gradients):
        rows = lambda values: values.reshape(self.x.shape)
        dx, dgamma, dbeta = norm.backward(self.kind, False, rows(dz), self.x, self.gamma, self.mean, self.rstd, rows(residual))
        gradients[self.name + ".dgamma"] = bf16(dgamma)
        if self.beta is not None:
            gradients[self.name + ".dbeta"] = bf16(dbeta)
        return bf16(dx).reshape(dz.shape)


def attention(gemms, options, x, dy, parameters):
    qkv, core, proj = Linear(gemms, parameters, "qkv"), Core(gemms, options), Linear(gemms, parameters, "proj")
    y = proj.forward(core.forward(qkv.forward(x)))
    gradients = {}
    dx = qkv.backward(core.backward(proj.backward(dy, gradients)), gradients)
    return {"y": y, "dx": dx, **gradients}


def transformer_layer(gemms, options, x, dy, parameters):
    norm1, norm2 = (Norm(options, parameters, name) for name in ("norm1", "norm2"))
    qkv, core, proj = Linear(gemms, parameters, "qkv"), Core(gemms, options), Linear(gemms, parameters, "proj")
    fc1, fc2 = Linear(gemms, parameters, "fc1"), Linear(gemms, parameters, "fc2")
    kind = options["activation"]
    numbers = ("canonical", F32(7), F32(1.702), F32(1))
    s = bf16(f32(proj.forward(core.forward(qkv.forward(norm1.forward(x))))) + f32(x))
    hidden = fc1.forward(norm2.forward(s))
    acted = bf16(activation.forward(kind, hidden.reshape(-1, hidden.shape[-1]), *numbers)).reshape(*hidden.shape[:-1], -1)
    gradients = {"y": bf16(f32(fc2.forward(acted)) + f32(s))}
    dacted = fc2.backward(dy, gradients)
    rows = lambda values: values.reshape(-1, values.shape[-1])
    dhidden = bf16(activation.backward(kind, rows(dacted), rows(hidden), *numbers)).reshape(hidden.shape)
    ds = norm2.backward(fc1.backward(dhidden, gradients), dy, gradients)
    dn1 = qkv.backward(core.backward(proj.backward(ds, gradients)), gradients)
    gradients["dx"] = norm1.backward(dn1, ds, gradients)
    return gradients


def parameters_of(options, columns, head_columns, random):
    """Random parameters; x has `columns`, a head `head_columns`, fc2 takes 12."""
    heads, groups = options["heads"], options["groups"]
    shapes = {"qkv.weight": ((heads + 2 * groups) * head_columns, columns), "qkv.bias": ((heads + 2 * groups) * head_columns,),
              "proj.weight": (columns, heads * head_columns), "proj.bias": (columns,)}
    if "norm" in options:
        gated = options["activation"] in activation.GATED
        shapes |= {"fc1.weight": (24 if gated else 12, columns), "fc1.bias": (24 if gated else 12,),
                   "fc2.weight": (columns, 12), "fc2.bias": (columns,)}
        for name in ("norm1", "norm2"):
            shapes[name + ".gamma"] = (columns,)
            if options["norm"] == "layernorm":
                shapes[name + ".beta"] = (columns,)
    # Weights that keep the size of what they multiply.
    return {name: bf16(random.standard_normal(shape) / (np.sqrt(shape[-1]) if len(shape) == 2 else 1))
            for name, shape in shapes.items()}


def integer_case(options):
    """Small integers for which every sum is exact in any order: probabilities are 0 or 1 / 2^n."""
    for seed in range(10000):
        random = np.random.default_rng(seed)
        x = bf16(random.integers(-2, 3, (4, 2, 8)))
        dy = bf16(random.integers(-2, 3, (4, 2, 8)))
        heads, groups, columns = options["heads"], options["groups"], 4
        weight = random.integers(-1, 2, (groups, heads // groups + 2, columns, 8)) * random.integers(0, 2, (columns, 8))
        # Scores that differ do so by so much that exp makes 0 of the smaller one.
        weight[:, :-2] *= 256
        parameters = {"qkv.weight": bf16(weight.reshape(-1, 8)), "proj.weight": bf16(random.integers(-1, 2, (8, heads * columns))),
                      "proj.bias": bf16(random.integers(-2, 3, (8,)))}
        gemms = Gemms()
        outputs = attention(gemms, options, x, dy, parameters)
        # No zeros alone.
        if gemms.any_order and all(np.count_nonzero(f32(values)) > 8 for values in outputs.values() if values.ndim > 1):
            key_rows = f32(outputs["qkv.dw"]).reshape(groups, -1, columns, 8)
            if all(np.any(key_rows[:, at]) for at in range(key_rows.shape[1])):
                return x, dy, parameters, outputs
    raise ValueError("no seed")


CASES = {
    "grouped_causal_rotary": (attention, {"heads": 4, "groups": 2, "mask": "causal", "rotary_base": 10000.0}, (7, 2, 16), 6),
    "plain": (attention, {"heads": 3, "groups": 3, "mask": "none"}, (9, 1, 16), 5),
    "gelu_block": (transformer_layer, {"heads": 2, "groups": 1, "mask": "causal", "rotary_base": 100.0, "norm": "layernorm",
                                       "activation": "gelu"}, (6, 2, 16), 8),
    "swiglu_block": (transformer_layer, {"heads": 4, "groups": 2, "mask": "none", "norm": "rmsnorm", "activation": "swiglu"},
                     (5, 3, 16), 4),
}


def main():
    tensors = {}

    def add(name, x, dy, parameters, outputs):
        tensors.update({f"{name}.x": x, f"{name}.dy": dy})
        tensors.update({f"{name}.given.{key}": value for key, value in parameters.items()})
        tensors.update({f"{name}.gives.{key}": value for key, value in outputs.items()})

    for number, (name, (layer, options, shape, head_columns)) in enumerate(CASES.items()):
        random = np.random.default_rng(number)
        x, dy = (bf16(random.standard_normal(shape)) for _ in range(2))
        parameters = parameters_of(options, shape[-1], head_columns, random)
        add(name, x, dy, parameters, layer(Gemms(), options, x, dy, parameters))
    add("integers", *integer_case({"heads": 4, "groups": 2, "mask": "causal"}))
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()},
              "tests/data/attention_layers.safetensors",
              metadata={"origin": f"tests/vectors/attention_layer_reference.py, numpy {np.__version__}, "
                                  f"mpmath {mpmath.__version__}"})


if __name__ == "__main__":
    main()
