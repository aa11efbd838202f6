"""Writes tests/data/level_vectors.safetensors: what the rules of rules.py make of hostile values, as codes of levels.

Its cases are in the form of a library's file (case_file.py) with their sources beside them. rules.py is numpy alone, and
is held to what the libraries made (check_rules.py); here it meets what their cases lack: ragged tails, zeros of both
signs, subnormals, the largest values, ties at every code, and infinities. "tame" sources have no subnormals, for rules
that multiply by an infinite reciprocal of them and cast the infinity, of which a processor makes what it likes.
"""

import json
import pathlib

import numpy as np

import case_file
import formats
import rules

F32 = np.float32
OUT = pathlib.Path(__file__).resolve().parents[2] / "data" / "level_vectors.safetensors"
LARGEST = {"f32": F32(3.4028235e38), "bf16": F32(3.3895314e38), "f16": F32(65504)}
LEAST = {"f32": F32(2.0**-149), "bf16": F32(2.0**-133), "f16": F32(2.0**-24)}


def hostile(dtype, seed, columns, infinite, least):
    """Twelve rows of `columns`, one of multiples of `least`."""
    random = np.random.default_rng(seed)
    rows = []
    rows.append(np.zeros(columns))
    rows.append(np.full(columns, -0.0))
    rows.append(random.integers(-9, 9, columns) * least)
    rows.append(np.where(random.random(columns) < 0.5, -1, 1) * float(LARGEST[dtype]))
    rows.append(random.integers(-255, 256, columns) / 2.0)  # Ties between codes, once the amax is 127 or 127.5.
    rows[-1][0] = 127
    rows.append(random.integers(-15, 16, columns) / 2.0)
    rows[-1][0] = -7.5
    rows.append(np.abs(random.standard_normal(columns)) + 3)  # No zero among them.
    rows.append(-np.abs(random.standard_normal(columns)) - 3)
    rows.append(np.full(columns, 0.375))
    rows.append(random.standard_normal(columns) * 2.0 ** random.integers(-12, 12, columns))
    rows.append(np.where(np.arange(columns) % 7 == 3, least, -0.0))
    rows.append(random.standard_normal(columns))
    if infinite:
        rows[-1][1] = np.inf
        rows[-2][2] = -np.inf
    return formats.round_to(np.array(rows).astype(F32), dtype)


def calls():
    """(library, rule, block, arguments, dtypes, sources)"""
    every, ragged = ("f32", "bf16", "f16"), ("plain", "ragged", "infinite")
    whole = ("plain", "infinite")
    for mapping in ("SYMMETRIC", "ASYMMETRIC"):
        for low, high in ((-128, 127), (-8, 7)):
            for wide in (True, False):
                for block in ("row", "tensor", "1x32"):
                    yield "torchao", "torchao_int", block, dict(mapping=mapping, low=low, high=high, scale_in_f32=wide), \
                        every, ("plain", "ragged")
    for bits in (8, 4):
        for symmetric in (True, False):
            for block in ("row", "1x32"):
                yield "compressed_tensors", "compressed_int", block, dict(bits=bits, symmetric=symmetric, packed=False), \
                    every, ("plain", "ragged")
    for block in ("row", "1x32", "tensor"):
        yield "modelopt", "modelopt_int8", block, {}, every, ragged
        yield "optimum_quanto", "quanto_eight_bits", block, dict(element="int8"), every, ragged
    yield "modelopt", "modelopt_int4", "1x32", {}, every, ("plain", "infinite")
    yield "torchao", "torchao_tinygemm", "1x32", {}, every, ("plain",)
    for kind in ("nf4", "fp4"):
        yield "bitsandbytes", "bitsandbytes_four_bits", "", dict(size=64, kind=kind), every, ("plain", "ragged")
    yield "bitsandbytes", "bitsandbytes_int8", "row", dict(threshold=0.0), every, ("tame", "tame_ragged")
    yield "transformers", "transformers_bitnet", "row", {}, every, whole
    yield "gguf", "gguf_q8_0", "1x32", {}, every, ("tame",)
    yield "gguf", "gguf_q4_0", "1x32", {}, every, ("plain",)
    yield "gguf", "gguf_q4_1", "1x32", {}, every, ("plain",)
    for library, levels in (("torchao", None), ("modelopt", "bf16")):
        yield library, "nf4_of_rounded_quotient", "1x64", dict(levels_in=levels), ("f32", "bf16"), ("plain",)
    for kind in ("int8", "int4"):
        for method in ("absmax", "minmax"):
            yield "qwix", "qwix", "1x32", dict(kind=kind, method=method), every, ("plain",)


def main():
    tensors, cases, sources = {}, [], {}
    for dtype in ("f32", "bf16", "f16"):
        for name, columns in (("plain", 128), ("ragged", 74), ("infinite", 128), ("tame", 128), ("tame_ragged", 74)):
            least = 0.25 if name.startswith("tame") else float(LEAST[dtype])
            values = hostile(dtype, len(sources), columns, name == "infinite", least)
            sources[dtype, name] = values
            tensors[f"{name}_{dtype}.source"] = formats.stored(values, dtype)
    for library, rule, block, arguments, dtypes, names in calls():
        for dtype in dtypes:
            for source in names:
                used = dict(arguments)
                if used.get("levels_in", "") is None:
                    used["levels_in"] = dtype
                x = case_file.Source("F32", sources[dtype, source])
                x.dtype = dtype
                name = f"{len(cases)}"
                with np.errstate(all="ignore"):
                    made = getattr(rules, rule)(x, dict(block=block), **used)
                for kind, tensor in made.items():
                    if kind != "table":
                        tensors[f"{name}.{kind}"] = tensor
                cases.append(dict(name=name, library=library, source=f"{source}_{dtype}.source", rule=rule,
                                  arguments=used, block=block))
    case_file.write(OUT, tensors, {"origin": "tests/vectors/libraries/level_reference.py, numpy " + np.__version__,
                                   "cases": json.dumps(cases)})
    print(len(cases), "cases", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
