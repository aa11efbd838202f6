"""What gfloat makes of the sources: MX blocks and plain roundings in several modes, by its own calls."""

import importlib.metadata

import gfloat
import numpy as np
from gfloat import formats as known

import case_file
from case_file import Recorder

OUT = Recorder("gfloat", importlib.metadata.version("gfloat"), f"numpy {np.__version__}")
X = {name: case_file.Source(*tensor).values for name, tensor in case_file.sources().items()}
BLOCKS = {"e4m3": known.format_info_mxfp8_e4m3, "e5m2": known.format_info_mxfp8_e5m2,
          "e2m3": known.format_info_mxfp6_e2m3, "e3m2": known.format_info_mxfp6_e3m2,
          "e2m1": known.format_info_mxfp4_e2m1, "int8": known.format_info_mxint8}
FORMATS = {"e4m3": known.format_info_ocp_e4m3, "e5m2": known.format_info_ocp_e5m2,
           "e2m3": known.format_info_ocp_e2m3, "e3m2": known.format_info_ocp_e3m2,
           "e2m1": known.format_info_ocp_e2m1}
MODES = {"even": gfloat.RoundMode.TiesToEven, "away": gfloat.RoundMode.TiesToAway, "zero": gfloat.RoundMode.TowardZero}


def mx(source, element, rows, mode="even"):
    values = X[source].reshape(-1, X[source].shape[-1])[:rows].astype(np.float64)
    made = []
    for block in values.reshape(-1, 32):
        scale = gfloat.compute_scale_amax(BLOCKS[element].etype.emax, block)
        made.append(list(gfloat.encode_block(BLOCKS[element], scale, block / scale, MODES[mode])))
    made = np.array(made, np.uint8)
    OUT.add(f"mx_{element}_{mode}_{source}", source, "gfloat_mx", dict(
        codes=("U8", made[:, 1:].reshape(values.shape)), scale=("F8_E8M0", made[:, :1].reshape(rows, -1))),
        format=element, block="1x32", call=f"compute_scale_amax, encode_block({BLOCKS[element].name}, {mode})",
        element=element, rows=rows, mode=mode)


def plain(source, element, mode):
    rounded = gfloat.round_ndarray(FORMATS[element], X[source].astype(np.float64), MODES[mode], sat=True)
    codes = gfloat.encode_ndarray(FORMATS[element], rounded)
    OUT.add(f"cast_{element}_{mode}_{source}", source, "gfloat_cast", dict(codes=("U8", codes.astype(np.uint8))),
            format=element, block="none", scale_is="none", call=f"round_ndarray(sat=True), encode_ndarray({mode})",
            element=element, mode=mode)


def main():
    for element in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"):
        mx("normal_f32", element, 16)
        mx("ladder_bf16", element, 32)
        mx("zeros_bf16", element, 16)
    mx("normal_f32", "int8", 16)
    mx("ties_e2m1_bf16", "e2m1", 16)
    mx("ties_e4m3_bf16", "e4m3", 16, "away")
    mx("normal_f32", "e4m3", 16, "zero")
    for element in FORMATS:
        source = f"ties_{element}_" + ("f32" if element in ("e4m3", "e5m2") else "bf16")
        for mode in MODES:
            plain(source, element, mode)
        plain("wide_bf16", element, "even")
    OUT.write()


if __name__ == "__main__":
    main()
