#!/usr/bin/env python3
"""A client of Sessions.RunTrace in another language: stubs made from the protos, and a step that numpy computes.

  trace_client.py --program build/release/bin/quantgated       (pip install grpcio-tools numpy ml_dtypes)

Plays a linear layer under fp8_current beside bf16. The expected y is numpy's: x and weight cast to E4M3 by ml_dtypes
(their largest values are 448, so that both scales are 1), multiplied in float64 (the products are multiples of 2^-6 and
the sums at most 64: exact, also with the 13 bits below the largest exponent that an FP8 tensor core keeps), and rounded
to bf16 by ml_dtypes. Then y is a subject: with those bits it passes, with one bit flipped it does not. Exit code 0 when
all is as expected."""
import argparse
import hashlib
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import grpc
import grpc_tools.protoc
import ml_dtypes
import numpy as np

ROWS, COLUMNS, VALUES = 32, 32, 16
PROTO = pathlib.Path(__file__).resolve().parents[3] / "proto"


def make_stubs(folder):
    """The generated modules, by name."""
    files = sorted(str(path) for path in (PROTO / "quantgate/v1").glob("*.proto"))
    include = os.path.join(os.path.dirname(grpc_tools.protoc.__file__), "_proto")
    if grpc_tools.protoc.main(["protoc", f"-I{PROTO}", f"-I{include}", f"--python_out={folder}",
                               f"--grpc_python_out={folder}", *files]) != 0:
        sys.exit("protoc refused the protos")
    sys.path.insert(0, str(folder))
    names = ("sessions_service", "engine_service")
    return {name: importlib.import_module(f"quantgate.v1.{name}_pb2") for name in names} | {
        f"{name}_grpc": importlib.import_module(f"quantgate.v1.{name}_pb2_grpc") for name in names}


def operands(seed):
    """x [ROWS][32] and weight [COLUMNS][32] in bf16: values of [1, 2), and in columns of their own the amaxes."""
    random = np.random.default_rng(seed)
    x = np.zeros((ROWS, 32), np.float32)
    weight = np.zeros((COLUMNS, 32), np.float32)
    for tensor, rows in ((x, ROWS), (weight, COLUMNS)):
        signs = random.choice([-1, 1], (rows, VALUES))
        tensor[:, :VALUES] = signs * random.uniform(1, 1.99, (rows, VALUES))
    x[0, VALUES] = 448
    weight[0, VALUES + 1] = 448
    return x.astype(ml_dtypes.bfloat16), weight.astype(ml_dtypes.bfloat16)


def expected_y(x, weight):
    codes = [tensor.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) for tensor in (x, weight)]
    product = codes[0] @ codes[1].T
    exact = product.astype(np.float32)
    assert (exact.astype(np.float64) == product).all() and np.abs(product).max() <= 64
    assert (product * 64 == np.round(product * 64)).all()
    return exact.astype(ml_dtypes.bfloat16)


class Client:
    def __init__(self, stubs, address):
        channel = grpc.insecure_channel(address)
        self.pb = stubs["sessions_service"]
        self.sessions = stubs["sessions_service_grpc"].SessionsStub(channel)
        self.engine = stubs["engine_service_grpc"].EngineStub(channel)
        self.engine_pb = stubs["engine_service"]

    def request(self, x, weight, subject=None):
        request = self.pb.RunTraceRequest(keep_outputs=True)
        trace = request.trace
        trace.spec.layers.add(name="fc").layer.kind = "linear"
        trace.parameters["fc.weight"] = "weight"
        for recipe in ("bf16", "fp8_current"):
            trace.variants.add().recipe.name = recipe
        step = trace.steps.add(x="x")
        step.forward.SetInParent()
        self.set_tensor(request.tensors["x"], x)
        self.set_tensor(request.tensors["weight"], weight)
        if subject is not None:
            step.subjects["y"] = "mine"
            step.subjects_of = 1
            step.subjects_requirement = 1  # REQUIREMENT_BITWISE
            self.set_tensor(request.tensors["mine"], subject)
        return request

    @staticmethod
    def set_tensor(source, tensor):
        source.inline.type.dtype = "bf16"
        source.inline.type.shape.extend(tensor.shape)
        source.inline.data = tensor.tobytes()

    def play(self, request):
        return list(self.sessions.RunTrace(request))


def check_step(client, x, weight):
    events = client.play(client.request(x, weight))
    finished = events[-1].finished
    assert finished.state == client.engine_pb.RUN_STATE_SUCCEEDED, finished
    assert list(events[1].trace.variants) == ["bf16 / none / auto", "fp8_current / none / auto"], events[1]
    steps = [event.trace_step for event in events if event.HasField("trace_step")]
    assert [step.variant for step in steps] == [0, 1]
    y = expected_y(x, weight)
    digest = hashlib.sha256(y.tobytes()).digest()
    (output,) = steps[1].outputs
    assert output.name == "y" and output.digest.sha256 == digest, "y has other bits than numpy's"
    # The reference variant multiplies the bf16 operands themselves.
    (comparison,) = steps[1].against_reference
    plain = (x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.float32).astype(ml_dtypes.bfloat16)
    differing = int((plain.view(np.uint16) != y.view(np.uint16)).sum())
    assert differing > 100, "the operands say too little"
    print(f"y of fp8_current is numpy's; {comparison.parity.mismatch_count} of {y.size} elements differ from bf16's "
          f"({differing} from numpy's, whose sums are rounded once)")
    # The same events again.
    wait = client.engine_pb.WaitRunRequest(run_id=events[0].run_id)
    again = list(client.engine.WaitRun(wait))
    assert [event.sequence for event in again] == list(range(1, len(events) + 1))
    assert again == events, "WaitRun streams other events"


def check_subject(client, x, weight):
    y = expected_y(x, weight)
    verdict = client.play(client.request(x, weight, y))[-1].finished.report.verdict
    assert getattr(verdict, "pass"), verdict
    flipped = y.copy()
    flipped.view(np.uint16)[3, 5] ^= 1
    events = client.play(client.request(x, weight, flipped))
    verdict = events[-1].finished.report.verdict
    assert not getattr(verdict, "pass"), verdict
    (subject,) = events[3].trace_step.subjects
    assert subject.parity.mismatch_count == 1 and list(subject.parity.first.coordinate) == [3, 5], subject
    assert subject.parity.first.reference_bits == int(y.view(np.uint16)[3, 5])
    print(f"a subject with numpy's y passes, with one bit flipped: {verdict.finding}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="quantgated")
    arguments = parser.parse_args()
    x, weight = operands(7)
    with tempfile.TemporaryDirectory() as folder:
        stubs = make_stubs(folder)
        address = f"unix:{folder}/quantgated.sock"
        command = [arguments.program, "--listen", address, "--metrics-listen", "127.0.0.1:0",
                   "--data-dir", f"{folder}/data"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = time.monotonic() + 60
            while "quantgated ready" not in server.stdout.readline():
                assert server.poll() is None and time.monotonic() < deadline, "quantgated did not start"
            client = Client(stubs, address)
            check_step(client, x, weight)
            check_subject(client, x, weight)
        finally:
            server.terminate()
            server.wait()
    print("all as expected")


if __name__ == "__main__":
    main()
