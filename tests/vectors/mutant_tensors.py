"""Writes the tensors of the quantizer mutants of tests/data/mutants.json, which are too large to be kept.

python3 tests/vectors/mutant_tensors.py FILE.safetensors: per mutant NAME.source, NAME.codes, NAME.scale_inv and, of
nvfp4, NAME.amax, as the mutated quantizer gives them; the metadata "mutants" lists them. explain_mutants_test reads the
file, and a test that comes before it writes it. Needs numpy alone.
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


def main(path):
    kept = json.loads(mutants.PATH.read_text())["mutants"]
    listed = [mutant for mutant in kept if mutant["kind"] == "quantizer"]
    tensors = {}
    for mutant in listed:
        tensors.update(tensors_of(mutant))
    case_file.write(path, tensors, {"origin": "tests/vectors/mutant_tensors.py", "mutants": json.dumps(listed)})
    print(f"{len(listed)} mutants, {pathlib.Path(path).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
