"""Holds every stored case of tests/data/libraries to its rule: each tensor anew from its source, bit for bit.

python3 tests/vectors/libraries/check_rules.py [FILE...]: counts per library; exits 1 where a byte differs, a case has
no rule, a tensor belongs to no case, a rule that no case needs is not in WITHOUT_CASES, or cases are too few. Needs
numpy alone.
"""

import collections
import inspect
import json
import pathlib
import sys

import numpy as np

import case_file
import rules

LEAST_CASES = {"file": 20, "all": 600}


def rule_of(name):
    """The rule, if rules.py defines a function of this name that takes a source and a case."""
    function = getattr(rules, name, None)
    if not inspect.isfunction(function) or function.__module__ != "rules":
        return None
    return function if list(inspect.signature(function).parameters)[:2] == ["x", "case"] else None


def bytes_of(tensor):
    dtype, array = tensor
    return np.ascontiguousarray(array).astype(case_file.WIDTHS[dtype], copy=False).reshape(-1).view(np.uint8)


def failures_of_case(case, tensors, sources):
    """What is wrong with a case, and how many elements were compared."""
    function = rule_of(case["rule"])
    if function is None:
        return [f"no rule {case['rule']}"], 0
    x = case_file.Source(*sources[case["source"].removesuffix(".source")])
    made = function(x, case, **case["arguments"])
    kept = {name.removeprefix(case["name"] + "."): tensor for name, tensor in tensors.items()
            if name.rsplit(".", 1)[0] == case["name"]}
    failures, elements = [], 0
    if set(kept) != set(made):
        failures.append(f"stored {sorted(kept)}, the rule makes {sorted(made)}")
    for kind in sorted(set(kept) & set(made)):
        if kept[kind][0] != made[kind][0] or kept[kind][1].size != np.size(made[kind][1]):
            failures.append(f"{kind}: stored {kept[kind][0]} x {kept[kind][1].size}, the rule makes {made[kind][0]} x "
                            f"{np.size(made[kind][1])}")
            continue
        elements += kept[kind][1].size
        width = np.dtype(case_file.WIDTHS[kept[kind][0]]).itemsize
        differ = (bytes_of(kept[kind]) != bytes_of(made[kind])).reshape(-1, width).any(axis=1)
        if differ.any():
            failures.append(f"{kind}: {differ.sum()} of {differ.size} differ, the first at {np.argmax(differ)}")
    return failures, elements


def check_file(path, sources):
    """(library and version, cases, elements, failures)"""
    tensors, metadata = case_file.read(path)
    cases = json.loads(metadata["cases"])
    names = {case["name"] for case in cases}
    failures = [f"{name} belongs to no case" for name in tensors if name.rsplit(".", 1)[0] not in names]
    elements = 0
    for case in cases:
        wrong, count = failures_of_case(case, tensors, sources)
        failures += [f"{case['name']}: {reason}" for reason in wrong]
        elements += count
    if len(names) != len(cases) or len(cases) < LEAST_CASES["file"]:
        failures.append(f"{len(cases)} cases of {len(names)} names, at least {LEAST_CASES['file']} are needed")
    return f"{metadata['library']} {metadata['version']}", cases, elements, failures


def main(arguments):
    sources = case_file.sources()
    paths = [pathlib.Path(path) for path in arguments] or [
        path for path in sorted(case_file.FOLDER.glob("*.safetensors")) if path.name != "sources.safetensors"]
    failed, totals, used = [], collections.Counter(), set()
    for path in paths:
        library, cases, elements, failures = check_file(path, sources)
        used |= {case["rule"] for case in cases}
        totals.update(cases=len(cases), elements=elements)
        print(f"{library:28} {len(cases):4} cases {elements:9} elements {len(failures):4} failures")
        failed += [f"{path.name}: {failure}" for failure in failures]
    print(f"{'all':28} {totals['cases']:4} cases {totals['elements']:9} elements, {len(used)} rules")
    if not arguments:
        if totals["cases"] < LEAST_CASES["all"]:
            failed.append(f"{totals['cases']} cases, at least {LEAST_CASES['all']} are needed")
        unused = {name for name in vars(rules) if rule_of(name)} - used - set(rules.WITHOUT_CASES)
        failed += [f"rules.py: {name} is the rule of no case" for name in sorted(unused)]
    for failure in failed:
        print("FAILED", failure)
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
