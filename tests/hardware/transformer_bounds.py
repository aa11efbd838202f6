#!/usr/bin/env python3
"""Holds two ranks to one rank at each step of a training of two transformer layers, in derived bounds and in bits.

    transformer_bounds.py QUANTGATE DEVICE OUT.json [--rounds 20] [--tokens 256] [--width 512] [--self-check] [RECIPE/MODE ...]

A session of one rank trains (the trace of transformer_training.py, quantgated from beside QUANTGATE). Before each step
its parameters and delayed scales are written to a checkpoint; from these and from what each layer reads in that step (x
and grad_output, which one rank gives) the layer runs on one rank, on two with sequence parallelism, and on two with
overlap default. Required of each of the three: a bound for every output (y, dx, each dw, db, dgamma, dbeta) and for every
tensor between two operations, sums over ranks among them, and no element beyond it. So each operation is held to its exact
result on the operands that its rank had, and a rank's operands are what operations before it gave: rounding may differ
from one rank's and nothing else. Also required is the same fingerprint

- of every one of these tensors with overlap and without (docs/ranks.md section 10.5);
- of one rank's and two ranks' tensors where docs/ranks.md section 5 says bits: in the layer what no sum over ranks reaches
  (the norm to the contexts of the heads; fc2's dx), and of y, dw, db of norm1 with qkv, column-parallel, and dx, dw of
  fc2, row-parallel, each run by itself, since in the layer their operands differ;
- of the layers' outputs by themselves and those of the session's step, which shows that the operands are the training's.
  Gradients of nvfp4 are excepted: the session's random numbers are those of its later steps.

--self-check also takes the first reports with one thing wrong in them, and outputs with one element wrong, and demands
that each is refused. Exit code 1 where anything required does not hold.
"""
import contextlib
import copy
import hashlib
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

from transformer_training import arguments, cases, trace

BLOCKS = ("block1", "block2")
MODULES = ("qkv", "proj", "fc1", "fc2")
GRADIENTS = tuple(f"{module}.{word}" for module in MODULES for word in ("dw", "db")) + tuple(
    f"{norm}.{word}" for norm in ("norm1", "norm2") for word in ("dgamma", "dbeta"))
LAYER_OUTPUTS = ("y", "dx") + GRADIENTS
TRANSFORMER = ("--layer", "transformer_layer", "--activation", "gelu", "--heads", "8", "--mask", "causal",
               "--rotary-base", "10000")
RANKS = ("--tp", "2", "--sequence-parallel", "--overlap", "none", "--overlap", "default", "--reference", "0",
         "--require", "bound")


class Refused(Exception):
    """Something that is required does not hold."""


def require(holds, text):
    if not holds:
        raise Refused(text)


def recipes_of_gemms(recipe):
    """The recipes of fprop, dgrad and wgrad."""
    name, _, knobs = recipe.partition(":")
    if name != "hybrid":
        return (name,) * 3
    by_gemm = dict(knob.split("=") for knob in knobs.split(","))
    return tuple(by_gemm[gemm] for gemm in ("fprop", "dgrad", "wgrad"))


def has_bits(recipe, width):
    """Whether column-parallel y and dw and row-parallel dx and dw have the bits of one rank (docs/ranks.md section 5)."""
    whole = ("bf16", "fp8_delayed", "fp8_rowwise", "mxfp8", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4")
    return recipe in whole or recipe == "fp8_block" and width % 256 == 0


def tensors_with_bits(recipe, mode, width):
    """Names of tensors that must have the bits of one rank: of the layer, of norm1 with qkv, of fc2."""
    fprop, dgrad, wgrad = recipes_of_gemms(recipe)
    if mode == "high_precision":
        dgrad = wgrad = "bf16"
    elif mode == "dequantized":  # Of the codes that fprop read.
        dgrad = wgrad = fprop
    y, dx = has_bits(fprop, width), has_bits(dgrad, width)
    column_dw = row_dw = has_bits(wgrad, width)
    if recipe.startswith("hybrid"):  # What is gathered is quantized twice, by docs/ranks.md section 3: for wgrad by columns of codes.
        column_dw, row_dw = fprop == "bf16", dgrad == "bf16"
    if mode == "high_precision":
        column_dw = True  # x is kept and gathered as it came.
    elif mode == "dequantized" and fprop == "fp8_rowwise":
        dx = row_dw = False  # A part of a row has a scale of its own.
    layer = ["fc2.grad_output"] + ["qkv.x", "qkv.y", "core.heads", "proj.x"] * y + ["fc2.dx"] * dx
    return layer, ["y"] * y + ["dw"] * column_dw + ["db"], ["dx"] * dx + ["dw"] * row_dw


def judge(report, outputs, bits):
    """What was found in the report of a comparison of one rank with two and with two that overlap."""
    variants = report["run"]["variants"]
    require(len(variants) == 3 and [len(variant["ranks"]) for variant in variants] == [0, 2, 2],
            "the variants are not one rank, two ranks and two ranks with overlap")
    require(report["verdict"]["criterion"] == "bound" and report["verdict"]["pass"], report["verdict"]["finding"])
    tensors = [{output["tensor"]["name"]: output for output in variant["outputs"]} for variant in variants]
    one, two, overlapped = tensors
    for variant, mine in zip(variants, tensors):
        label = variant["label"]
        require(set(outputs) == {name for name, output in mine.items() if not output["intermediate"]},
                f"{label}: its outputs are {sorted(mine)}")
        require(set(mine) == set(one), f"{label}: lacks {sorted(set(one) - set(mine))}, has also {sorted(set(mine) - set(one))}")
        for name, output in mine.items():
            bound = output["bound"]
            require(bound is not None, f"{label}: {name} has no bound")
            ratio = float(bound["worst_ratio"])  # "NaN" and "Infinity" are texts.
            require(bound["pass"] and bound["violation_count"] == 0 and 0 <= ratio <= 1,
                    f"{label}: {name} leaves its bound {bound['violation_count']} times, by up to {bound['worst_ratio']}")
            require(output["against_exact"]["parity"]["element_count"] == math.prod(output["tensor"]["type"]["shape"]) > 0,
                    f"{label}: not every element of {name} was compared")
    differing = {name for name in two if two[name]["tensor"] != overlapped[name]["tensor"]}
    require(not differing, f"with overlap other bits in {sorted(differing)}")
    compared = {each["tensor"]: each["parity"] for each in variants[1]["against_reference"]}
    for name in bits:
        # Under delayed scaling a norm's or an activation's result is quantized before it is rounded.
        if name not in one and name in ("qkv.x", "fc1.x", "fc2.x"):
            continue
        require(name in one and one[name]["tensor"] == two[name]["tensor"] and compared[name]["mismatch_count"] == 0,
                f"{name} of two ranks has other bits than one rank's")
    ratios = {name: output["bound"]["worst_ratio"] for name, output in two.items()}
    nearest = max(ratios, key=ratios.get)
    same = [name for name in two if two[name]["tensor"] == one[name]["tensor"]]
    return {"tensors": sum(map(len, tensors)), "nearest": nearest, "worst_ratio": ratios[nearest], "same_bits": same,
            "elements": sum(math.prod(output["tensor"]["type"]["shape"]) for output in two.values()),
            "fingerprints": [[name, two[name]["tensor"]["fingerprint"]] for name in sorted(two)]}


def read_tensors(path):
    """Headers and bytes of a safetensors file's tensors."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: ((entry["dtype"], entry["shape"]), data[8 + size:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


class Training:
    """One rank's training under one recipe, and the layers of its steps by themselves."""

    def __init__(self, given, server, folder, recipe, mode):
        self.given, self.server, self.folder, self.recipe, self.mode = given, server, folder, recipe, mode
        self.trace = trace(given.tokens, given.width, given.rounds)
        name, _, knobs = recipe.partition(":")
        spec = copy.deepcopy(self.trace["spec"])
        for layer in spec["layers"]:
            del layer["layer"]["parallel_mode"]
        spec.update(recipe={"name": name, "knobs": dict(knob.split("=") for knob in knobs.split(",") if knob)},
                    backward_override=mode, parameters=self.trace["parameters"])
        (folder / "session.json").write_text(json.dumps(spec))
        opened = self.command("-s", server, "--format", "json", "session", "open", folder / "session.json")
        self.id = json.loads(opened)["session_id"]
        self.checkpoint = folder / "checkpoint.safetensors"

    def command(self, *arguments, codes=(0,)):
        command = [str(each) for each in (self.given.quantgate, "--device", self.given.device, "-q", *arguments)]
        if "-s" in command:
            del command[1:3]  # The device is the server's.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            said = (done.stdout + done.stderr).strip()
            raise Refused(f"exit code {done.returncode} of {' '.join(command[1:6])} ...: {said[-600:]}")
        return done.stdout

    def step(self, kind, *arguments):
        self.command("-s", self.server, "session", "step", self.id, kind, *arguments)

    def operands(self, block, names):
        """Options that give parameters and delayed scales of the checkpoint: the option's name by that of the tensor."""
        known = read_tensors(self.checkpoint)
        options = []
        for module, prefix in names.items():
            for name in known:
                if not name.startswith(f"{block}.{module}.") or name.endswith((".master", ".exp_avg", ".exp_avg_sq")):
                    continue
                word = name.removeprefix(f"{block}.{module}.")
                options += ["--delayed-state" if word.endswith((".scale", ".amax_history")) else "--param",
                            f"{prefix}{word}={self.checkpoint}:{name}"]
        return options

    def layer(self, block, x):
        names = {module: f"{module}." for module in MODULES + ("norm1", "norm2")}
        return [*TRANSFORMER, "--input", x, "--recipe", self.recipe, "--backward-override", self.mode,
                *self.operands(block, names)]

    def run(self, layer, out, *arguments):
        self.command("run", *layer, *arguments, "-o", self.folder / out)

    def compare(self, layer, grad_output, mode, outputs, bits):
        path = self.folder / "report.json"
        path.unlink(missing_ok=True)
        self.command("compare", *layer, "--grad-output", grad_output, "--parallel-mode", mode, *RANKS, "--report", path,
                     codes=(0, 1))
        report = json.loads(path.read_text())
        return report, judge(report, outputs, bits)

    def hold_step(self, index):
        """Holds both layers of the session's next step, and takes it."""
        given, folder = self.given, self.folder
        self.command("-s", self.server, "session", "checkpoint", self.id, "-o", self.checkpoint)
        x, grad_output = self.trace["steps"][0]["x"], self.trace["steps"][1]["grad_output"]
        self.step("train", "--x", x, "-o", folder / "forward.safetensors")
        self.step("backward", "--grad-output", grad_output, "-o", folder / "backward.safetensors")
        self.step("optimize")
        # What each layer reads: x of the second is y of the first, grad_output of the first dx of the second.
        layers = {"block1": self.layer("block1", x)}
        self.run(layers["block1"], "block1_forward.safetensors")
        layers["block2"] = self.layer("block2", f"{folder}/block1_forward.safetensors:y")
        gradients = {"block2": grad_output, "block1": f"{folder}/block2.safetensors:dx"}
        for block in ("block2", "block1"):
            self.run(layers[block], f"{block}.safetensors", "--grad-output", gradients[block])
        self.hold_to_session()
        bits, bits_of_qkv, bits_of_fc2 = tensors_with_bits(self.recipe, self.mode, given.width)
        found, reports = {}, {}
        for block in BLOCKS:
            reports[block], found[block] = self.compare(layers[block], gradients[block], "column", LAYER_OUTPUTS, bits)
            x_of_block = layers[block][layers[block].index("--input") + 1]
            recipe = ["--recipe", self.recipe, "--backward-override", self.mode]
            qkv = ["--layer", "layernorm_linear", "--input", x_of_block, *recipe,
                   *self.operands(block, {"norm1": "", "qkv": ""})]
            drawn = f"gen:normal,seed={1000 + index},shape={given.tokens}x{{}},scale={{}}"
            _, found[f"{block}.qkv"] = self.compare(qkv, drawn.format(3 * given.width, 0.01), "column",
                                                    ("y", "dx", "dw", "db", "dgamma", "dbeta"), bits_of_qkv)
            fc2 = ["--layer", "linear", "--input", drawn.format(4 * given.width, 1), *recipe,
                   *self.operands(block, {"fc2": ""})]
            _, found[f"{block}.fc2"] = self.compare(fc2, gradients[block], "row", ("y", "dx", "dw", "db"), bits_of_fc2)
        if index == 0 and given.self_check:
            self.self_check(reports["block2"], layers["block2"], grad_output, bits)
        return found

    def hold_to_session(self):
        of_session = {**read_tensors(self.folder / "forward.safetensors"), **read_tensors(self.folder / "backward.safetensors")}
        alone = {block: read_tensors(self.folder / f"{block}.safetensors") for block in BLOCKS}
        pairs = [("y", "block2", "y")]
        if "nvfp4" not in recipes_of_gemms(self.recipe):
            pairs += [("dx", "block1", "dx")]
            pairs += [(f"{block}.{name}", block, name) for block in BLOCKS for name in GRADIENTS]
        for name, block, output in pairs:
            require(of_session[name] == alone[block][output], f"{output} of {block} by itself is not the session's {name}")

    def self_check(self, report, layer, grad_output, bits):
        """Demands that what is wrong is refused."""
        for variant in report["run"]["variants"]:
            for each in variant["outputs"] + variant["against_reference"]:
                for unread in ("against_unquantized", "error", "nearer"):  # Heat maps make copies slow.
                    each.pop(unread, None)
                each.get("against_exact", {}).pop("error", None)

        def wrong(what, spoil, bits=bits):
            spoilt = copy.deepcopy(report)
            spoil(spoilt["run"]["variants"], spoilt)
            try:
                judge(spoilt, LAYER_OUTPUTS, bits)
            except Refused:
                return
            raise Refused(f"self-check: {what} was not refused")

        def output(variants, variant, name):
            return next(each for each in variants[variant]["outputs"] if each["tensor"]["name"] == name)

        wrong("a verdict that fails", lambda _, spoilt: spoilt["verdict"].update({"pass": False}))
        wrong("no criterion", lambda _, spoilt: spoilt["verdict"].update(criterion="none"))
        wrong("a missing variant", lambda variants, _: variants.pop())
        other = {"fingerprint": "0" * 32}
        for name in ("y", "qkv.db", "proj.y", "fc1.dx"):
            for i in (1, 2):
                wrong(f"{name} without a bound", lambda v, _, n=name, i=i: output(v, i, n).update(bound=None))
                for figure in ({"worst_ratio": 1.01}, {"worst_ratio": "NaN"}, {"violation_count": 1}, {"pass": False}):
                    wrong(f"{name} with {figure}", lambda v, _, n=name, i=i, f=figure: output(v, i, n)["bound"].update(f))
                wrong(f"no {name}", lambda v, _, n=name, i=i: v[i]["outputs"].remove(output(v, i, n)))
                wrong(f"other bits of {name}", lambda v, _, n=name, i=i: output(v, i, n)["tensor"].update(other))
        for name in set(bits) & {each["tensor"]["name"] for each in report["run"]["variants"][0]["outputs"]}:
            wrong(f"{name} with other bits than one rank's",
                  lambda v, _, n=name: [output(v, i, n)["tensor"].update(other) for i in (1, 2)])
        # y is a sum over ranks: its bits are not one rank's, and to require them must fail.
        wrong("y with the bits of one rank", lambda *_: None, bits=["y"])
        # One element of a weight's gradient.
        right = self.folder / "block2.safetensors"
        verify = ["verify", *layer, "--grad-output", grad_output, "--require", "bound", "--subject"]
        self.command(*verify, right, "--only", ",".join(LAYER_OUTPUTS))
        data = bytearray(right.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        begin = json.loads(data[8:8 + size])["fc1.dw"]["data_offsets"][0]
        data[8 + size + begin + 1] ^= 0x80  # The sign of the first element.
        spoilt = self.folder / "spoilt.safetensors"
        spoilt.write_bytes(data)
        self.command(*verify, spoilt, "--only", "fc1.dw", codes=(1,))

    def close(self):
        self.command("-s", self.server, "session", "close", self.id)


@contextlib.contextmanager
def served(given, folder):
    """The address of a server of the sessions, which ends with the block."""
    program = pathlib.Path(given.quantgate).with_name("quantgated")
    address = f"unix:{folder}/quantgated.sock"
    server = subprocess.Popen([str(program), "--listen", address, "--metrics-listen", "", "--data-dir", f"{folder}/store",
                               "--device", given.device], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            if "quantgated ready" in line:
                break
        else:
            raise Refused(f"{program} ended with exit code {server.wait()}")
        yield address
    finally:
        server.terminate()
        server.communicate()


def summary(steps):
    """One line of all steps of a training."""
    found = [each for step in steps for each in step.values()]
    worst = max(found, key=lambda each: each["worst_ratio"])
    layers = [step[block] for step in steps for block in BLOCKS]
    always = set.intersection(*(set(each["same_bits"]) for each in layers))
    digest = hashlib.sha256(json.dumps([{name: each["fingerprints"] for name, each in step.items()} for step in steps],
                                       sort_keys=True).encode()).hexdigest()
    return {"steps": len(steps), "tensors": sum(each["tensors"] for each in found),
            "elements_of_two_ranks": sum(each["elements"] for each in found), "nearest": worst["nearest"],
            "worst_ratio": worst["worst_ratio"], "layer_tensors_with_bits_of_one_rank": sorted(always), "digest": digest}


def main():
    parser = arguments()
    parser.add_argument("--self-check", action="store_true")
    given = parser.parse_intermixed_args()
    results, failed = {}, False
    for recipe, mode in cases(parser, given.only):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as name, served(given, pathlib.Path(name)) as server:
            steps = []
            try:
                training = Training(given, server, pathlib.Path(name), recipe, mode)
                for index in range(given.rounds):
                    steps.append(training.hold_step(index))
                training.close()
                result = summary(steps)
            except Refused as refused:
                failed = True
                result = {"steps": len(steps), "refused": f"step {len(steps)}: {refused}"}
        results[f"{recipe}/{mode}"] = result
        print(f"{recipe}/{mode} ({time.monotonic() - begin:.0f} s): {json.dumps(result)}", flush=True)
    pathlib.Path(given.out).write_text(json.dumps(results, indent=1))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
