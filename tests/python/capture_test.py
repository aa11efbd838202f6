"""Captures of training steps of torch: the bits that the step had, and what verify and diff say of them."""

import json
import os
import pathlib
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import quantgate as qg
from tensor_files import read_file

D = 32


class Block(torch.nn.Module):
    """A residual block with an in-place activation behind its first layer, and random numbers of torch's own."""

    def __init__(self, width=D, hidden=4 * D, bias=True):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.fc1 = torch.nn.Linear(width, hidden, bias=bias)
        self.fc2 = torch.nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        hidden = self.fc1(self.norm(x))
        hidden.relu_()
        return x + self.fc2(torch.nn.functional.dropout(hidden, 0.1))


def model_of(dtype=torch.bfloat16, seed=0, blocks=2, **options):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(Block(**options) for _ in range(blocks))).to(dtype)


def batch(index, dtype=torch.bfloat16):
    return torch.randn(2, 16, D, generator=torch.Generator().manual_seed(100 + index)).to(dtype)


def loss_of(model, x):
    return model(x).float().square().mean()


def train(model, capture=None, steps=2, microbatches=1, dtype=torch.bfloat16, forward=loss_of, optimizer=None):
    """The losses, by their bits, and the parameters after the steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    torch.manual_seed(11)
    for step in range(steps):
        for microbatch in range(microbatches):
            loss = forward(model, batch(10 * step + microbatch, dtype))
            loss.backward()
            losses.append(loss.detach().view(torch.int32).item())
        optimizer.step()
        optimizer.zero_grad()
        if capture is not None:
            capture.step()
    return losses, [raw(parameter) for parameter in model.parameters()]


def raw(tensor):
    """The bytes of a tensor, row by row."""
    tensor = tensor.detach().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def records(capture, rank=0):
    manifest = json.loads((pathlib.Path(capture.directory) / f"manifest.rank{rank}.json").read_text())
    assert manifest["version"] == 1 and manifest["rank"] == rank
    return manifest["captures"]


def tensors(capture, record):
    """The bytes of a record's tensors by their names, read by other code than the engine's."""
    found, metadata = read_file(pathlib.Path(capture.directory) / record["file"])
    alone = json.loads(metadata["quantgate.capture"])
    assert {name: alone[name] for name in record} == record
    return {name: np.ascontiguousarray(array).view(np.uint8).tobytes() for name, array in found.items()}


def only(found, **wanted):
    matching = [one for one in found if all(one[name] == value for name, value in wanted.items())]
    assert len(matching) == 1, matching
    return matching[0]


class Witness:
    """Clones that this test takes itself: by replacing the forward of a Linear with one that clones before and after, and by
    gradients of autograd.grad-like tensors of its own."""

    def __init__(self, layer):
        self.x, self.y, self.weight, self.bias, self.dy, self.dx = [], [], [], [], [], []
        forward = layer.forward

        def watched(x):
            # A node of its own in front, so that its gradient is this call's alone.
            mine = x.view_as(x) if x.requires_grad else x
            self.x.append(mine.detach().clone())
            self.weight.append(layer.weight.detach().clone())
            if layer.bias is not None:
                self.bias.append(layer.bias.detach().clone())
            y = forward(mine)
            self.y.append(y.detach().clone())
            if mine.requires_grad:
                mine.register_hook(lambda gradient: self.dx.append(gradient.clone()))
            out = y.clone() if y.requires_grad else y
            if out.requires_grad:
                out.register_hook(lambda gradient: self.dy.append(gradient.clone()))
            return out

        layer.forward = watched


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_losses_and_parameters_are_those_without(dtype, tmp_path):
    plain = train(model_of(dtype), steps=3, microbatches=2, dtype=dtype)
    model = model_of(dtype)
    with qg.capture(model, steps=[0, 2], directory=tmp_path / "c") as c:
        captured = train(model, c, steps=3, microbatches=2, dtype=dtype)
    assert captured == plain
    found = records(c)
    assert [one["step"] for one in found] == [0] * 8 + [2] * 8
    assert sorted({one["module"] for one in found}) == ["0.fc1", "0.fc2", "1.fc1", "1.fc2"]
    assert [one["microbatch"] for one in found] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert all(one["call"] == one["microbatch"] for one in found)
    # One clock: every forward of a microbatch, then its backwards in the opposite order.
    first = [one for one in found if one["step"] == 0 and one["call"] == 0]
    assert [one["forward_order"] for one in first] == [0, 1, 2, 3]
    assert [one["backward_order"] for one in first] == [7, 6, 5, 4]
    assert not list(pathlib.Path(c.directory).rglob(".quantgate-*"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_every_tensor_has_the_bits_of_its_moment(dtype, bias):
    model = model_of(dtype, bias=bias)
    layer = model[1].fc1
    witness = Witness(layer)
    grads = []
    with qg.capture(model, layers=r"1\.fc1") as c:
        before = None
        for microbatch in range(3):
            loss_of(model, batch(microbatch, dtype)).backward()
            grads.append((before, layer.weight.grad.clone()))
            before = grads[-1][1]
        torch.optim.SGD(model.parameters(), lr=0.5).step()  # Overwrites the weights.
        c.step()
    for index, record in enumerate(records(c)):
        found = tensors(c, record)
        assert record["call"] == index and record["left_out"] == {}
        assert found["x"] == raw(witness.x[index]) and found["y"] == raw(witness.y[index])
        assert found["dy"] == raw(witness.dy[index]) and found["dx"] == raw(witness.dx[index])
        assert found["weight"] == raw(witness.weight[index])
        assert ("bias" in found) == bias and (not bias or found["bias"] == raw(witness.bias[index]))
        before, after = grads[index]
        assert found["main_grad"] == raw(after)
        assert ("main_grad_before" in found) == (before is not None)
        if before is not None:
            assert found["main_grad_before"] == raw(before)
        # The gradient of this call alone, by the product that autograd takes.
        dy, x = (one.reshape(-1, one.shape[-1]) for one in (witness.dy[index], witness.x[index]))
        leaf = witness.weight[index].clone().requires_grad_()
        torch.nn.functional.linear(x, leaf).backward(dy)
        assert found["dw"] == raw(leaf.grad)
        entry = record["tensors"]["x"]
        assert entry["shape"] == [2, 16, D] and entry["strides"] == [16 * D, D, 1]
        assert entry["dtype"] == {torch.bfloat16: "bf16", torch.float32: "f32", torch.float16: "f16"}[dtype]
    assert c.verify().passed


def test_strided_tensors_are_written_row_by_row():
    model = torch.nn.Sequential(torch.nn.Linear(8, 6))
    x = torch.randn(8, 5).t()
    with qg.capture(model, what="x") as c:
        model(x)
    record, = records(c)
    assert record["tensors"]["x"] == {"dtype": "f32", "shape": [5, 8], "strides": [1, 5]}
    assert tensors(c, record) == {"x": raw(x)}


class Viewed(torch.nn.Module):
    """A linear whose y is a view: an in-place operation on it leaves the view's own node out of autograd's graph."""

    def __init__(self, width, outputs):
        super().__init__()
        self.in_features, self.out_features = width, outputs
        self.weight = torch.nn.Parameter(torch.randn(outputs, width) / 8)

    def forward(self, x):
        y = (x.reshape(-1, self.in_features) @ self.weight.t()).view(*x.shape[:-1], self.out_features)
        assert y._is_view()
        return y


@pytest.mark.parametrize("kind", [torch.nn.Linear, Viewed])
@pytest.mark.parametrize("shape", [(16, D), (2, 8, D)])
def test_in_place_operations_come_after_the_copy(kind, shape):
    class Overwrites(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = kind(D, D)

        def forward(self, x):
            y = self.fc(x)
            kept.append((x.clone(), y.clone()))
            y.mul_(2)
            return y

    kept = []
    torch.manual_seed(1)
    model, x = Overwrites(), torch.randn(shape)
    with qg.capture(model, what="x,weight,bias,y,dy,dw") as c:
        y = model(x)
        y.backward(torch.ones_like(y))
        gradient = model.fc.weight.grad.clone()
        with torch.no_grad():
            for tensor in (x, y, model.fc.weight, model.fc.weight.grad):
                tensor.zero_()
    record, = records(c)
    found = tensors(c, record)
    assert record["left_out"] == {}
    assert (found["x"], found["y"]) == (raw(kept[0][0]), raw(kept[0][1]))
    assert found["dy"] == raw(torch.full(shape, 2.0)) and found["dw"] == raw(gradient)
    assert c.verify().passed


def test_autocast_gives_what_the_gemms_gave():
    model = model_of(torch.float32)
    witness = Witness(model[0].fc2)

    def forward(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, x)

    plain = train(model_of(torch.float32), microbatches=2, dtype=torch.float32, forward=forward)
    fresh = model_of(torch.float32)
    with qg.capture(fresh) as c:
        assert train(fresh, c, microbatches=2, dtype=torch.float32, forward=forward) == plain
    assert c.verify().passed
    with qg.capture(model, layers="0.fc2") as c:
        train(model, c, steps=1, microbatches=2, dtype=torch.float32, forward=forward)
    for index, record in enumerate(records(c)):
        assert record["knobs"]["autocast"] == "bf16"
        dtypes = {name: entry["dtype"] for name, entry in record["tensors"].items()}
        assert dtypes["weight"] == "f32" and dtypes["main_grad"] == "f32"
        assert {dtypes[name] for name in ("y", "dy", "dx", "dw")} == {"bf16"}
        found = tensors(c, record)
        assert found["dy"] == raw(witness.dy[index])
        x, weight = witness.x[index].bfloat16().requires_grad_(), witness.weight[index].bfloat16().requires_grad_()
        torch.nn.functional.linear(x, weight, witness.bias[index].bfloat16()).backward(witness.dy[index])
        assert (found["dx"], found["dw"]) == (raw(x.grad), raw(weight.grad))
    assert c.verify(require="bound").passed


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_give_one_record_a_call(use_reentrant):
    def forward(model, x):
        x.requires_grad_()
        for block in model:
            x = checkpoint(block, x, use_reentrant=use_reentrant)
        return x.float().square().mean()

    def without(model, x):
        x.requires_grad_()
        return loss_of(model, x)

    assert train(model_of(), forward=forward, microbatches=2) == train(model_of(), forward=without, microbatches=2)
    found = []
    for run in (forward, without):
        model = model_of()
        with qg.capture(model) as c:
            losses = train(model, c, forward=run, microbatches=2)
        assert losses == train(model_of(), forward=without, microbatches=2)
        found.append({(one["module"], one["step"], one["call"]): tensors(c, one) for one in records(c)})
        assert all(one["left_out"] == {} for one in records(c))
        assert c.verify().passed
    assert found[0] == found[1] and len(found[0]) == 16


def test_a_layer_used_twice_has_a_record_of_each_use():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(D, D)

        def forward(self, x):
            return self.fc(torch.tanh(self.fc(x)))

    torch.manual_seed(2)
    model = Twice().bfloat16()
    witness = Witness(model.fc)
    with qg.capture(model) as c:
        loss_of(model, batch(0)).backward()
    first, second = records(c)
    assert (first["call"], second["call"]) == (0, 1) and first["microbatch"] == second["microbatch"] == 0
    for index, record in enumerate((first, second)):
        found = tensors(c, record)
        # The gradients of the later use come first.
        assert found["dy"] == raw(witness.dy[1 - index]), index
        leaf = witness.weight[index].clone().requires_grad_()
        torch.nn.functional.linear(witness.x[index].reshape(-1, D), leaf).backward(witness.dy[1 - index].reshape(-1, D))
        assert found["dw"] == raw(leaf.grad)
    # Both were added at once: what was added is that of two calls.
    assert "main_grad" not in first["tensors"] or "main_grad" not in second["tensors"]
    report = c.verify()
    assert report.passed and any("several calls were added at once" in one.remark for one in report.layers)


def test_frozen_weights_have_no_gradient():
    model = model_of()
    model[0].fc1.weight.requires_grad_(False)
    with qg.capture(model, layers="0.fc1") as c:
        loss_of(model, batch(0).requires_grad_()).backward()
    record, = records(c)
    assert {"dw", "main_grad"}.isdisjoint(record["tensors"]) and "dx" in record["tensors"]
    report = c.verify()
    assert report.passed and [one.tensor.split(":")[1] for one in report.comparisons] == ["y", "dx"]
    # Nor has a forward without a graph.
    with qg.capture(model, layers="0.fc1") as c:
        with torch.no_grad():
            model(batch(0))
    record, = records(c)
    assert sorted(record["tensors"]) == ["bias", "weight", "x", "y"] and record["backward_order"] is None
    assert c.verify().passed


def test_a_shared_weight_is_said():
    model = torch.nn.Sequential(torch.nn.Linear(D, D), torch.nn.Linear(D, D)).bfloat16()
    model[1].weight = model[0].weight
    with qg.capture(model, layers="0") as c:
        loss_of(model, batch(0)).backward()
    record, = records(c)
    assert record["left_out"]["main_grad"] == "its weight is shared with another module"
    assert "dw" in record["tensors"] and c.verify().passed


def test_five_lines_verify_a_transformer():
    model, optimizer = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, dtype=torch.bfloat16),
        2, enable_nested_tensor=False), None
    # Five lines of a user's.
    optimizer = torch.optim.AdamW(model.parameters())
    with qg.capture(model, layers=r".*linear\d", steps=[0], optimizer=optimizer) as c:
        loss_of(model, batch(0)).backward()
        optimizer.step()
    report = c.verify(recipe="bf16")

    assert report.passed and report.first_divergence == ""
    assert [one.module for one in report.layers] == [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]
    lines = [line for line in str(report).splitlines() if "layers." in line]
    assert len(lines) == 4 and all(" pass " in line for line in lines), str(report)
    assert all(len(line) <= 100 for line in lines)


class Transposed(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight.t(), self.bias)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return 2 * (dy @ weight), dy.reshape(-1, dy.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


class ScaledGradient(torch.nn.Linear):
    def forward(self, x):
        return Scaled.apply(x, self.weight)


@pytest.mark.parametrize("wrong, tensor", [(Transposed, "y (forward)"), (ScaledGradient, "dx (backward)")])
def test_the_first_wrong_layer_is_named(wrong, tensor):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(D, D, bias=False) for _ in range(4)]
    for place in (1, 2):
        layers[place] = wrong(D, D, bias=False)
    model = torch.nn.Sequential(*layers).bfloat16()
    with qg.capture(model) as c:
        loss_of(model, batch(0).requires_grad_()).backward()
    report = c.verify(recipe="bf16")
    assert not report.passed
    # Forward executes 1 first, backward 2.
    first = "1" if wrong is Transposed else "2"
    assert report.first_divergence.startswith(
        f"First divergence in execution order: step 0, rank 0, {first}, call 0: {tensor}"), report.first_divergence
    assert [one.module for one in report.layers if not one.passes] == ["1", "2"]
    cause = "transposed" if wrong is Transposed else "twice"
    assert cause in report.diagnosis.sentence, report.diagnosis.sentence
    assert str(report).startswith(report.first_divergence)
    xml = report._document.junit()
    assert xml.count("<failure") == 2 and 'tests="4"' in xml


def test_a_wrong_accumulation_is_found():
    model = model_of()
    layer = model[0].fc1
    with qg.capture(model, layers="0.fc1", what="x,weight,bias,y,dw,main_grad") as c:
        for index in range(2):
            handle = layer.weight.register_hook(lambda gradient: gradient * 2) if index == 1 else None
            loss_of(model, batch(index)).backward()
    report = c.verify()
    assert not report.passed
    assert [one.passes for one in report.layers] == [True, False]
    assert "call 1: main_grad (backward)" in report.first_divergence
    handle.remove()


def test_diff_finds_the_first_module_and_tensor(tmp_path):
    def run(name, alter=None, **options):
        model = model_of()
        if alter is not None:
            alter(model)
        with qg.capture(model, steps=[0, 1], directory=tmp_path / name, **options) as c:
            train(model, c)
        return c

    a, same = run("a"), run("same")
    report = qg.capture.diff(a, same)
    assert report.passed and report.first_divergence == "" and len(report.layers) == 8

    def one_weight(model):
        with torch.no_grad():
            bits = model[1].fc1.weight.view(torch.int16)
            bits[3, 5] ^= 1

    report = qg.capture.diff(tmp_path / "a", run("b", one_weight))
    assert not report.passed
    assert report.first_divergence.startswith(
        "First divergence in execution order: step 0, rank 0, 1.fc1, call 0: weight (forward): "), report.first_divergence
    assert "(3, 5)" in report.first_divergence

    # The forward is the same; in backward block 1 hands another gradient on to block 0.
    other = model_of()
    other[1].norm.register_full_backward_hook(lambda module, dx, dy: (dx[0] * 2,))
    with qg.capture(other, steps=[0, 1], directory=tmp_path / "g") as c:
        train(other, c)
    report = qg.capture.diff(a, c)
    assert report.first_divergence.startswith(
        "First divergence in execution order: step 0, rank 0, 0.fc2, call 0: dy (backward): "), report.first_divergence
    report = qg.capture.diff(a, run("part", layers=r"0\.fc\d"))
    assert not report.passed and "1.fc1, call 0: only in" in report.first_divergence
    with pytest.raises(qg.NotFound, match="^a: .*no directory of a capture"):
        qg.capture.diff(tmp_path / "none", a)


def test_rows_are_sampled_by_a_seed(tmp_path):
    def run(name, **options):
        model = model_of()
        with qg.capture(model, layers="0.fc1", rows=5, directory=tmp_path / name, **options) as c:
            train(model, c, steps=1)
        return c

    c, again, other = run("a", seed=7), run("b", seed=7), run("c", seed=8)
    whole_model = model_of()
    with qg.capture(whole_model, layers="0.fc1") as whole:
        train(whole_model, whole, steps=1)
    record, = records(c)
    sampled = record["tensors"]["x"]["sampled_rows"]
    assert len(sampled) == 5 and sampled == sorted(set(sampled)) and 0 <= sampled[0] and sampled[-1] < 32
    full = tensors(whole, records(whole)[0])
    for name, width in (("x", D), ("y", 4 * D), ("dy", 4 * D), ("dx", D)):
        assert record["tensors"][name]["sampled_rows"] == sampled
        assert record["tensors"][name]["shape"] == [2, 16, width]
        lines = np.frombuffer(full[name], np.uint8).reshape(32, -1)
        assert tensors(c, record)[name] == lines[sampled].tobytes()
    assert "sampled_rows" not in record["tensors"]["dw"] and tensors(c, record)["dw"] == full["dw"]
    assert tensors(again, records(again)[0]) == tensors(c, record)
    assert records(other)[0]["tensors"]["x"]["sampled_rows"] != sampled
    report = c.verify()
    assert report.passed and [one.tensor.split(":")[1] for one in report.comparisons] == ["y", "dx", "main_grad"]
    assert report.layers[0].remark == "dw: rows were sampled"
    with pytest.raises(qg.InvalidArgument, match="rows were sampled, and under fp8_current a linear needs all of them"):
        c.verify(recipe="fp8_current")
    assert not qg.capture.diff(c, other).passed


def test_max_bytes_bounds_the_files():
    model = model_of()
    with pytest.warns(RuntimeWarning, match="left out: step 0, .*max_bytes is 150000"):
        with qg.capture(model, max_bytes=150000) as c:
            plain = train(model, c)
    assert plain == train(model_of())
    found = records(c)
    stored = sum(len(one) for record in found for one in tensors(c, record).values())
    assert 0 < stored <= 150000 and all({"x", "y", "dy", "dw"} <= set(one["tensors"]) for one in found)
    manifest = json.loads(pathlib.Path(c.directory, "manifest.rank0.json").read_text())
    assert len(manifest["left_out"]) + len(found) == 8
    assert any("max_bytes" in remark for remark in c.verify().remarks)


def test_a_call_that_does_not_fit_spoils_no_other():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(D, D)

        def forward(self, x):
            return self.fc(torch.tanh(self.fc(x)))

    torch.manual_seed(2)
    model = Twice().bfloat16()
    with pytest.warns(RuntimeWarning, match="left out: step 0, fc, call 1: max_bytes is 30000"):
        with qg.capture(model, max_bytes=30000) as c:
            loss_of(model, batch(0)).backward()
    record, = records(c)
    assert record["left_out"] == {"main_grad": "a call of the step was left out, whose gradient may be in it"}
    # What was accumulated has the gradient of the call that is not there.
    assert "main_grad" not in record["tensors"] and "dw" in record["tensors"] and c.verify().passed


def test_rows_of_one_byte_types():
    model = torch.nn.Sequential(torch.nn.Identity())
    x = torch.randn(64, 8).to(torch.float8_e4m3fn)
    with qg.capture(model, layers="0", what="x", rows=3) as c:
        model(x)
    record, = records(c)
    entry = record["tensors"]["x"]
    assert entry["dtype"] == "f8_e4m3" and tensors(c, record)["x"] == raw(x.view(torch.uint8)[entry["sampled_rows"]])


def test_compiled_modules_fire_where_the_capture_was_entered_first():
    try:
        torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.zeros(1, 2))
    except Exception as error:  # No torch.compile for this version of Python.
        pytest.skip(f"torch.compile is not available: {error}")
    torch._dynamo.reset()
    model = model_of()
    with qg.capture(model) as c:
        compiled = torch.compile(model, backend="eager")
        train(compiled, c)
    assert [one["module"] for one in records(c)] == ["0.fc1", "0.fc2", "1.fc1", "1.fc2"] * 2
    assert c.verify().passed
    torch._dynamo.reset()
    compiled = torch.compile(model_of(), backend="eager")
    loss_of(compiled, batch(0)).backward()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with qg.capture(compiled) as late:
            loss_of(compiled, batch(0)).backward()
    if not records(late):
        assert any("no hook fired" in str(one.message) for one in told)
    else:
        assert {one["module"] for one in records(late)} == {"0.fc1", "0.fc2", "1.fc1", "1.fc2"}
    torch._dynamo.reset()


RANK_PROGRAM = """
import sys, torch, quantgate as qg
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, sys.argv[3])
from capture_test import model_of, batch, loss_of
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=int(sys.argv[2]), world_size=2)
model = DistributedDataParallel(model_of())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with qg.capture(model, layers="0.fc1", directory=sys.argv[1] + "/c", optimizer=optimizer):
    for step in range(2):
        loss_of(model, batch(10 * step + int(sys.argv[2]))).backward()
        optimizer.step()
        optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""


def test_each_rank_has_its_files(tmp_path):
    here = str(pathlib.Path(__file__).parent)
    running = [subprocess.Popen([sys.executable, "-c", RANK_PROGRAM, str(tmp_path), str(rank), here],
                                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}, stderr=subprocess.PIPE)
               for rank in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    manifests = [json.loads((tmp_path / "c" / f"manifest.rank{rank}.json").read_text()) for rank in range(2)]
    assert [one["world_size"] for one in manifests] == [2, 2]
    for rank, manifest in enumerate(manifests):
        assert [one["file"] for one in manifest["captures"]] == [f"step{step}/rank{rank}/0.fc1.0.safetensors"
                                                                for step in range(2)]
        assert all("dw" in one["tensors"] for one in manifest["captures"])
    report = qg.capture.verify_directory(tmp_path / "c")
    assert report.passed and [(one.step, one.rank) for one in report.layers] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_ranks_of_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    model = model_of()
    with qg.capture(model, layers="0.fc1") as c:
        model(batch(0))
    assert records(c, rank=3)[0]["file"] == "step0/rank3/0.fc1.0.safetensors"


def fake(name, attributes, forward):
    """A module as Transformer Engine has it, by its name and attributes."""
    cls = type(name, (torch.nn.Module,), {"__module__": "transformer_engine.pytorch.module", "forward": forward})
    module = cls()
    for attribute, value in attributes.items():
        setattr(module, attribute, torch.nn.Parameter(value) if isinstance(value, torch.Tensor) else value)
    return module


def random(*shape):
    return (torch.randn(*shape) / 8).bfloat16()


def test_modules_of_transformer_engine_by_their_names():
    torch.manual_seed(5)
    functional = torch.nn.functional
    norm = {"layer_norm_weight": random(D), "layer_norm_bias": random(D), "eps": 1e-5, "normalization": "LayerNorm",
            "zero_centered_gamma": False}

    def normed(self, x):
        return functional.layer_norm(x.float(), (D,), self.layer_norm_weight.float(), self.layer_norm_bias.float(),
                                     self.eps).bfloat16()

    modules = {
        "linear": fake("Linear", {"weight": random(D, D), "bias": random(D)},
                       lambda self, x: functional.linear(x, self.weight, self.bias)),
        "layernorm_linear": fake("LayerNormLinear", {**norm, "weight": random(D, D), "bias": torch.zeros(0)},
                                 lambda self, x: functional.linear(normed(self, x), self.weight)),
        "layernorm_mlp": fake("LayerNormMLP", {
            **norm, "fc1_weight": random(64, D), "fc1_bias": random(64), "fc2_weight": random(D, 64), "fc2_bias": random(D),
            "activation": "relu"}, lambda self, x: functional.linear(torch.relu(functional.linear(
                normed(self, x), self.fc1_weight, self.fc1_bias)), self.fc2_weight, self.fc2_bias)),
        "grouped_linear": fake("GroupedLinear", {"num_gemms": 2, "weight0": random(D, D), "weight1": random(D, D),
                                                 "bias0": random(D), "bias1": random(D)},
                               lambda self, x, splits: torch.cat([
                                   functional.linear(rows, getattr(self, f"weight{i}"), getattr(self, f"bias{i}"))
                                   for i, rows in enumerate(x.split(splits))])),
    }
    model = torch.nn.ModuleDict(modules)
    x = batch(0).reshape(-1, D).requires_grad_()
    with qg.capture(model, what="x,weight,bias,y,dy,dw") as c:
        for name, module in modules.items():
            y = module(x, [8, 24]) if name == "grouped_linear" else module(x)
            y.backward(torch.ones_like(y))
    found = {one["kind"]: one for one in records(c)}
    assert {kind: one["parameters"] for kind, one in found.items()} == {
        "linear": ["weight", "bias"], "layernorm_linear": ["gamma", "beta", "weight"],
        "layernorm_mlp": ["gamma", "beta", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
        "grouped_linear": ["weight.0", "bias.0", "weight.1", "bias.1"]}
    assert {"fc1.dw", "fc2.dw"} <= set(found["layernorm_mlp"]["tensors"])
    assert {"dw.0", "dw.1"} <= set(found["grouped_linear"]["tensors"])
    assert found["grouped_linear"]["knobs"]["m_splits"] == [8, 24]
    assert found["layernorm_mlp"]["knobs"]["norm"] == "layernorm"
    report = c.verify(layers="linear|grouped_linear")
    assert report.passed and len(report.layers) == 2
    report = c.verify()
    compared = {one.layer: [report.comparisons[one.first_comparison + i].tensor.split(":")[1]
                            for i in range(one.comparison_count)] for one in report.layers}
    assert compared["grouped_linear"] == ["y", "dw.0", "dw.1"]
    # The engine computes the others too, where torch's own norms and roundings need not be Transformer Engine's.
    assert set(compared) == set(modules) and compared["layernorm_mlp"] == ["y", "fc1.dw", "fc2.dw"]


def test_knobs_of_transformer_engine():
    class MXFP8BlockScaling:
        pass

    torch.manual_seed(6)
    module = fake("Linear", {"weight": random(64, 64), "fp8": True, "fp8_meta": {"recipe": MXFP8BlockScaling()}},
                  lambda self, x: torch.nn.functional.linear(x, self.weight))
    divided = fake("Linear", {"weight": random(64, 64), "tp_size": 2, "parallel_mode": "row"},
                   lambda self, x: torch.nn.functional.linear(x, self.weight))
    with qg.capture(torch.nn.ModuleList([module, divided]), what="x,weight,y") as c:
        for one in (module, divided):
            one(random(64, 64))
    report = c.verify()
    # torch computed in bf16 what the recipe says was mxfp8.
    assert report.layers[0].variant.startswith("mxfp8") and not report.passed
    assert report.layers[1].remark == "its weight is divided over ranks: diff only"
    assert c.verify(recipe="bf16", layers="0").passed


@pytest.mark.parametrize("recipe, reason", [("DelayedScaling", "delayed scaling's state is not captured"),
                                            ("NVFP4BlockScaling", "nvfp4 rounds by chance")])
def test_recipes_that_a_capture_cannot_repeat_are_said(recipe, reason):
    module = fake("Linear", {"weight": random(64, 64), "fp8": True, "fp8_meta": {"recipe": type(recipe, (), {})()}},
                  lambda self, x: torch.nn.functional.linear(x, self.weight))
    with qg.capture(torch.nn.ModuleList([module])) as c:
        module(random(64, 64))
    with pytest.raises(qg.InvalidArgument, match=f"{reason}: diff only, unless a recipe is given"):
        c.verify()
    assert c.verify(recipe="bf16").passed


def test_fused_gradients_are_those_of_main_grad():
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return torch.nn.functional.linear(x, weight)

        @staticmethod
        def backward(ctx, dy):
            x, weight = ctx.saved_tensors
            weight.main_grad += dy.float().t() @ x.float()
            return dy @ weight, None

    torch.manual_seed(7)
    module = fake("Linear", {"weight": random(D, D), "fuse_wgrad_accumulation": True},
                  lambda self, x: Fused.apply(x, self.weight))
    start = torch.randn(D, D)
    module.weight.main_grad = start.clone()
    with qg.capture(module, layers="") as c:
        module(random(16, D).requires_grad_()).backward(random(16, D))
    record, = records(c)
    found = tensors(c, record)
    assert found["main_grad_before"] == raw(start) and found["main_grad"] == raw(module.weight.main_grad)
    assert "dw" not in found
    report = c.verify()
    assert report.passed and [one.tensor.split(":")[1] for one in report.comparisons] == ["y", "dx", "main_grad"]
    # Somebody else's main_grad: autograd's dw is added to it behind the backward.
    plain = torch.nn.Linear(D, D, bias=False).bfloat16()
    plain.weight.main_grad = start.clone()

    def add(weight):
        weight.main_grad += weight.grad.float()
        weight.grad = None

    plain.weight.register_post_accumulate_grad_hook(add)
    with qg.capture(plain, layers="") as c:
        plain(random(16, D)).backward(random(16, D))
    found = tensors(c, records(c)[0])
    assert found["main_grad_before"] == raw(start) and found["main_grad"] == raw(plain.weight.main_grad)
    assert c.verify().passed


def test_modules_of_no_known_kind_are_compared_only():
    model = model_of()
    with qg.capture(model, layers=r"1\.(norm|fc1)") as c:
        loss_of(model, batch(0)).backward()
    norm = only(records(c), module="1.norm")
    assert norm["kind"] == "" and {"x", "weight", "bias", "y", "dy", "dx"} <= set(norm["tensors"])
    report = c.verify()
    assert report.passed and report.layers[0].remark == "no layer kind known: diff only"
    assert "no layer kind known: diff only" in str(report)
    with qg.capture(model, layers=r"1\.norm") as c:
        loss_of(model, batch(0)).backward()
    with pytest.raises(qg.InvalidArgument, match="has no layer that can be judged: no layer kind known: diff only"):
        c.verify()

    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(random(D, D))

        def forward(self, x):
            return x @ self.weight.t()

    mine = torch.nn.Sequential(Mine())
    with qg.capture(mine, layers="0", kind={"0": "linear"}) as c:
        mine(batch(0)).backward(batch(1))
    assert c.verify().passed and c.verify().layers[0].layer == "linear"


def test_a_layer_that_the_engine_refuses_fails():
    torch.manual_seed(8)
    single, double = torch.nn.Linear(D, D), torch.nn.Linear(D, D, bias=False).double()
    with qg.capture(torch.nn.ModuleList([single, double])) as c:
        single(torch.randn(4, D))
        double(torch.randn(4, D).double())
    report = c.verify()
    assert not report.passed and [one.passes for one in report.layers] == [True, False]
    assert report.layers[0].variant == "bf16 / none / fp32"
    assert re.match(r"cannot be computed: (x|parameters\[weight\]) is f64", report.layers[1].finding), report.layers[1].finding
    assert report.first_divergence.endswith(f", 1, call 0: {report.layers[1].finding}")
    with pytest.raises(qg.InvalidArgument, match=r"^(x|parameters\[weight\]) is f64"):
        c.verify(layers="1")


def test_what_is_captured_is_what_was_asked(tmp_path):
    model = model_of()
    with qg.capture(model, layers="0.fc1", what="x,dy") as c:
        loss_of(model, batch(0)).backward()
    record, = records(c)
    assert sorted(record["tensors"]) == ["dy", "x"]
    with pytest.raises(qg.InvalidArgument, match="without weight, bias: diff only"):
        c.verify()
    with qg.capture(model, layers="0.fc1", directory=tmp_path / "one") as c:
        loss_of(model, batch(0)).backward()
    alone = qg.capture.verify_directory(tmp_path / "one" / records(c)[0]["file"])
    assert alone.passed and alone.layers[0].module == "0.fc1"


def test_wrong_calls_are_refused(tmp_path):
    model = model_of()
    for arguments, field, rule in (
            ({"layers": "nope"}, "layers", "matches no module; there are 0, 0.norm"), ({"layers": "("}, "layers", "no regular"),
            ({"what": "x,z"}, "what", "'z' must be one of x, weight"), ({"steps": [-1]}, r"steps\[0\]", "must be 0 or more"),
            ({"rows": 0}, "rows", "must be 1 or more"), ({"max_bytes": -1}, "max_bytes", "must be 0 or more"),
            ({"kind": "conv"}, "kind", "must be one of linear"), ({"rank": 2, "world_size": 2}, "rank", "below world_size")):
        with pytest.raises(qg.InvalidArgument, match=f"^{field} is .*{rule}"):
            qg.capture(model, **arguments)
    for arguments in ({"layers": 3}, {"steps": "0"}, {"steps": 1.5}, {"what": ["x"]}, {"optimizer": 3}, {"rows": "5"}):
        with pytest.raises(TypeError, match=f"^{next(iter(arguments))}"):
            qg.capture(model, **arguments)
    with pytest.raises(TypeError, match="^model is"):
        qg.capture(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with qg.capture(model, directory=tmp_path / "c", optimizer=optimizer) as c:
        with pytest.raises(qg.FailedPrecondition, match="the optimizer counts the steps"):
            c.step()
        with pytest.raises(qg.FailedPrecondition, match="has not ended"):
            c.verify()
        model(batch(0))
    with pytest.raises(qg.FailedPrecondition, match="entered once"):
        c.__enter__()
    with pytest.raises(qg.InvalidArgument, match="has a capture of rank 0 already"):
        qg.capture(model, directory=tmp_path / "c")
    with pytest.raises(qg.InvalidArgument, match="^require is"):
        c.verify(require="exact")
    with pytest.raises(qg.InvalidArgument, match="^layers: .*matches no module; there are 0.fc1"):
        c.verify(layers="nope")
    with pytest.raises(qg.InvalidArgument, match="^layers: .*no regular expression"):
        c.verify(layers="(")


def test_an_error_of_the_loop_leaves_what_was_captured(tmp_path):
    model = model_of()
    with pytest.raises(ZeroDivisionError):
        with qg.capture(model, directory=tmp_path / "c") as c:
            train(model, c, steps=1)
            1 / 0
    assert len(records(c)) == 4 and c.verify().passed
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_command_says_what_the_package_says(tmp_path):
    model = model_of()
    with qg.capture(model, directory=tmp_path / "c") as c:
        train(model, c, steps=1)
    program = os.environ["QUANTGATE_PROGRAM"]
    done = subprocess.run([program, "--format", "json", "verify", "--capture", str(tmp_path / "c")], capture_output=True)
    assert done.returncode == 0, done.stderr
    said, own = json.loads(done.stdout), c.verify().to_dict()
    assert said["layers"] == own["layers"] and said["verdict"] == own["verdict"]
    assert subprocess.run([program, "diff", "--capture", str(tmp_path / "c"), str(tmp_path / "c")]).returncode == 0
