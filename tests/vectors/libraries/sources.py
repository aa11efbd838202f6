"""Writes tests/data/libraries/sources.safetensors: the tensors that the libraries quantize, from fixed seeds."""

import numpy as np

import case_file
import formats

F32 = np.float32


def normal(seed, shape):
    """Normal values with outliers, zeros of both signs among them; no block of 16 is all zeros."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape).astype(F32) * F32(0.7)
    kind = random.random(shape)
    values = np.where(kind < 0.01, values * F32(30), values)
    values = np.where((kind > 0.97) & (kind < 0.985), F32(0), values)
    return np.where(kind > 0.985, F32(-0.0), values).astype(F32)


def zero_rows(seed, shape):
    """The same with rows of zeros, of negative zeros, of both, a row of subnormals of fp32 and one of small numbers."""
    random = np.random.default_rng(seed + 1)
    values = normal(seed, shape)
    values[1] = 0
    values[2] = F32(-0.0)
    values[3] = np.where(random.random(shape[1]) < 0.5, F32(0), F32(-0.0))
    values[4] = (random.integers(-4000, 4000, shape[1]) * 2.0**-149).astype(F32)
    values[5] = (random.standard_normal(shape[1]) * 2.0**-110).astype(F32)
    values[6, : shape[1] // 2] = 0
    return values


def wide(seed, shape, low, high):
    """Rows whose size steps through powers of two from 2^low to 2^high."""
    exponents = np.linspace(low, high, shape[0]).round()
    return (normal(seed, shape) * np.exp2(exponents)[:, None]).astype(F32)


def ladder(seed, shape, maxima, low, span):
    """Blocks of 16 whose amaxes are powers of two times each maximum, or an ulp of bf16 or fp32 below or above that."""
    random = np.random.default_rng(seed)
    values = random.uniform(-0.95, 0.95, (shape[0], shape[1] // 16, 16))
    count = values.shape[0] * values.shape[1]
    index = np.arange(count)
    steps = [0, 2.0**-7, -(2.0**-8), 2.0**-23, -(2.0**-24)]
    top = np.array(maxima)[index % len(maxima)] * np.exp2(low + index // (5 * len(maxima)) % span)
    top = top * (1 + np.array(steps)[index // len(maxima) % 5])
    values = values * top.reshape(values.shape[:2])[..., None]
    place = random.integers(0, 16, count)
    signs = random.choice([-1.0, 1.0], count)
    values.reshape(count, 16)[index, place] = top * signs
    return values.reshape(shape).astype(F32)


def ties(seed, shape, levels, half_step_only=True):
    """Rows that hold a format's midpoints times a power of two, each block of 16 with the largest value in it."""
    random = np.random.default_rng(seed)
    levels = np.asarray(levels, np.float64)
    middles = (levels[1:] + levels[:-1]) / 2
    pool = middles if half_step_only else np.concatenate([middles, levels])
    values = random.choice(pool, shape) * random.choice([-1.0, 1.0], shape)
    blocks = values.reshape(shape[0], -1, 16)
    blocks[..., 0] = levels[-1]
    scales = np.exp2(random.integers(-4, 4, shape[0]))[:, None, None]
    return (blocks * scales).reshape(shape).astype(F32)


def special(seed, shape):
    """Blocks of 32 with NaN, with infinities and with both, among finite ones."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape).astype(F32)
    rows = values.reshape(-1, 32)
    rows[1::5, 3] = np.inf
    rows[2::5, 9] = -np.inf
    rows[3::5, 30] = np.nan
    rows[4::10, 0], rows[4::10, 1] = np.inf, np.nan
    return values


def integer_levels(largest):
    return np.arange(0, largest + 1)


def make():
    """Every source, by name; the name ends in its dtype."""
    made = {}

    def add(name, values, *dtypes):
        for dtype in dtypes:
            with np.errstate(**formats.QUIET):
                made[f"{name}_{dtype}"] = formats.stored(formats.round_to(values, dtype), dtype)

    add("normal", normal(1, (64, 128)), "bf16", "f16", "f32")
    add("weight", normal(2, (128, 256)) * F32(0.05), "bf16")
    add("zeros", zero_rows(3, (32, 128)), "bf16", "f16", "f32")
    add("wide", wide(4, (64, 128), -20, 20), "bf16", "f32")
    add("narrow", wide(5, (32, 128), -8, 8), "f16")
    add("ladder", ladder(6, (64, 128), (448, 6, 1, 1.75, 7.5, 28, 57344), -14, 8), "bf16", "f32")
    add("ties_e2m1", ties(7, (32, 128), formats.magnitudes("e2m1")), "bf16", "f32")
    add("ties_e4m3", ties(8, (32, 128), formats.magnitudes("e4m3")[40:]), "bf16", "f32")
    add("ties_e5m2", ties(9, (32, 128), formats.magnitudes("e5m2")[60:]), "f32")
    add("ties_e2m3", ties(10, (32, 128), formats.magnitudes("e2m3")), "bf16")
    add("ties_e3m2", ties(11, (32, 128), formats.magnitudes("e3m2")), "bf16")
    add("ties_int8", ties(12, (32, 128), integer_levels(127)), "bf16", "f32")
    add("ties_int4", ties(13, (32, 128), integer_levels(7)), "bf16", "f32")
    add("cube", normal(14, (3, 32, 128)), "bf16", "f32")
    add("ragged", normal(15, (37, 96)), "bf16", "f32")
    add("odd", normal(16, (20, 200)), "bf16", "f32")
    add("special", special(17, (32, 128)), "bf16", "f32")
    # One block of each amax of bf16 within two octaves: every quotient by a constant that bf16 can round.
    amaxes = np.arange(0x3F80, 0x4080, dtype=np.uint32) << np.uint32(16)
    every = np.random.default_rng(18).uniform(-1, 1, (64, 128)).astype(F32).reshape(256, 32)
    every = every * amaxes.view(F32)[:, None]
    every[:, 5] = amaxes.view(F32)
    add("amaxes", every.reshape(64, 128), "bf16")
    return made


def main():
    made = make()
    path = case_file.FOLDER / "sources.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    case_file.write(path, {f"{name}.source": tensor for name, tensor in made.items()}, {
        "origin": f"tests/vectors/libraries/sources.py, numpy {np.__version__}"})
    print(f"{len(made)} sources, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
