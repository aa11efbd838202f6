"""What gguf makes of the sources: blocks of ggml, as bytes, by its own calls."""

import importlib.metadata

import gguf
import numpy as np

import case_file
from case_file import Recorder

OUT = Recorder("gguf", importlib.metadata.version("gguf"), f"numpy {np.__version__}")
X = {name: case_file.Source(*tensor).values for name, tensor in case_file.sources().items()}
LAYOUTS = {
    "Q8_0": "34 bytes: f16 scale, 32 int8",
    "Q4_0": "18 bytes: f16 scale, 16 bytes with element i low and i + 16 high, codes + 8",
    "Q4_1": "20 bytes: f16 scale, f16 least value, 16 bytes as Q4_0",
    "Q5_0": "22 bytes: f16 scale, 32 fifth bits, 16 bytes as Q4_0, codes + 16",
    "Q5_1": "24 bytes: f16 scale, f16 least value, 32 fifth bits, 16 bytes as Q4_0",
    "MXFP4": "17 bytes: E8M0 scale, 16 bytes with element i low and i + 16 high",
    "TQ2_0": "66 bytes: 64 bytes with four codes + 1 each, f16 scale",
}


def blocks(source, kind):
    made = gguf.quantize(X[source], gguf.GGMLQuantizationType[kind])
    size = 256 if kind.startswith("TQ") else 32
    OUT.add(f"{kind}_{source}", source, f"gguf_{kind.lower()}", dict(codes=("U8", made)), format=kind,
            block=f"1x{size}", packing=LAYOUTS[kind], scale_is="in the codes", call=f"gguf.quantize({kind})")


def main():
    for source in ("normal_f32", "normal_bf16", "normal_f16", "ties_int8_f32", "narrow_f16", "cube_f32", "amaxes_bf16"):
        blocks(source, "Q8_0")
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        for source in ("normal_f32", "normal_bf16", "ties_int4_f32", "weight_bf16"):
            blocks(source, kind)
    for source in ("normal_f32", "normal_bf16", "ladder_f32", "ladder_bf16", "ties_e2m1_f32", "ties_e2m1_bf16",
                   "wide_f32", "cube_bf16", "ragged_f32"):
        blocks(source, "MXFP4")
    blocks("weight_bf16", "TQ2_0")
    OUT.write()


if __name__ == "__main__":
    main()
