"""Breaks what check_rules.py guards, each thing once, and demands that it is seen.

One bit of every stored tensor, a tensor too many and one too few, a rule that is not there, another argument; of a
whole file a tensor of no case, too few cases, a case twice, and a wrong byte by the exit code. Exits 1, and says where,
if any of it passes.
"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile

import numpy as np

import case_file
import check_rules


def with_a_bit_turned(tensor, random):
    dtype, array = tensor
    raw = np.array(array).reshape(-1).view(np.uint8)
    raw[random.integers(raw.size)] ^= np.uint8(1 << random.integers(8))
    return dtype, raw.view(case_file.WIDTHS[dtype]).reshape(array.shape)


def unseen(path, sources, random):
    """What was broken in a file's cases and not seen, and how much was broken."""
    tensors, metadata = case_file.read(path)
    missed, broken = [], 0

    def expect_failure(case, changed, what):
        nonlocal broken
        broken += 1
        failures, _ = check_rules.failures_of_case(case, changed, sources)
        if not failures:
            missed.append(f"{path.name}: {case['name']}: {what}")

    for case in json.loads(metadata["cases"]):
        own = {name: tensor for name, tensor in tensors.items() if name.rsplit(".", 1)[0] == case["name"]}
        for name, tensor in own.items():
            expect_failure(case, own | {name: with_a_bit_turned(tensor, random)}, f"a bit of {name}")
            expect_failure(case, {other: own[other] for other in own if other != name}, f"without {name}")
        expect_failure(case, own | {f"{case['name']}.more": next(iter(own.values()))}, "one more tensor")
        expect_failure(dict(case, rule=case["rule"] + "_of_nobody"), own, "no such rule")
        if case["arguments"].get("element") == "e4m3":
            expect_failure(dict(case, arguments=dict(case["arguments"], element="e5m2")), own, "of another format")
    return missed, broken


def unseen_in_file(path):
    """What was broken of a whole file and not seen by check_rules.py's exit code."""
    tensors, metadata = case_file.read(path)
    cases = json.loads(metadata["cases"])
    few = cases[:check_rules.LEAST_CASES["file"] - 1]
    names = {case["name"] for case in few}
    first = next(iter(tensors))
    changes = {
        "of nobody": (tensors | {"nobody.codes": tensors[first]}, cases),
        "few cases": ({name: t for name, t in tensors.items() if name.rsplit(".", 1)[0] in names}, few),
        "a case twice": (tensors, cases + cases[:1]),
        "a bit": (tensors | {first: with_a_bit_turned(tensors[first], np.random.default_rng(1))}, cases)}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name

        def exit_code(changed, kept):
            case_file.write(copy, changed, dict(metadata, cases=json.dumps(kept)))
            with contextlib.redirect_stdout(io.StringIO()):
                return check_rules.main([str(copy)])

        if exit_code(tensors, cases) != 0:
            missed.append(f"{path.name}: an unchanged copy fails")
        missed += [f"{path.name}: {what}" for what, change in changes.items() if exit_code(*change) != 1]
    return missed, len(changes)


def main():
    random, sources = np.random.default_rng(20), case_file.sources()
    paths = [path for path in sorted(case_file.FOLDER.glob("*.safetensors")) if path.name != "sources.safetensors"]
    missed, broken = unseen_in_file(paths[0])
    for path in paths:
        more_missed, more_broken = unseen(path, sources, random)
        missed, broken = missed + more_missed, broken + more_broken
    print(f"{broken} times broken, {len(missed)} times unseen")
    for reason in missed:
        print("FAILED", reason)
    return 1 if missed or broken < 3800 else 0


if __name__ == "__main__":
    sys.exit(main())
