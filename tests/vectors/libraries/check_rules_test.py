"""Breaks what check_rules.py guards, each thing once, and demands that it is seen.

One bit of every stored tensor, a tensor too many and one too few, a rule that is not there, another argument.
Exits 1, and says where, if any of it passes.
"""

import json
import sys

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


def main():
    random, sources = np.random.default_rng(20), case_file.sources()
    paths = [path for path in sorted(case_file.FOLDER.glob("*.safetensors")) if path.name != "sources.safetensors"]
    missed, broken = [], 0
    for path in paths:
        more_missed, more_broken = unseen(path, sources, random)
        missed, broken = missed + more_missed, broken + more_broken
    print(f"{broken} times broken, {len(missed)} times unseen")
    for reason in missed:
        print("FAILED", reason)
    return 1 if missed or broken < 2000 else 0


if __name__ == "__main__":
    sys.exit(main())
