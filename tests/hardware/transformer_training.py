#!/usr/bin/env python3
"""Trains two transformer layers for some steps under every recipe and backward mode, on one rank and on two.

    transformer_training.py QUANTGATE DEVICE OUT.json [--rounds 20] [--tokens 256] [--width 512] [RECIPE/MODE ...]

Two ranks divide the weights, with sequence parallelism, once without overlap and once with overlap default: these two
must have the same bits in every tensor of every step (docs/ranks.md section 10), or the program exits 1. One rank
differs from two, since sums over ranks round in another order and per-tensor scales are each rank's: its first outputs
and the share of equal elements are printed. The digest covers parity, error, scales and counts of every tensor and
quantization, not the bits themselves: two devices with the same bits print the same digest.
"""
import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

RECIPES = ("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4",
           "nvfp4", "hybrid:fprop=fp8_current,dgrad=mxfp8,wgrad=mxfp8")
WITHOUT_OVERRIDES = ("bf16", "fp8_delayed")
MODES = ("none", "high_precision", "dequantized")
ONE_RANK, TWO_RANKS, OVERLAPPED = range(3)


def trace(tokens, width, rounds):
    """A SessionTrace: forward, backward and update of two layers of 8 heads, all tensors generated."""
    seeds = iter(range(1, 100))

    def normal(scale, *shape):
        return f"gen:normal,seed={next(seeds)},shape={'x'.join(map(str, shape))},scale={scale:g}"

    layers, parameters = [], {}
    for name in ("block1", "block2"):
        layers.append({"name": name, "layer": {
            "kind": "transformer_layer", "parallel_mode": "column", "activation": {"kind": "gelu"},
            "attention": {"heads": 8, "mask": "causal", "rotary_base": 10000}}})
        for module, rows, columns in (("qkv", 3 * width, width), ("proj", width, width), ("fc1", 4 * width, width),
                                      ("fc2", width, 4 * width)):
            parameters[f"{name}.{module}.weight"] = normal(columns**-0.5, rows, columns)
            parameters[f"{name}.{module}.bias"] = normal(0.1, rows)
        for norm in ("norm1", "norm2"):
            parameters[f"{name}.{norm}.gamma"] = normal(1, width)
            parameters[f"{name}.{norm}.beta"] = normal(0.1, width)
    steps = [{"forward": {}, "x": normal(1, tokens, width)},
             {"backward": {}, "grad_output": normal(0.01, tokens, width)}, {"optimize": {}}]
    return {"spec": {"layers": layers, "masters": "f32", "adam": {"learning_rate": 0.001}},
            "parameters": parameters, "steps": steps, "rounds": rounds}


def digest_of(report):
    digest = hashlib.sha256()
    for tensor in report["tensors"]:
        kept = {key: tensor[key] for key in ("step", "variant", "tensor", "parity", "error")}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    for record in report["quantizations"]:
        kept = {key: record[key] for key in ("step", "variant", "rank", "name", "amax_bits", "scale_bits", "counts")}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()


def summary(report):
    counts = {ONE_RANK: [0, 0], OVERLAPPED: [0, 0]}
    for tensor in report["tensors"]:
        counts[tensor["variant"]][0] += tensor["parity"]["element_count"]
        counts[tensor["variant"]][1] += tensor["parity"]["mismatch_count"]
    first = next(tensor for tensor in report["tensors"] if tensor["variant"] == ONE_RANK and tensor["tensor"] == "y")
    return {"elements": counts[OVERLAPPED][0], "overlap_differs": counts[OVERLAPPED][1],
            "one_rank_differs": counts[ONE_RANK][1], "one_rank_first_y_cosine": first["error"]["cosine"],
            "digest": digest_of(report)}


def arguments():
    """The parser of what both programs of the training take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("quantgate")
    parser.add_argument("device")
    parser.add_argument("out")
    parser.add_argument("only", nargs="*")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    return parser


def cases(parser, only):
    """Pairs of recipe and mode: those named in `only`, or all."""
    known = {f"{recipe}/{mode}": (recipe, mode) for recipe in RECIPES
             for mode in (MODES[:1] if recipe in WITHOUT_OVERRIDES else MODES)}
    if unknown := set(only) - set(known):
        parser.error(f"RECIPE/MODE is {', '.join(sorted(unknown))}: none of this program's")
    return [known[name] for name in known if not only or name in only]


def main():
    parser = arguments()
    given = parser.parse_intermixed_args()
    results, failed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "trace.json").write_text(json.dumps(trace(given.tokens, given.width, given.rounds)))
        for recipe, mode in cases(parser, given.only):
            command = [given.quantgate, "--device", given.device, "session", "run", str(path / "trace.json"),
                       "--recipe", recipe, "--backward-override", mode, "--tp", "2", "--sequence-parallel",
                       "--overlap", "none", "--overlap", "default", "--reference", str(TWO_RANKS),
                       "--report", str(path / "report.json")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{recipe}/{mode}: exit code {done.returncode}: {done.stderr[-400:]}")
                failed = True
                continue
            result = summary(json.loads((path / "report.json").read_text()))
            failed |= result["overlap_differs"] != 0 or result["elements"] == 0
            results[f"{recipe}/{mode}"] = result
            print(f"{recipe}/{mode}: {json.dumps(result)}", flush=True)
    pathlib.Path(given.out).write_text(json.dumps(results, indent=1))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
