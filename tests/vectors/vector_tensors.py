"""The tensors of the quantizer vectors, as one-line descriptions that tests/quantize/vector_tensors.cc reads too.

    hex NAME SOURCE SHAPE BYTES
    real NAME SOURCE SHAPE TENSOR ROW COLUMN             a window of data/bytegpt_block1.safetensors, cast
    mix NAME SOURCE SHAPE SEED LOW SPAN SPECIALS         random signs and mantissas, biased exponents LOW ... LOW+SPAN-1;
                                                         one element in SPECIALS (0: none) is 0, -0, infinite or NaN
    ladder NAME SOURCE SHAPE SEED TALL WIDE LOW SPAN     tiles of TALL x WIDE whose amaxes step through powers of two,
                                                         1.75 times them, and one ulp around; biased exponents as above
"""

import numpy as np
from safetensors.numpy import load_file

from number_formats import F32, SOURCES

MANTISSA_BITS = {"bf16": 7, "f16": 10, "f32": 23}
EXPONENT_BITS = {"bf16": 8, "f16": 5, "f32": 8}


def mix64(seed, index):
    """64 well-mixed bits of (seed, index): two rounds of multiply and xor-shift."""
    with np.errstate(over="ignore"):
        x = np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15) + index.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def as_source(codes, source):
    storage = np.uint32 if source == "f32" else np.uint16
    return codes.astype(storage).view(SOURCES[source])


def mix_tensor(source, shape, seed, low, span, specials):
    mantissa_bits, exponent_bits = MANTISSA_BITS[source], EXPONENT_BITS[source]
    h = mix64(seed, np.arange(int(np.prod(shape)), dtype=np.uint64))
    field = np.uint64(low) + (h >> np.uint64(8)) % np.uint64(span)
    mantissa = (h >> np.uint64(32)) & np.uint64((1 << mantissa_bits) - 1)
    sign = (h & np.uint64(1)) << np.uint64(mantissa_bits + exponent_bits)
    codes = (field << np.uint64(mantissa_bits)) | mantissa
    if specials:
        infinity = np.uint64(((1 << exponent_bits) - 1) << mantissa_bits)
        kinds = np.array([0, infinity, infinity | np.uint64(1 << (mantissa_bits - 1)), 0], np.uint64)
        special = (h >> np.uint64(20)) % np.uint64(specials) == 0
        codes = np.where(special, kinds[((h >> np.uint64(1)) % np.uint64(4)).astype(int)], codes)
    return as_source(codes | sign, source).reshape(shape)


def ladder_tensor(source, shape, seed, tall, wide, low, span):
    mantissa_bits, exponent_bits = MANTISSA_BITS[source], EXPONENT_BITS[source]
    rows, columns = shape
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    tile = (r // tall) * -(-columns // wide) + c // wide
    base = (low + (tile // 6) % span) << mantissa_bits
    amax = base + np.array([0, 1, -1, 3 << (mantissa_bits - 2), (3 << (mantissa_bits - 2)) + 1,
                            (3 << (mantissa_bits - 2)) - 1])[tile % 6]
    amax = np.maximum(amax, 0).astype(np.uint64)
    position = (r % tall) * wide + c % wide
    h = mix64(seed, (r * columns + c).astype(np.uint64))
    top = mix64(seed + 1, tile.astype(np.uint64)) % np.uint64(tall * wide) == position.astype(np.uint64)
    codes = np.where(top, amax, (h >> np.uint64(8)) % (amax + np.uint64(1)))
    sign = (h & np.uint64(1)) << np.uint64(mantissa_bits + exponent_bits)
    return as_source(codes | sign, source)


class TensorWriter:
    """Tensors by name and source, and the lines that describe them."""

    def __init__(self):
        self.lines, self.tensors, self._real = [], {}, None

    def _add(self, kind, name, source, shape, rest, values):
        self.lines.append(f"{kind} {name} {source} {'x'.join(map(str, shape))} {rest}\n")
        self.tensors[name, source] = values

    def hex(self, name, source, values):
        with np.errstate(over="ignore"):
            cast = np.asarray(values).astype(F32).astype(SOURCES[source])
        self._add("hex", name, source, cast.shape, cast.tobytes().hex(), cast)

    def real(self, name, source, tensor, row, column, rows, columns):
        if self._real is None:
            self._real = load_file("data/bytegpt_block1.safetensors")
        window = self._real[tensor][row:row + rows, column:column + columns]
        values = np.ascontiguousarray(window).astype(F32).astype(SOURCES[source])
        self._add("real", name, source, values.shape, f"{tensor} {row} {column}", values)

    def mix(self, name, source, shape, seed, low, span, specials=0):
        self._add("mix", name, source, shape, f"{seed} {low} {span} {specials}",
                  mix_tensor(source, shape, seed, low, span, specials))

    def ladder(self, name, source, shape, seed, tall, wide, low, span):
        self._add("ladder", name, source, shape, f"{seed} {tall} {wide} {low} {span}",
                  ladder_tensor(source, shape, seed, tall, wide, low, span))


def as_matrix(values):
    """[M][K], M the product of all dims but the last."""
    return values.reshape(-1, values.shape[-1])
