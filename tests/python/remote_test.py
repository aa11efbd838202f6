"""Verbs on a server (quantgate.connect): the results, the errors and the transfers, over wires that break, too."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg
from errors_test import REFUSED, TYPES
from quantgate import _engine
from server import Wire, serving
from tensor_files import bits

pytest.importorskip("grpc")

X, W = (qg.generate("normal", shape, "bf16", seed=seed) for seed, shape in ((1, (64, 96)), (2, (32, 96))))
DY = qg.generate("normal", (64, 32), "bf16", seed=3)
OPERANDS = dict(x=X, weight=W, grad_output=DY)
MEBI = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with qg.connect(server.address) as client:
        yield client


@pytest.fixture
def wire(server):
    wire = Wire(server.address)
    yield wire
    wire.close()


def noise(seed, count):
    """Bytes that no other test has uploaded."""
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def upload(client, data):
    """SHA-256 and size of the blob of these bytes, which the server then has."""
    return client._connect().upload(_engine.wrap(data, "u8"))


def download(client, stored):
    return client._connect().download(*stored)


def assert_same_tensors(remote, local):
    assert list(remote) == list(local) and local
    for name, tensor in local.items():
        assert type(remote[name]) is type(tensor) and remote[name].dtype == tensor.dtype, name
        assert remote[name].shape == tensor.shape and bits(remote[name]) == bits(tensor), name


# --- Results.

@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", "fp8_current", "fp8_block", "int4:group=32"])
def test_codes_and_values_are_those_of_this_process(recipe, client):
    arguments = dict(role="weight", columnwise=not recipe.startswith("int4"))
    remote, local = client.quantize(X, recipe, **arguments), qg.quantize(X, recipe, **arguments)
    assert_same_tensors(remote.tensors, local.tensors)
    assert remote.record.to_dict() == local.record.to_dict() and remote.description == local.description
    assert (remote.shape, remote.source_dtype, remote.dtypes) == (local.shape, local.source_dtype, local.dtypes)
    # Either takes what the other one made.
    assert bits(client.dequantize(local)) == bits(qg.dequantize(remote)) == bits(qg.dequantize(local))
    assert bits(client.dequantize(local if "4" in recipe else local.tensors, out_dtype="bf16")) == \
        bits(qg.dequantize(local, out_dtype="bf16"))


def test_the_state_of_delayed_scaling_goes_and_comes(client):
    state = dict(scale=[2.0], amax_history=np.array([3, 1, 2, 0], np.float32))
    assert_same_tensors(client.quantize(X, "fp8_delayed:amax_history_len=4", **state).tensors,
                        qg.quantize(X, "fp8_delayed:amax_history_len=4", **state).tensors)


def test_gemms_are_those_of_this_process(client):
    q = [qg.quantize(tensor, "nvfp4", role=role) for tensor, role in ((X, "input"), (W, "weight"))]
    for a, b, arguments in ((X, W, {}), (X, W, {"arithmetic": "sm90", "out_dtype": "bf16"}),
                            (X, W, {"out_dtype": "f8_e4m3", "d_scale": 0.1}), (q[0], q[1], {}),
                            (X, W, {"alpha": 0.1, "beta": 0.3, "c": np.ones((64, 32), np.float32)}),
                            (X, np.ascontiguousarray(W.T), {"layout": "nn", "bias": np.arange(32, dtype=np.float32)})):
        remote, local = client.gemm(a, b, **arguments), qg.gemm(a, b, **arguments)
        assert bits(remote.d) == bits(local.d) and remote.d.dtype == local.d.dtype
        assert (remote.amax is None) == (local.amax is None)
        assert local.amax is None or bits(remote.amax) == bits(local.amax)
        assert (remote.arithmetic, remote.text, remote.note) == (local.arithmetic, local.text, local.note)


@pytest.mark.parametrize("distribution", ["normal", "specials", "one_huge"])
def test_generated_tensors_are_those_of_this_process(distribution, client):
    for shape, dtype, arguments in (((7, 33), "bf16", {"seed": 2**64 - 1}), ((0, 3), "f32", {}), ((400, 300), "f32", {"seed": 5}),
                                    ((64,), "f8_e4m3", {"scale": 0.1})):
        remote, local = (c.generate(distribution, shape, dtype, **arguments) for c in (client, qg))
        assert remote.shape == local.shape == shape and remote.dtype == local.dtype and bits(remote) == bits(local)


def test_results_go_where_they_are_asked(client):
    out = np.full((64, 32), -1, np.float32)
    assert client.gemm(X, W, out=out).d is out and bits(out) == bits(qg.gemm(X, W).d)
    memory = {name: np.zeros_like(value) for name, value in qg.quantize(X, "mxfp8").tensors.items()}
    q = client.quantize(X, "mxfp8", out=memory)
    assert q.rowwise_data is memory["rowwise_data"]
    assert_same_tensors(memory, qg.quantize(X, "mxfp8").tensors)
    out = np.empty(X.shape, np.float32)
    assert client.dequantize(q, out=out) is out and bits(out) == bits(qg.dequantize(q))
    memory = {name: np.zeros(value.shape, np.uint8) for name, value in memory.items()}  # Bytes for codes and scales of one byte.
    q = client.quantize(X, "mxfp8", out=memory)
    assert q.tensors == memory and q.dtypes == qg.quantize(X, "mxfp8").dtypes
    assert bits(client.dequantize(q)) == bits(qg.dequantize(q)) == bits(out)


def test_runs_and_their_reports_are_those_of_this_process(client):
    from command_test import without_the_run

    quantized = [qg.quantize(tensor, "mxfp8", role=role, columnwise=True)
                 for tensor, role in ((X, "input"), (W, "weight"), (DY, "grad_output"))]
    for recipe, operands in (("fp8_current", OPERANDS), ("mxfp8", dict(zip(OPERANDS, quantized)))):
        remote, local = (c.run(recipe=recipe, require="bound", **operands) for c in (client, qg))
        assert_same_tensors(remote.outputs, local.outputs)
        assert remote.passed and remote.run.run_id
        assert without_the_run(remote.to_dict()) == without_the_run(local.to_dict())
    remote, local = (c.compare(recipes=["bf16", "mxfp8"], arithmetics=["sm100", "exact"], reference=0, **OPERANDS)
                     for c in (client, qg))
    for mine, theirs in zip(remote.variant_outputs, local.variant_outputs, strict=True):
        assert_same_tensors(mine, theirs)
    assert without_the_run(remote.to_dict()) == without_the_run(local.to_dict())


def test_verify_diff_and_explain_say_what_this_process_says(client):
    outputs = qg.run(recipe="bf16", **OPERANDS).outputs
    assert client.verify(outputs, recipe="bf16", **OPERANDS).passed
    wrong = {**outputs, "dw": (outputs["dw"].astype(np.float32) * 2).astype(ml_dtypes.bfloat16)}
    remote, local = (c.verify(wrong, recipe="bf16", **OPERANDS) for c in (client, qg))
    assert not remote.passed and remote.diagnosis.sentence == local.diagnosis.sentence == "dw is twice the expected"
    remote, local = (c.diff(wrong, outputs) for c in (client, qg))
    assert not remote.passed
    assert [c.to_dict() for c in remote.comparisons] == [c.to_dict() for c in local.comparisons]
    d = qg.gemm(X, W, arithmetic="sm90").d
    remote, local = (c.explain(a=X, b=W, d=d) for c in (client, qg))
    assert remote.is_established and [g.to_dict() for g in remote.gemm] == [g.to_dict() for g in local.gemm]
    q = qg.quantize(X, "mxfp8")
    remote, local = (c.explain(source=X, codes=q.rowwise_data, scale_inv=q.rowwise_scale_inv) for c in (client, qg))
    assert remote.is_established and remote.conclusion == local.conclusion


def test_a_session_goes_on_where_its_checkpoint_was(client):
    layers, optimizer = {"fc": "linear"}, {"kind": "adam", "learning_rate": 1e-2}
    steps = {}
    for name, c in (("server", client), ("here", qg)):
        with c.session(layers, {"fc.weight": W}, recipe="fp8_delayed", optimizer=optimizer) as session:
            y = session.forward(X).outputs["y"]
            gradients = session.backward(DY).outputs
            session.optimize()
            assert session.step == 3
            steps[name] = {"y": y, **gradients, "weight": session.tensor("fc.weight")}
            checkpoint = session.checkpoint()
        with c.restore(checkpoint, layers, recipe="fp8_delayed", optimizer=optimizer) as session:
            assert session.step == 3
            steps[name]["again"] = session.forward(X, evaluate=True).outputs["y"]
    assert_same_tensors(steps["server"], steps["here"])
    with pytest.raises(qg.Error):
        session.forward(X)


def test_many_small_tensors_fit_into_messages(client):
    """Each is small enough to travel inside a request, together they are larger than a message may be."""
    rng = np.random.default_rng(0)
    a = {f"t{i}": rng.standard_normal((200, 256)).astype(np.float32) for i in range(24)}
    b = {name: tensor if name != "t7" else 2 * tensor for name, tensor in a.items()}
    assert client.diff(b, a).diagnosis.sentence == qg.diff(b, a).diagnosis.sentence == "t7 is twice the expected"
    twice = {name: 2 * tensor for name, tensor in a.items()}
    assert client.diff(twice, a).diagnosis.sentence
    layers = {f"fc{i}": "linear" for i in range(20)}
    weights = {f"fc{i}.weight": rng.standard_normal((256, 256)).astype(np.float32) / 16 for i in range(20)}
    y = []
    for c in (client, qg):
        with c.session(layers, weights, recipe="bf16") as session:
            y.append(session.forward(a["t0"]).outputs["y"])
    assert bits(y[0]) == bits(y[1])
    operands = dict(x=rng.standard_normal((128, 32)).astype(np.float32), layer="grouped_linear", m_splits=[4] * 32, recipe="bf16",
                    weight=[rng.standard_normal((1600, 32)).astype(np.float32) for _ in range(32)],
                    grad_output=rng.standard_normal((128, 1600)).astype(np.float32))
    assert client.verify(qg.run(**operands).outputs, require="bound", **operands).passed


def test_what_there_is(client):
    assert [recipe.name for recipe in client.info().recipes] == [recipe.name for recipe in qg.info().recipes]
    names = [scenario.name for scenario in client.scenarios()]
    assert names == [scenario.name for scenario in qg.scenarios()] and names
    report = client.run_scenarios(names[:1])
    assert [result.scenario for result in report.scenarios] == names[:1] and report.finished.good


def test_tensors_of_torch_come_back_as_such(client):
    torch = pytest.importorskip("torch")
    x = torch.ones((32, 32), dtype=torch.bfloat16)
    assert client.run(x, x, recipe="mxfp8").outputs["y"].dtype == torch.bfloat16
    assert client.gemm(x, x).d.tolist() == [[32.0] * 32] * 32


# --- Errors.

MORE = {
    "a usage": lambda c: c.dequantize(qg.quantize(X, "mxfp8"), usage="both"),
    "a direction that is absent": lambda c: c.dequantize(qg.quantize(X, "mxfp8"), usage="columnwise"),
    "values in codes": lambda c: c.dequantize(qg.quantize(X, "mxfp8"), out_dtype="f8_e4m3"),
    "codes without scales": lambda c: c.dequantize({"rowwise_data": qg.quantize(X, "mxfp8").rowwise_data}),
    "a layout of a GEMM": lambda c: c.gemm(X, W, layout="tt"),
    "a scaling": lambda c: c.gemm(qg.quantize(X, "mxfp8"), qg.quantize(W, "mxfp8"), a_scaling="1x7"),
    "a bias": lambda c: c.gemm(X, W, bias=[1.0, 2.0]),
    "no number of f32": lambda c: c.gemm(X, W, alpha=1e300),
    "room of another shape": lambda c: c.gemm(X, W, out=np.zeros((3, 32), np.float32)),
    "room of another dtype": lambda c: c.dequantize(qg.quantize(X, "mxfp8"), out=np.zeros((64, 96), np.float16)),
    "room for a part that is none": lambda c: c.quantize(X, "mxfp8", out={"codes": np.zeros(X.shape, np.uint8)}),
    "room that lacks a part": lambda c: c.quantize(X, "mxfp8", out={"rowwise_data": np.zeros(X.shape, np.uint8)}),
    "room for a part too many": lambda c: c.quantize(X, "mxfp8", out={**qg.quantize(X, "mxfp8").tensors, "scale": np.zeros(1)}),
    "room for a part of another shape": lambda c: c.quantize(X, "mxfp8", out={
        **qg.quantize(X, "mxfp8").tensors, "rowwise_scale_inv": np.zeros((64, 4), np.uint8)}),
    "room for a part of another dtype": lambda c: c.quantize(X, "mxfp8", out={
        **qg.quantize(X, "mxfp8").tensors, "rowwise_data": np.zeros(X.shape, np.int8)}),
    "room that is read": lambda c: c.dequantize({"rowwise_data": X, "rowwise_scale_inv": X}, out=X),
    "room of an FP8 result given as bytes": lambda c: c.gemm(X, W, out_dtype="f8_e4m3", out=np.zeros((64, 32), np.uint8)),
    "text for a number": lambda c: c.gemm(X, W, alpha="1"),
    "a format's number": lambda c: c.dequantize(qg.quantize(X, "mxfp8").tensors, format="mxfp8:block_dim=[]"),
    "half a state": lambda c: c.quantize(X, "fp8_delayed", scale=2.0),
    "integers": lambda c: c.quantize(X.astype(np.int32), "mxfp8"),
    "a dtype of a generator": lambda c: c.generate("normal", (2,), "i32"),
    "a scale of a generator": lambda c: c.generate("normal", (2,), scale=float("nan")),
    "a layer of a session": lambda c: c.session({"fc": "lin"}, {"fc.weight": W}, recipe="bf16"),
    "a checkpoint": lambda c: c.restore(b"none", {"fc": "linear"}, recipe="bf16"),
    "nothing to explain": lambda c: c.explain(a=X, b=W),
}
WRONG = {**{name: call for name, (call, *_) in REFUSED.items()}, **TYPES, **MORE}


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_those_of_this_process(what, client):
    told = []
    for c in (client, qg):
        with pytest.raises((qg.Error, TypeError)) as raised:
            WRONG[what](c)
        error = raised.value
        parts = (error.code, error.field, error.value, error.rule) if isinstance(error, qg.Error) else ()
        told.append((type(error), *parts, str(error)))
    assert told[0] == told[1]


@pytest.mark.parametrize("arguments, error, field", [
    (dict(address="localhost"), qg.InvalidArgument, "address"), (dict(address="host:0"), qg.InvalidArgument, "address"),
    (dict(timeout=-1), qg.InvalidArgument, "timeout"), (dict(attempts_max=0), qg.InvalidArgument, "attempts_max"),
    (dict(tls_ca="ca.pem"), qg.Unimplemented, "tls_ca"), (dict(token_file="token"), qg.Unimplemented, "token_file")])
def test_what_connect_refuses(arguments, error, field):
    with pytest.raises(error) as raised:
        qg.connect(**{"address": "127.0.0.1:1", **arguments})
    assert raised.value.field == field and raised.value.value and raised.value.rule in str(raised.value)


def test_a_server_that_is_gone_is_unavailable(tmp_path):
    with serving(tmp_path / "data") as server:
        client = qg.connect(server.address)
        session = client.session({"fc": "linear"}, {"fc.weight": W}, recipe="bf16")
    for call in (lambda: client.gemm(X, W), lambda: client.run(recipe="bf16", **OPERANDS), lambda: session.forward(X),
                 lambda: upload(client, noise(0, MEBI))):
        start = time.monotonic()
        with pytest.raises(qg.Unavailable) as raised:
            call()
        assert time.monotonic() - start < 10 and server.address in str(raised.value)
    # One that comes back is found by the same client: at once, or with grpcio 1.51 after 2 s.
    with serving(tmp_path / "data", server.address):
        start = time.monotonic()
        while True:
            try:
                assert bits(client.gemm(X, W).d) == bits(qg.gemm(X, W).d)
                break
            except qg.Unavailable:
                assert time.monotonic() - start < 10


def test_a_socket_of_this_machine(tmp_path):
    with serving(tmp_path / "data", f"unix:{tmp_path}/socket") as server, qg.connect(server.address) as client:
        data = noise(6, 3 * MEBI)
        assert download(client, upload(client, data)) == data.tobytes()
        assert bits(client.gemm(X, W).d) == bits(qg.gemm(X, W).d)


def test_a_client_that_was_closed_says_so(server):
    with qg.connect(server.address) as client:
        assert client.info()
    with pytest.raises(qg.FailedPrecondition, match="closed"):
        client.info()


# --- Transfers.

def test_bytes_are_sent_once(server, wire):
    x, w = noise(1, 3 * MEBI).view(np.float16).reshape(-1, 1024), noise(2, MEBI).view(np.float16).reshape(-1, 1024)
    x, w = (np.nan_to_num(tensor.astype(np.float32)) for tensor in (x, w))
    size = x.nbytes + w.nbytes
    with qg.connect(wire.address) as client:
        client.run(x, w, recipe="bf16", keep_outputs=False)
        assert size < wire.sent < 1.05 * size + 100_000
        before = wire.sent
        client.run(x, w, recipe="fp8_current", keep_outputs=False)
        assert wire.sent - before < 100_000
    # Nor does another client send them.
    with qg.connect(wire.address) as client:
        before = wire.sent
        client.run(x, w, recipe="bf16", keep_outputs=False)
        assert wire.sent - before < 100_000


def test_a_broken_upload_goes_on_where_it_broke(server, wire):
    data = noise(3, 32 * MEBI)
    with qg.connect(wire.address) as client:
        client.info()
        for cut in (10 * MEBI, 25 * MEBI):
            wire.cut_at["sent"] = cut
            stored = upload(client, data if cut > 20 * MEBI else data[:16 * MEBI])
            assert not wire.cut_at
        # Of each what was on its way when the wire broke is sent twice, which is not all of it.
        assert 48 * MEBI < wire.sent < 48 * MEBI + 16 * MEBI
        assert wire.connections == 3
        assert download(client, stored) == data.tobytes()


def test_a_broken_download_goes_on_where_it_broke(server, wire):
    data = noise(4, 24 * MEBI)
    with qg.connect(wire.address) as client:
        stored = upload(client, data)
        before = wire.received
        wire.cut_at["received"] = before + 8 * MEBI
        assert download(client, stored) == data.tobytes()
        assert not wire.cut_at and 24 * MEBI < wire.received - before < 34 * MEBI


def test_an_upload_outlives_the_server(tmp_path):
    data = noise(5, 16 * MEBI)
    with serving(tmp_path / "data") as server:
        wire = Wire(server.address)
        with qg.connect(wire.address, attempts_max=1) as client:
            wire.cut_at["sent"] = 8 * MEBI
            with pytest.raises(qg.Unavailable):
                upload(client, data)
        wire.close()
    with serving(tmp_path / "data") as server:
        wire = Wire(server.address)
        with qg.connect(wire.address) as client:
            stored = upload(client, data)
            assert wire.sent < 12 * MEBI
            assert download(client, stored) == data.tobytes()
        wire.close()


def test_a_run_whose_stream_broke_is_attached_to_again(server, wire):
    x = qg.generate("uniform", (1024, 2048), "bf16", seed=4)
    arguments = dict(x=x, weight=x, recipes=["bf16"], arithmetics=["exact", "sm90", "fp32"])
    with qg.connect(wire.address) as client:
        other = qg.connect(server.address)

        def break_it():
            while not server_runs(other) - known:
                time.sleep(0.01)
            wire.cut()

        known = server_runs(client)
        thread = threading.Thread(target=break_it)
        thread.start()
        report = client.compare(**arguments)
        thread.join()
        assert wire.connections == 2
        assert server_runs(client) - known == {report.run.run_id}
    for mine, theirs in zip(report.variant_outputs, qg.compare(**arguments).variant_outputs, strict=True):
        assert_same_tensors(mine, theirs)


def server_runs(client, state=None):
    """Ids of the runs that the server knows, or of those in a state."""
    answer = json.loads(_engine.decode("ListRunsResponse", client._connect().call("Engine/ListRuns", "{}")))
    return {run["run_id"] for run in answer["runs"] if state in (None, run["state"])}


# --- Interrupts, deadlines, processes.

def interrupted(call, is_at_work=lambda: True):
    """Seconds from an interrupt, which comes once the server is at work, to the end of the call."""
    sent = []
    done = threading.Event()

    def interrupt():
        while not is_at_work():
            if done.wait(0.02):
                return
        if not done.wait(0.3):
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.monotonic() - sent[0]
    finally:
        done.set()
        thread.join()


def test_an_interrupt_ends_the_run_on_the_server(server, client):
    x = qg.generate("uniform", (4096, 4096), "bf16", seed=5)
    known = server_runs(client)
    assert interrupted(lambda: client.run(x, x, recipe="bf16", arithmetic="exact"), lambda: server_runs(client) - known) < 8
    run, = server_runs(client) - known
    deadline = time.monotonic() + 20
    while run not in server_runs(client, "cancelled"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert bits(client.gemm(X, W).d) == bits(qg.gemm(X, W).d)


def test_an_interrupt_ends_a_call_on_the_server(server, client):
    x = qg.generate("uniform", (4096, 4096), "bf16", seed=5)
    labels = 'grpc_method="Gemm",grpc_service="quantgate.v1.Engine",grpc_type="unary"}'
    started, series = "grpc_server_started_total{" + labels, 'grpc_server_handled_total{grpc_code="Canceled",' + labels
    before, count = server.metric(series), server.metric(started)
    assert interrupted(lambda: client.gemm(x, x, arithmetic="exact"), lambda: server.metric(started) > count) < 8
    deadline = time.monotonic() + 20
    while server.metric(series) == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_session_outlives_an_interrupt(client):
    w = qg.generate("normal", (1024, 2048), "bf16", seed=6)
    x = qg.generate("uniform", (16384, 2048), "bf16", seed=7)
    with client.session({"fc": "linear"}, {"fc.weight": w}, recipe="bf16", arithmetic="exact") as session:
        interrupted(lambda: session.forward(x))
        session.state()
        before = session.step
        assert bits(session.forward(x[:8], microbatch="b").outputs["y"]) == bits(
            qg.run(x[:8], w, recipe="bf16", arithmetic="exact").outputs["y"])
        assert session.step == before + 1


def test_a_deadline_ends_a_verb(server):
    x = qg.generate("uniform", (4096, 4096), "bf16", seed=5)
    with qg.connect(server.address, timeout=1) as client:
        start = time.monotonic()
        with pytest.raises(qg.DeadlineExceeded) as raised:
            client.run(x, x, recipe="bf16", arithmetic="exact")
        assert isinstance(raised.value, TimeoutError) and time.monotonic() - start < 8
        # Each verb has a time of its own.
        assert client.gemm(X, W).d.shape == (64, 32)


def test_threads_share_a_client(client):
    expected = bits(qg.run(recipe="mxfp8", **OPERANDS).outputs["y"])
    found = []
    threads = [threading.Thread(target=lambda: found.append(bits(client.run(recipe="mxfp8", **OPERANDS).outputs["y"])))
               for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


def run_python(text, *arguments):
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=60)


def test_a_forked_process_is_refused(server):
    done = run_python("""
import os, sys
import quantgate as qg
child = os.fork()
if child == 0:
    os._exit(0 if qg.connect(sys.argv[1]).info() else 1)
assert os.waitpid(child, 0)[1] == 0
client = qg.connect(sys.argv[1])
client.info()
child = os.fork()
if child == 0:
    for call in (client.info, lambda: qg.connect(sys.argv[1])):
        try:
            call()
            os._exit(1)
        except qg.FailedPrecondition as error:
            if "fork" not in error.rule:
                os._exit(2)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.info()
""", server.address)
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_that_is_not_needed(server):
    done = run_python("""
import sys
import quantgate as qg
unwanted = {"grpc", "tqdm", "torch", "jax", "pytest"}
assert not unwanted & set(sys.modules)
import numpy as np
x = np.ones((32, 32), np.float32)
assert qg.connect(sys.argv[1]).run(x, x, recipe="mxfp8").outputs["y"][0, 0] == 32
assert unwanted & set(sys.modules) == {"grpc"}
""", server.address)
    assert done.returncode == 0, done.stderr


def test_without_grpcio_the_error_says_what_to_install():
    done = run_python("""
import sys
sys.modules["grpc"] = None
import quantgate as qg
qg.connect("127.0.0.1:1")
""")
    assert "ImportError" in done.stderr and "pip install 'quantgate[client]'" in done.stderr


def test_progress_is_shown_where_tqdm_is(server, tmp_path):
    (tmp_path / "tqdm.py").write_text("""
class tqdm:
    def __init__(self, total, desc, **_):
        self.total, self.n = total, 0
        print("begin", desc.split()[0], total)
    def update(self, n):
        self.n += n
    def close(self):
        print("end", self.n)
""")
    text = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[2])
import quantgate as qg
client = qg.connect(sys.argv[1], progress=sys.argv[3] == "1")
data = np.random.default_rng(int(sys.argv[4])).integers(0, 256, (17 << 20), dtype=np.uint8)
stored = client._connect().upload(qg._engine.wrap(data, "u8"))
assert client._connect().download(*stored) == data.tobytes()
"""
    size = 17 << 20
    done = run_python(text, server.address, str(tmp_path), "1", "11")
    assert done.stdout.split("\n")[:4] == [f"begin upload {size}", f"end {size}", f"begin download {size}", f"end {size}"], done
    assert run_python(text, server.address, str(tmp_path), "0", "12").stdout == ""
