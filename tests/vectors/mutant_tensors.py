"""Writes tensors of the mutants of tests/data/mutants.json, which are too large to be kept.

python3 tests/vectors/mutant_tensors.py FILE.safetensors: per quantizer NAME.source, NAME.codes, NAME.scale_inv and, of
nvfp4, NAME.amax, as the mutated quantizer gives them; the metadata "mutants" lists them. Of GEMMs and layers only those
that no rule names, in the metadata "without_rule": of a GEMM NAME.a, NAME.b (codes, or bf16), NAME.a_scale_inv,
NAME.b_scale_inv, NAME.c, NAME.bias, NAME.d and NAME.right, what d should be; of a layer its operands, and NAME.right.y,
NAME.mutated.y and so on.
explain_mutants_test reads the file, and a test that comes before it writes it. Needs numpy alone.
"""

import json
import pathlib
import sys

import numpy as np

import mutants  # First: it finds the folder of the others.
import case_file
import formats

CODES = {"fp8_current": "F8_E4M3", "fp8_block": "F8_E4M3", "mxfp8": "F8_E4M3", "nvfp4": "U8"}
SCALES = {"fp8_current": "F32", "fp8_block": "F32", "mxfp8": "F8_E8M0", "nvfp4": "F8_E4M3"}


def tensors_of(mutant):
    inputs, _, made = mutants.make(mutant)
    subject, name = mutant["subject"], mutant["name"]
    tensors = {f"{name}.source": formats.stored(inputs["x"], mutant["input"]["dtype"]),
               f"{name}.codes": (CODES[subject], made["codes"].astype(np.uint8)),
               f"{name}.scale_inv": (SCALES[subject], made["scale_inv"])}
    if "amax" in made:
        tensors[f"{name}.amax"] = "F32", made["amax"].astype(np.float32)
    return tensors


def gemm_tensors_of(mutant):
    inputs, right, made = mutants.make(mutant)
    name, out = mutant["name"], mutant["input"]["out"]
    tensors = {f"{name}.bias": formats.stored(inputs["bias"], "bf16"), f"{name}.d": formats.stored(made["d"], out),
               f"{name}.right": formats.stored(right["d"], out)}
    if mutant["input"]["beta"] != 0:
        tensors[f"{name}.c"] = formats.stored(inputs["c"], out)
    for operand in ("a", "b"):
        if mutant["subject"] == "bf16":
            tensors[f"{name}.{operand}"] = formats.stored(inputs[f"{operand}_values"], "bf16")
            continue
        tensors[f"{name}.{operand}"] = "F8_E4M3", inputs[f"{operand}_codes"].astype(np.uint8)
        scale = "F8_E8M0" if mutant["subject"] == "mxfp8" else "F32"
        tensors[f"{name}.{operand}_scale_inv"] = scale, inputs[f"{operand}_scale_inv"]
    return tensors


def layer_tensors_of(mutant):
    inputs, right, made = mutants.make(mutant)
    named = dict(inputs, **{f"right.{name}": values for name, values in right.items()},
                 **{f"mutated.{name}": values for name, values in made.items()})
    return {f"{mutant['name']}.{name}": formats.stored(values, "f32" if name.endswith("main_grad") else "bf16")
            for name, values in named.items()}


TENSORS_OF = {"quantizer": tensors_of, "gemm": gemm_tensors_of, "layer": layer_tensors_of}


def main(path):
    kept = json.loads(mutants.PATH.read_text())
    quantizers = [mutant for mutant in kept["mutants"] + kept["without_rule"] if mutant["kind"] == "quantizer"]
    others = [mutant for mutant in kept["without_rule"] if mutant["kind"] != "quantizer"]
    tensors = {}
    for mutant in quantizers + others:
        tensors.update(TENSORS_OF[mutant["kind"]](mutant))
    case_file.write(path, tensors, {"origin": "tests/vectors/mutant_tensors.py", "mutants": json.dumps(quantizers),
                                    "without_rule": json.dumps(others)})
    print(f"{len(quantizers) + len(others)} mutants, {pathlib.Path(path).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
