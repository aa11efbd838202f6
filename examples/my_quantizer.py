"""A quantizer of my own, MXFP8 in numpy by the OCP Microscaling specification: is it right, and whose rule is it?

    python examples/my_quantizer.py
"""

import ml_dtypes
import numpy as np

import quantgate as qg

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BLOCK, EMAX, MAX = 32, 8, 448  # Elements under one scale; exponent and value of E4M3's largest number.


def quantize_mxfp8(x):
    """f32 [M][K] -> codes E4M3 [M][K], scales E8M0 [M][K/32]: 2^(floor(log2 amax) - 8), as section 6.3 has it."""
    blocks = x.reshape(x.shape[0], -1, BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    exponent = np.frexp(amax)[1] - 1 - EMAX  # frexp's mantissa is below 1, so that its exponent is one more than the floor.
    codes = np.ldexp(blocks, -exponent[..., None]).clip(-MAX, MAX).astype(E4M3)
    return codes.reshape(x.shape), (exponent + 127).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)


x = qg.generate("normal", (256, 512), seed=1)
codes, scales = quantize_mxfp8(x)
mine = {"rowwise_data": codes, "rowwise_scale_inv": scales}

# The specification's rule is a knob of the recipe: the same codes and scales, bit for bit.
report = qg.diff(mine, qg.quantize(x, "mxfp8:scale_rule=floor").tensors, names=("mine", "floor"))
print(report)
assert report.passed

# Training frameworks round the scale up instead, so that nothing saturates: another rule, and other codes.
report = qg.diff(mine, qg.quantize(x, "mxfp8").tensors, names=("mine", "mxfp8"))
print(report)
assert not report.passed
first = next(c for c in report.comparisons if c.tensor == "rowwise_data").parity.first
row, column = first.coordinate
print(f"first wrong element: x[{row}, {column}] = {x[row, column]} is {first.subject}, expected {first.reference}")

# Without knowing any rule: what made these codes?
explanation = qg.explain(source=x, codes=codes, scale_inv=scales)
print(f"these codes: {explanation.codes[0].scale_rule}; {explanation.codes[0].element_rule}")
assert explanation.is_established
