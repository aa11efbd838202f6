"""A GEMM of my own, in numpy: is it the arithmetic that it should be, and if not, what is wrong with it?

    python examples/my_gemm.py
"""

import numpy as np

import quantgate as qg

TILE = 32  # Of K.


def matmul(a, b, tiles):
    """bf16 [M][K], [N][K] -> f32 [M][N], fp32 sums in order of k, over so many tiles of K."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    d = np.zeros((len(a), len(b)), np.float32)
    for tile in range(tiles):
        for k in range(tile * TILE, min((tile + 1) * TILE, a.shape[1])):
            # The product of two bf16 numbers is exact in fp32, so that this rounds once: a fused multiply-add.
            d += a[:, k, None] * b[None, :, k]
    return d


a = qg.generate("normal", (64, 264), "bf16", seed=1)
b = qg.generate("normal", (48, 264), "bf16", seed=2)
expected = qg.gemm(a, b, arithmetic="fp32").d

# One fused multiply-add after the other is the arithmetic fp32, bit for bit.
report = qg.diff(matmul(a, b, tiles=9), expected, names=("mine", "fp32"))
print(report)
assert report.passed

# 264 is no whole number of tiles, and this one forgets the rest.
wrong = matmul(a, b, tiles=264 // TILE)
report = qg.diff(wrong, expected, names=("mine", "fp32"))
print(report.verdict.finding)
assert not report.passed

# With the operands at hand: which arithmetic made these bits, or what went wrong?
explanation = qg.explain(a=a, b=b, d=wrong)  # print(explanation) has the candidates, best first.
print("cause:", explanation.diagnosis.sentence)
assert not explanation.is_established
