"""An independent model of delayed scaling's state in numpy, and the vectors made with it.

Written from the two update rules of docs/quantizers.md section 2 alone: the fused one as the kernel's loop, the unfused one
as torch's where, max and roll. Writes tests/data/delayed_scaling_vectors.txt. Run by hand from the repository root:
python3 tests/vectors/delayed_scaling_reference.py
"""

import pathlib

import numpy as np

F32 = np.float32
FLT_MAX = np.finfo(F32).max
INF, NAN = F32(np.inf), F32(np.nan)


def fused(scale, history, reduced, algorithm, fp8_max, margin):
    scaled_max = F32(F32(fp8_max) * F32(2.0 ** -margin))
    length = len(history)
    last = reduced if reduced != 0 else history[0]
    new_history = history.copy()
    amax = F32(0)
    if last != 0:
        shifted = np.append(history[1:], last)
        amax = np.fmax.reduce(shifted, initial=F32(0))
        new_history = np.where(np.arange(length) > 0, shifted, F32(0)).astype(F32)
    if algorithm == "most_recent":
        amax = last
    new_scale = scale
    if np.isfinite(amax) and amax > 0:
        new_scale = F32(scaled_max / amax)
    if np.isinf(new_scale):
        new_scale = FLT_MAX
    return new_scale, new_history


def unfused(scale, history, reduced, algorithm, fp8_max, margin):
    history = history.copy()
    history[0] = reduced
    amax = history.max() if algorithm == "max" else history[0]  # numpy's max propagates NaN, as torch.max does.
    rolled = np.roll(history, -1)
    rolled[0] = 0
    candidate = F32(F32(F32(fp8_max) / amax) / F32(2.0**margin))
    new_scale = np.where(amax > 0, candidate, scale)
    new_scale = np.where(np.isfinite(amax), new_scale, scale)
    new_scale = np.where(np.isinf(new_scale), FLT_MAX, new_scale)
    return F32(new_scale), rolled.astype(F32)


def word(value):
    return f"{np.array([value], F32).view(np.uint32)[0]:08x}"


def words(values):
    return ",".join(word(v) for v in values)


def traces(rng):
    """Amaxes of steps: each a run of one tensor over time."""
    tiny = F32(2.0**-149)
    yield [1.5, 2.5, 0.25, 8.0, 3.0, 0.125, 1.0, 1.0]
    yield [0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 5.0]
    yield [4.0, INF, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    yield [1.0, NAN, 2.0, 2.0, 2.0, 2.0, 2.0]
    yield [tiny, 2.0**-127, 2.0**-126, 1e-36, 3.4e38, FLT_MAX, 2.0**127]
    yield [448.0, 57344.0, 1.0 / 3.0, 2.0**-20]
    yield list(np.exp2(rng.uniform(-20, 20, 12)))


def main():
    np.seterr(all="ignore")
    path = pathlib.Path("tests/data/delayed_scaling_vectors.txt")
    rng = np.random.default_rng(11)
    count = 0
    with path.open("w") as out:
        out.write(
            f"# Delayed scaling by an independent model (tests/vectors/delayed_scaling_reference.py, numpy {np.__version__})\n"
            "# UPDATE ALGORITHM FP8_MAX MARGIN SCALE HISTORY REDUCED|- NEW_SCALE NEW_HISTORY, f32 as hexadecimal words\n")
        for rule_name, rule in (("fused", fused), ("unfused", unfused)):
            for algorithm in ("max", "most_recent"):
                for length in (1, 2, 3, 16):
                    for fp8_max, margin in ((448, 0), (448, 2), (57344, -3)):
                        for trace in traces(rng):
                            scale, history = F32(1), np.zeros(length, F32)
                            for step, amax in enumerate(trace):
                                amax = F32(amax)
                                # Row 0 accumulates with maxNum; every third step another rank saw more, or nothing.
                                history[0] = np.fmax(history[0], amax)
                                reduced = history[0]
                                given = "-"
                                if step % 3 == 2:
                                    reduced = F32(0) if step % 2 else F32(2) * history[0]
                                    given = word(reduced)
                                before = (scale, history.copy())
                                scale, history = rule(scale, history, reduced, algorithm, fp8_max, margin)
                                if length > 3 and step % 3 == 0:
                                    continue
                                out.write(f"{rule_name} {algorithm} {fp8_max} {margin} {word(before[0])} {words(before[1])} "
                                          f"{given} {word(scale)} {words(history)}\n")
                                count += 1
    print(count, "updates")


if __name__ == "__main__":
    main()
