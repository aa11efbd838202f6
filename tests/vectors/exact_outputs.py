"""Outputs of QuantGate against an expectation of this file's own, bit by bit.

A server is started and called through a stub that is generated from proto/, and the command runs the same step. Both
are sent this program's random tensors; y, dx, dw and db of linear layers are compared with what numpy and ml_dtypes
make of them: the quantizers of tests/vectors/*_reference.py, exact products, one rounding. Every sum is exact in
binary64 whatever its order, which is checked of the operands of each product, so nothing is known of the GEMM but its
definition (arithmetic `exact`, docs/tensor-cores.md section 5). Recipes, backward overrides, one rank, two
tensor-parallel ranks with sequence parallelism and the default overlap, and evaluations of sessions. Exits 1 at the
first difference, printing it in hex.

Needs numpy, ml_dtypes and safetensors beside what tests/client/stub needs. By hand, from the repository root:
python3 tests/vectors/exact_outputs.py --bin build/release/bin --outputs 10000000
"""

import argparse
import fractions
import pathlib
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/vectors"))
sys.path.insert(0, str(ROOT / "tests/client/stub"))

import fp8_block_reference  # noqa: E402
import mxfp8_reference  # noqa: E402
import nvfp4_reference  # noqa: E402
from number_formats import ELEMENTS, F32, cast, compute_scale, decode, e8m0_value  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402
from service import Service  # noqa: E402
from tensors import exact_product, lowest_bit  # noqa: E402

BF16 = ml_dtypes.bfloat16
NVFP4 = "nvfp4:disable_rht=true,disable_stochastic_rounding=true"
RECIPES = ("bf16", "fp8_current", "fp8_delayed", "fp8_block", "mxfp8", NVFP4)
MODES = ("none", "high_precision", "dequantized")
FP8_BLOCK_ROWS = {"x": 1, "weight": 2, "dy": 1}


class Operand:
    """`elements` (binary64, exact) times the product of `factors` (fp32) over that of `divisors`; `plain` is what
    dequantization gives in bf16."""

    def __init__(self, elements, factors=(), divisors=(), plain=None):
        self.elements, self.factors, self.divisors, self.plain = elements, tuple(factors), tuple(divisors), plain

    def turned(self):
        return Operand(self.elements.T, self.factors, self.divisors)


def wide(values):
    return np.asarray(values).astype(F32).astype(np.float64)


def to_bf16(values):
    return np.asarray(values, F32).astype(BF16)


def unquantized(tensor):
    return Operand(wide(tensor), plain=tensor)


def quantized(recipe, role, lines, amax):
    """The lines (rows along the contraction) of a bf16 tensor as a GEMM reads them. `amax`: of the whole tensor."""
    name = recipe.split(":")[0]
    if name == "bf16":
        return unquantized(lines)
    if name in ("fp8_current", "fp8_delayed"):
        element = "f8_e5m2" if role == "dy" else "f8_e4m3"
        # A fresh state of delayed scaling has scale 1.
        is_fresh = name == "fp8_delayed"
        scale = F32(1) if is_fresh else compute_scale(amax, ELEMENTS[element][1], False, 0, F32(0))[()]
        codes = cast((lines.astype(F32) * scale).astype(F32), element)
        inverse = F32(1) / scale
        return Operand(wide(decode(codes, element)), [inverse], plain=to_bf16(decode(codes, element) * inverse))
    if name == "fp8_block":
        block_dim = FP8_BLOCK_ROWS[role]
        codes, inverse = fp8_block_reference.quantize(lines, "bf16", "f8_e4m3", block_dim, True, 0, "divide",
                                                      "nearest_even", "saturate", False)
        values = fp8_block_reference.dequantize(codes, inverse, "f8_e4m3", block_dim, False)
        # The scales are powers of two, so that the fp32 values are the products.
        return Operand(wide(values), plain=to_bf16(values))
    if name == "mxfp8":
        codes, scales = mxfp8_reference.quantize(lines, "f8_e4m3", 1, "round_up", "nearest_even", "saturate", False)
        spread = np.repeat(e8m0_value(scales), 32, axis=1)
        return Operand(wide(decode(codes, "f8_e4m3")) * spread, plain=to_bf16(decode(codes, "f8_e4m3") * spread))
    codes, scales, whole = nvfp4_reference.quantize(
        with_amax(lines, amax), False, block_dim=2 if role == "weight" else 1, rule="two_level",
        rounding="nearest_even", row_scaled=False, four="none", bound=448, use_hadamard=False, seed=0, call_id=0)
    assert whole[0] == amax
    values = nvfp4_reference.dequantize(codes, scales, whole, "two_level", 448)
    elements = wide(decode(codes, "f4_e2m1")) * np.repeat(wide(decode(scales, "f8_e4m3")), 16, axis=1)
    return Operand(elements, [whole[0]], [2688], plain=to_bf16(values))


def with_amax(lines, amax):
    """The lines, which must hold the whole tensor's amax for nvfp4_reference to find it."""
    assert np.abs(lines.astype(F32)).max() == amax, "nvfp4 shards need the whole tensor's amax"
    return lines


def rounded(sums, factors, divisors, bias=None):
    """sums * factors / divisors + bias, rounded once to bf16."""
    scaled = sums.copy()
    for factor in factors:
        scaled = scaled * float(factor)
    for divisor in divisors:
        scaled = scaled / float(divisor)
    total = scaled if bias is None else scaled + wide(bias)
    magnitude = np.abs(scaled) + (0 if bias is None else np.abs(wide(bias)))
    # Each of at most eight operations errs by 2^-53 of the magnitude: where bf16 rounds all of that interval to one
    # number, that is the answer; elsewhere rational arithmetic says.
    low, high = total - magnitude * 2.0**-49, total + magnitude * 2.0**-49
    answer = nearest_bf16(total)
    open_ones = np.argwhere(nearest_bf16(low).view(np.uint16) != nearest_bf16(high).view(np.uint16))
    for place in map(tuple, open_ones):
        value = fractions.Fraction(float(sums[place]))
        for factor in factors:
            value *= fractions.Fraction(float(factor))
        for divisor in divisors:
            value /= divisor
        if bias is not None:
            value += fractions.Fraction(float(wide(bias)[place[-1]]))
        answer[place] = rational_bf16(value)
    return answer


def nearest_bf16(values):
    """binary64 to bf16 with one rounding, by rounding to odd in fp32 first."""
    near = values.astype(F32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    is_even = (bits & 1) == 0
    toward = np.where(np.abs(values) > np.abs(back), 1, -1).astype(np.int64)
    odd = np.where((back != values) & is_even, bits.astype(np.int64) + toward, bits.astype(np.int64))
    result = odd.astype(np.uint32).view(F32).astype(BF16)
    return np.where(values == 0, np.zeros_like(result), result)


def rational_bf16(value):
    if value == 0:
        return BF16(0)
    size, exponent = abs(value), 0
    while size >= 2:
        size, exponent = size / 2, exponent + 1
    while size < 1:
        size, exponent = size * 2, exponent - 1
    units = round(size * 128)  # Python rounds a tie of fractions to even.
    return BF16((-1 if value < 0 else 1) * units * 2.0 ** (exponent - 7))


def gemm(a, b, bias=None):
    return rounded(exact_product(a.elements, b.elements), a.factors + b.factors, a.divisors + b.divisors, bias)


def amax_of(tensor):
    return np.abs(tensor.astype(F32)).max()


class Amaxes:
    """Of the tensors whose amaxes the codes of a step have."""

    def __init__(self, x, weight, dy):
        self.x, self.weight, self.dy = amax_of(x), amax_of(weight), amax_of(dy)


def linear(recipe, mode, x, weight, bias, dy, amaxes):
    """y, dx, dw of one rank; each operand quantized along its GEMM's contraction."""
    turn = np.ascontiguousarray

    def codes(role, lines):
        return quantized(recipe, role, lines, getattr(amaxes, role))

    x_rows, weight_rows = codes("x", x), codes("weight", weight)
    outputs = {"y": gemm(x_rows, weight_rows, bias)}
    if mode == "none":
        outputs["dx"] = gemm(codes("dy", dy), codes("weight", turn(weight.T)))
        outputs["dw"] = gemm(codes("dy", turn(dy.T)), codes("x", turn(x.T)))
        return outputs
    is_original = mode == "high_precision"
    read_weight = weight if is_original else weight_rows.plain
    read_x = x if is_original else x_rows.plain
    outputs["dx"] = gemm(unquantized(dy), unquantized(turn(read_weight.T)))
    outputs["dw"] = gemm(unquantized(turn(dy.T)), unquantized(turn(read_x.T)))
    return outputs


def bias_gradient(dy):
    assert np.abs(wide(dy)).sum(axis=0).max() < 2.0 ** (lowest_bit(wide(dy)) + 24), "a sum of db might round in fp32"
    return nearest_bf16(wide(dy).sum(axis=0))


def sum_of_ranks(parts):
    """rank_asc_fp32: bf16 parts in fp32, one rank after the other, rounded once."""
    total = parts[0].astype(F32)
    for part in parts[1:]:
        total = (total + part.astype(F32)).astype(F32)
    return total.astype(BF16)


def on_one_rank(recipe, mode, tensors):
    x, weight, bias, dy = tensors
    return {**linear(recipe, mode, x, weight, bias, dy, Amaxes(x, weight, dy)), "db": bias_gradient(dy)}


def on_ranks(recipe, mode, parallel_mode, tensors, ranks=2):
    """docs/ranks.md section 2: what is gathered (x of a column, dy of a row) has the whole's amax, shards their own."""
    x, weight, bias, dy = tensors
    is_column = parallel_mode == "column"
    parts = []
    for rank in range(ranks):
        def part(tensor, axis):
            return np.ascontiguousarray(np.split(tensor, ranks, axis=axis)[rank])

        shard = (x if is_column else part(x, 1), part(weight, 0 if is_column else 1), part(dy, 1) if is_column else dy)
        own_bias = part(bias, 0) if is_column else None
        parts.append(linear(recipe, mode, shard[0], shard[1], own_bias, shard[2], Amaxes(*shard)))
    if is_column:
        return {"y": np.concatenate([part["y"] for part in parts], axis=1),
                "dx": sum_of_ranks([part["dx"] for part in parts]),
                "dw": np.concatenate([part["dw"] for part in parts], axis=0), "db": bias_gradient(dy)}
    total = sum_of_ranks([part["y"] for part in parts])
    return {"y": (total.astype(F32) + bias.astype(F32)).astype(BF16),
            "dx": np.concatenate([part["dx"] for part in parts], axis=1),
            "dw": np.concatenate([part["dw"] for part in parts], axis=1)}


def random_tensors(rng, m, n, k):
    """Multiples of 2^-8, in rows of several magnitudes: many values of each format, and sums that stay exact."""
    def grid(shape, scale):
        values = np.clip(np.round(rng.standard_normal(shape) * 64 * scale), -255, 255)
        values *= 2.0 ** rng.integers(-2, 1, size=(shape[0], 1))
        return np.asarray(values / 64, F32).astype(BF16)

    return (grid((m, k), 1), grid((n, k), 0.5), grid((1, n), 1).reshape(n), grid((m, n), 0.5))


class Counts:
    def __init__(self):
        self.outputs, self.cases = 0, 0

    def compare(self, what, found, expected):
        found_bits, expected_bits = (np.ascontiguousarray(side).view(np.uint16).reshape(-1)
                                     for side in (found, expected))
        if found_bits.shape != expected_bits.shape:
            sys.exit(f"{what}: {found_bits.size} elements, expected {expected_bits.size}")
        differing = np.flatnonzero(found_bits != expected_bits)
        if differing.size:
            at = differing[0]
            print(f"{what}: {differing.size} of {found_bits.size} differ; element {at} is 0x{found_bits[at]:04x}, "
                  f"expected 0x{expected_bits[at]:04x}", file=sys.stderr)
            sys.exit(1)
        self.outputs += found_bits.size
        self.cases += 1


class Server(Service):
    """What this program asks of a server."""

    def source(self, tensor):
        source = self.pb.TensorSource()
        source.inline.type.dtype = "bf16"
        source.inline.type.shape.extend(tensor.shape)
        source.inline.data = tensor.tobytes()
        return source

    def output(self, named):
        return np.frombuffer(self.bytes_of(named), BF16)

    def set_recipe(self, recipe, message):
        name, _, knobs = recipe.partition(":")
        message.name = name
        for knob in filter(None, knobs.split(",")):
            key, value = knob.split("=")
            message.knobs[key] = value

    def set_parallel(self, parallel):
        parallel.tensor_parallel = 2
        parallel.sequence_parallel = True
        parallel.overlap.SetInParent()  # Every field empty: the default.

    def run(self, tensors, variants, parallel_mode):
        """Outputs by variant and name."""
        spec = self.pb.RunSpec(keep_outputs=True)
        x, weight, bias, dy = tensors
        spec.step.layer.kind = "linear"
        spec.step.layer.parallel_mode = parallel_mode
        spec.step.x.CopyFrom(self.source(x))
        spec.step.grad_output.CopyFrom(self.source(dy))
        spec.step.parameters["weight"].CopyFrom(self.source(weight))
        spec.step.parameters["bias"].CopyFrom(self.source(bias))
        for recipe, mode in variants:
            variant = spec.variants.add(backward_override=mode, arithmetic="exact")
            self.set_recipe(recipe, variant.recipe)
            if parallel_mode:
                self.set_parallel(variant.parallel)
        outputs = {}
        for event in self.engine.Execute(self.pb.ExecuteRequest(spec=spec)):
            if event.HasField("variant"):
                outputs[event.variant.index] = {output.tensor.name: self.output(output.tensor)
                                                for output in event.variant.report.outputs}
            if event.HasField("finished") and event.finished.status_code:
                sys.exit(f"the run failed: {event.finished.status_message}")
        return outputs

    def evaluate(self, tensors, recipe, parallel_mode):
        """y of a session's forward that only evaluates."""
        x, weight, bias, _ = tensors
        request = self.pb.OpenSessionRequest()
        layer = request.spec.layers.add(name="fc")
        layer.layer.kind = "linear"
        layer.layer.parallel_mode = parallel_mode
        self.set_recipe(recipe, request.spec.recipe)
        request.spec.arithmetic = "exact"
        if parallel_mode:
            self.set_parallel(request.spec.parallel)
        request.parameters["fc.weight"].CopyFrom(self.source(weight))
        request.parameters["fc.bias"].CopyFrom(self.source(bias))
        session = self.sessions.Open(request)
        step = self.pb.SessionStepRequest(session_id=session.session_id, keep_outputs=True)
        step.forward.x.CopyFrom(self.source(x))
        step.forward.evaluate = True
        response = self.sessions.Step(step)
        self.sessions.Close(self.pb.CloseSessionRequest(session_id=session.session_id))
        return {output.name: self.output(output) for output in response.outputs}["y"]


def run_command(binaries, folder, tensors, recipe, mode):
    x, weight, bias, dy = tensors
    save_file({"x": x, "weight": weight, "bias": bias, "dy": dy}, folder / "in.safetensors")
    command = [binaries / "quantgate", "run", "--arithmetic", "exact", "--recipe", recipe, "--backward-override", mode,
               "-o", folder / "out.safetensors"]
    for option, name in (("--input", "x"), ("--weight", "weight"), ("--bias", "bias"), ("--grad-output", "dy")):
        command += [option, f"{folder / 'in.safetensors'}:{name}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"quantgate run failed: {done.stderr}")
    return load_file(folder / "out.safetensors")


def all_variants():
    for recipe in RECIPES:
        for mode in MODES:
            if mode == "none" or recipe not in ("fp8_delayed", "bf16"):
                yield recipe, mode


def expected_of(recipe, mode, parallel_mode, tensors):
    return on_ranks(recipe, mode, parallel_mode, tensors) if parallel_mode else on_one_rank(recipe, mode, tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="where quantgate and quantgated are")
    parser.add_argument("--outputs", type=int, default=10_000_000, help="how many outputs to compare at least")
    parser.add_argument("--size", type=int, default=512, help="rows and columns of tensors, a multiple of 256")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, counts, begin = np.random.default_rng(options.seed), Counts(), time.monotonic()
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        server = Server(options.bin / "quantgated", folder)
        try:
            round_number = 0
            while counts.outputs < options.outputs or round_number < 1:
                for parallel_mode in ("", "column", "row"):
                    tensors = random_tensors(rng, options.size, options.size, options.size)
                    variants = list(all_variants())
                    found = server.run(tensors, variants, parallel_mode)
                    for index, (recipe, mode) in enumerate(variants):
                        what = f"round {round_number}, {parallel_mode or 'one rank'}, {recipe}, {mode}"
                        expected = expected_of(recipe, mode, parallel_mode, tensors)
                        for name, output in expected.items():
                            counts.compare(f"{what}, {name}", found[index][name], output)
                        if mode == "none":
                            y = server.evaluate(tensors, recipe, parallel_mode)
                            counts.compare(f"{what}, y of an evaluation", y, expected["y"])
                        if not parallel_mode and round_number == 0:
                            written = run_command(options.bin, folder, tensors, recipe, mode)
                            for name, output in expected.items():
                                counts.compare(f"{what}, {name} of the command", written[name], output)
                round_number += 1
                print(f"{counts.outputs} outputs of {counts.cases} tensors equal, {time.monotonic() - begin:.0f} s",
                      flush=True)
        finally:
            server.stop()
    print(f"{counts.outputs} outputs compared bit by bit, 0 differ")


if __name__ == "__main__":
    main()
