"""Layers, comparisons and sessions against what torch computed on an H200 and what cuBLASLt gave there."""

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest

import quantgate as qg
from tensor_files import DATA, MODEL, assert_same, bits, read_file

CASES = {case["name"]: case for case in json.loads((DATA / "golden_layer_fc1.json").read_text())["cases"]}
FC1 = "bf16 bf16 rows 256"


@pytest.fixture(scope="module")
def model():
    return read_file(MODEL)[0]


@pytest.fixture(scope="module")
def fc1(model):
    return qg.run(model["fc1.x"], model["fc1.weight"], bias=model["fc1.bias"], grad_output=model["fc1.dy"], recipe="bf16")


def test_a_layer_has_the_bits_of_the_hardware(fc1):
    expected = CASES[FC1]["outputs"]
    assert len(expected) >= 3
    for name, output in expected.items():
        tensor = fc1.outputs[name]
        assert list(tensor.shape) == output["shape"] and tensor.dtype == ml_dtypes.bfloat16
        assert hashlib.sha256(bits(tensor)).hexdigest() == output["sha256"], name


@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3", "f16"])
def test_a_gemm_has_the_bits_of_the_hardware(name):
    tensors, metadata = read_file(DATA / f"golden_gemm_{name}.safetensors")
    cases = [case for case in json.loads(metadata["cases"])
             if set(case) <= {"a", "b", "d", "d_type", "name", "split_accumulator", "algorithms", "agreeing"}
             and case["algorithms"] == case["agreeing"]]
    assert len(cases) > 10
    for case in cases:
        arithmetic = "sm90" if name != "fp8_e4m3" else "sm90:split" if case.get("split_accumulator") else "sm90:fast"
        result = qg.gemm(tensors[case["a"]], tensors[case["b"]], arithmetic=arithmetic, out_dtype=case["d_type"])
        assert bits(result.d) == bits(tensors[case["d"]]), case["name"]
        out = np.zeros_like(result.d)
        assert qg.gemm(tensors[case["a"]], tensors[case["b"]], arithmetic=arithmetic, out_dtype=case["d_type"],
                       out=out).d is out
        assert bits(out) == bits(tensors[case["d"]]), case["name"]


def test_verify_finds_what_is_wrong(model):
    operands = dict(x=model["fc1.x"][:32, :64], weight=model["fc1.weight"][:48, :64], bias=model["fc1.bias"][:48],
                    grad_output=model["fc1.dy"][:32, :48], recipe="bf16")
    outputs = qg.run(**operands).outputs
    assert qg.verify(outputs, **operands).passed
    wrong = dict(outputs)
    wrong["dw"] = (wrong["dw"].astype(np.float32) * 2).astype(ml_dtypes.bfloat16)
    report = qg.verify(wrong, **operands)
    assert not report.passed
    assert report.diagnosis.sentence == "dw is twice the expected"
    assert "FAIL" in str(report) and "dw" in report.verdict.found
    del wrong["dw"]
    report = qg.verify(wrong, **operands)
    assert not report.passed and "dw" in report.diagnosis.sentence
    assert qg.verify(wrong, only=["y", "dx"], **operands).passed
    assert qg.verify(outputs, require="bound", **operands).passed
    with pytest.raises(qg.InvalidArgument, match="none of this layer's outputs"):
        qg.verify({"z": outputs["y"]}, **operands)


def test_diff_counts_what_numpy_counts():
    rng = np.random.default_rng(1)
    a = rng.standard_normal((33, 65)).astype(np.float32)
    b = np.where(rng.random(a.shape) < 0.1, np.nextafter(a, np.float32(np.inf)), a)
    report = qg.diff(a, b)
    wrong = int((a.view(np.uint32) != b.view(np.uint32)).sum())
    parity = report.comparisons[0].parity
    assert wrong > 100 and parity.mismatch_count == wrong and parity.worst_ulp == 1
    assert not report.passed and qg.diff(a, b, max_ulp=1).passed
    assert qg.diff({"a": a}, {"a": a.copy()}).passed
    assert not qg.diff({"a": a}, {"a": a, "b": b}).passed
    error = report.comparisons[0].error
    assert error.max_abs == np.abs(a.astype(np.float64) - b).max()


def test_compare_holds_variants_against_the_reference(model):
    report = qg.compare(model["fc1.x"][:64], model["fc1.weight"][:128], recipes=["bf16"], arithmetics=["sm90", "exact", "fp32"],
                        reference=0)
    pairs = {(pair.subject, pair.reference): pair.mismatch_count for pair in report.run.pairs}
    y = [outputs["y"] for outputs in report.variant_outputs]
    for subject in (1, 2):
        differing = int((bits_of(y[0]) != bits_of(y[subject])).sum())
        assert differing > 0 and pairs[subject, 0] == differing


def bits_of(array):
    return array.view(np.uint16)


def test_explain_names_the_rule(model):
    x, w = model["fc1.x"][:32, :128], model["fc1.weight"][:32, :128]
    d = qg.gemm(x, w, arithmetic="sm90").d
    answer = qg.explain(a=x, b=w, d=d)
    assert answer.is_established and "sm90" in answer.gemm[0].arithmetic
    q = qg.quantize(x, "mxfp8")
    answer = qg.explain(source=x, codes=q.rowwise_data, scale_inv=q.rowwise_scale_inv)
    assert answer.is_established and answer.cause == ""


def test_codes_are_operands_of_a_layer(model):
    x, w, dy = model["fc1.x"][:64, :96], model["fc1.weight"][:32, :96], model["fc1.dy"][:64, :32]
    expected = qg.run(x, w, recipe="mxfp8", grad_output=dy)
    q = [qg.quantize(tensor, "mxfp8", role=role, columnwise=True)
         for tensor, role in ((x, "input"), (w, "weight"), (dy, "grad_output"))]
    report = qg.run(q[0], q[1], recipe="mxfp8", grad_output=q[2])
    for name in ("y", "dx", "dw"):
        assert bits(report.outputs[name]) == bits(expected.outputs[name]), name


def test_a_session_takes_a_step_of_sgd():
    x = np.array([[1, 2], [3, -1]], np.float32)
    w = np.array([[0.5, 0.25]], np.float32)
    dy = np.array([[1], [2]], np.float32)
    layers, optimizer = {"fc": "linear"}, {"kind": "sgd", "learning_rate": 0.5}
    with qg.session(layers, {"fc.weight": w}, recipe="bf16", optimizer=optimizer) as session:
        # Small whole numbers: every sum is exact, in whatever order and format.
        assert_same(session.forward(x).outputs["y"], x @ w.T)
        gradients = session.backward(dy).outputs
        assert_same(gradients["dx"], dy @ w)
        assert_same(gradients["fc.dw"], dy.T @ x)
        session.optimize()
        assert session.step == 3
        updated = w - np.float32(0.5) * (dy.T @ x)
        assert_same(session.tensor("fc.weight"), updated)
        checkpoint = session.checkpoint()
    with qg.restore(checkpoint, layers, recipe="bf16", optimizer=optimizer) as session:
        assert_same(session.forward(x, evaluate=True).outputs["y"], x @ updated.T)
        assert [tensor.name for tensor in session.state().tensors]
    with pytest.raises(qg.FailedPrecondition):
        session.forward(x)


@pytest.mark.parametrize("recipe", ["bf16", "mxfp8"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_session_keeps_what_it_was_given(recipe, recompute):
    """A caller may write to x and weights between the steps."""
    rng = np.random.default_rng(4)
    w = rng.standard_normal((256, 512)).astype(ml_dtypes.bfloat16)
    x = rng.standard_normal((1024, 512)).astype(ml_dtypes.bfloat16)
    grad = rng.standard_normal((1024, 256)).astype(ml_dtypes.bfloat16)

    def outputs(is_changed):
        mine, weight = x.copy(), w.copy()
        with qg.session({"fc1": "linear"}, {"fc1.weight": weight}, recipe=recipe) as session:
            session.forward(mine, recompute=recompute)
            if is_changed:
                mine[:] = 0
                weight[:] = 0
            return {name: tensor.tobytes() for name, tensor in session.backward(grad).outputs.items()}

    assert outputs(True) == outputs(False)
