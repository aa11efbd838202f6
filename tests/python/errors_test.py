"""What is refused: field, value and rule, and what Python calls such a thing."""

import pickle
import signal
import threading

import numpy as np
import pytest

import quantgate as qg

X = np.ones((64, 64), np.float32)

# By client: the module itself, or what connect gives (remote_test.py).
REFUSED = {
    "an unknown recipe": (lambda c: c.quantize(X, "mxfp9"), qg.InvalidArgument, "recipe.name", "mxfp9"),
    "an unknown knob": (lambda c: c.quantize(X, {"name": "mxfp8", "knobs": {"foo": 1}}), qg.InvalidArgument, "foo", None),
    "a knob twice": (lambda c: c.quantize(X, "fp8_current:fp8_format=e4m3,fp8_format=e4m3"), qg.InvalidArgument, "recipe", None),
    "no knob": (lambda c: c.quantize(X, "fp8_current:e4m3"), qg.InvalidArgument, "recipe", None),
    "an unknown role": (lambda c: c.quantize(X, "mxfp8", role="foo"), qg.InvalidArgument, "role", None),
    "a ragged block": (lambda c: c.quantize(X[:, :33], "mxfp8"), qg.InvalidArgument, "tensor", None),
    "no usage": (lambda c: c.quantize(X, "mxfp8", rowwise=False), qg.InvalidArgument, None, None),
    "a seed of nothing": (lambda c: c.quantize(X, "mxfp8", seed=3), qg.InvalidArgument, "seed", "3"),
    "a layout": (lambda c: c.quantize(X, "mxfp8", scale_layout="x"), qg.InvalidArgument, "scale_layout", None),
    "operands that do not fit": (lambda c: c.gemm(X, X[:, :32]), qg.InvalidArgument, None, None),
    "an arithmetic": (lambda c: c.gemm(X, X, arithmetic="sm9"), qg.InvalidArgument, "arithmetic", None),
    "an output dtype": (lambda c: c.gemm(X, X, out_dtype="u8"), qg.InvalidArgument, "out_dtype", None),
    "a dtype": (lambda c: c.generate("normal", (2,), "float8_e4m3"), qg.InvalidArgument, "dtype", None),
    "a distribution": (lambda c: c.generate("gauss", (2,)), qg.InvalidArgument, "distribution", None),
    "a negative dim": (lambda c: c.generate("normal", (-2,)), qg.InvalidArgument, "shape[0]", "-2"),
    "a layer": (lambda c: c.run(X, X, recipe="bf16", layer="lin"), qg.InvalidArgument, "layer.kind", None),
    "no weight": (lambda c: c.run(X, recipe="bf16"), qg.InvalidArgument, None, None),
    "a criterion": (lambda c: c.run(X, X, recipe="bf16", require="close"), qg.InvalidArgument, "require", "'close'"),
    "a suffix": (lambda c: c.diff(X, X).save("report.txt"), qg.InvalidArgument, "path", None),
    "hardware": (lambda c: c.gemm(X, X, arithmetic="cublaslt"), qg.Error, None, None),
    "a scenario": (lambda c: c.run_scenarios(["none such"]), qg.NotFound, None, None),
}


@pytest.mark.parametrize("what", REFUSED)
def test_errors_name_field_value_and_rule(what):
    call, error, field, value = REFUSED[what]
    with pytest.raises(error) as raised:
        call(qg)
    caught = raised.value
    assert str(caught) and caught.code.isupper()
    if field is not None:
        assert field in caught.field
        assert caught.rule and caught.rule in str(caught)
    if value is not None:
        assert caught.value.strip('"') == value
    again = pickle.loads(pickle.dumps(caught))
    assert (str(again), again.field, again.code) == (str(caught), caught.field, caught.code)


TYPES = {
    "role": lambda c: c.quantize(X, "mxfp8", role=1),
    "recipe": lambda c: c.quantize(X, 3),
    "rowwise": lambda c: c.quantize(X, "mxfp8", rowwise="yes"),
    "seed": lambda c: c.quantize(X, "nvfp4", role="grad_output", seed=1.5),
    "alpha": lambda c: c.gemm(X, X, alpha="x"),
    "foo": lambda c: c.run(X, X, recipe="bf16", foo=1),
    "quantized": lambda c: c.dequantize(X),
    "a": lambda c: c.gemm(None, X),
    "attention": lambda c: c.run(X, recipe="bf16", layer="attention", attention=2),
    "operations is": lambda c: c.run(X, recipe="bf16", layer="chain", operations="n=norm"),
    r"operations\[0\]": lambda c: c.run(X, recipe="bf16", layer="chain", operations=["n=norm"]),
    r"m_splits\[1\]": lambda c: c.run(X, [X, X], recipe="bf16", layer="grouped_linear", m_splits=[32, 31.5]),
    "fused": lambda c: c.run(X, X, recipe="bf16", fused="yes"),
    "names": lambda c: c.diff(X, X, names=("mine",)),
    "parallel": lambda c: c.run(X, X, recipe="bf16", parallel=2),
    "recipes": lambda c: c.compare(X, X, recipes={"bf16", "mxfp8"}),
    r"recipe.knobs\['rules'\]\[0\]\['quantizer'\]": lambda c: qg.recipe("custom", rules=[{"quantizer": object}]),
    r"layers\['fc'\]": lambda c: c.session({"fc": 3}, {"fc.weight": X}, recipe="bf16"),
    "optimizer": lambda c: c.session({"fc": "linear"}, {"fc.weight": X}, recipe="bf16", optimizer="sgd"),
}


@pytest.mark.parametrize("argument", TYPES)
def test_what_is_of_another_type_is_a_type_error(argument):
    with pytest.raises(TypeError, match=f"^{argument}"):
        TYPES[argument](qg)


def test_numbers_of_numpy_are_numbers():
    assert qg.recipe("fp8_delayed", amax_history_len=np.int64(4), margin=np.int8(1)) == \
        qg.recipe("fp8_delayed:amax_history_len=4,margin=1")
    assert qg.recipe("fp8_current", power_2_scales=np.bool_(True)) == qg.recipe("fp8_current:power_2_scales=true")
    optimizer = {"kind": "sgd", "learning_rate": np.float32("nan")}
    with pytest.raises(qg.InvalidArgument, match="learning_rate is nan: must be finite"):
        qg.session({"fc": "linear"}, {"fc.weight": X}, recipe="bf16", optimizer=optimizer)


def test_one_output_is_named_by_its_text():
    outputs = qg.run(X, X, recipe="bf16", grad_output=X).outputs
    assert qg.verify({"dw": outputs["dw"]}, X, X, recipe="bf16", grad_output=X, only="dw").passed


def test_errors_are_what_python_calls_them():
    assert issubclass(qg.InvalidArgument, ValueError) and issubclass(qg.NotFound, LookupError)
    assert issubclass(qg.Unimplemented, NotImplementedError) and issubclass(qg.Unavailable, ConnectionError)
    with pytest.raises(ValueError, match="must be"):
        qg.quantize(X, "mxfp8", role="foo")


def test_a_report_is_neither_true_nor_false():
    with pytest.raises(TypeError, match="passed"):
        bool(qg.diff(X, X))


def test_an_interrupt_ends_a_verb():
    size = 2048
    a = np.ones((size, size), np.float32)
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:  # Until the signal finds a verb at work.
            qg.gemm(a, a, arithmetic="exact")
    timer.join()
    assert qg.gemm(X, X).d[0, 0] == 64


def test_other_threads_go_on_meanwhile():
    counted = []
    done = threading.Event()

    def count():
        while not done.is_set():
            counted.append(None)
            done.wait(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    qg.gemm(np.ones((1024, 2048), np.float32), np.ones((1024, 2048), np.float32), arithmetic="fp32")
    before = len(counted)
    done.set()
    thread.join()
    assert before > 3


def test_what_a_callback_raises_is_raised():
    from quantgate import _engine

    def refuse(event):
        raise ZeroDivisionError(event)

    client = _engine.Client.local("cpu", 0)
    with pytest.raises(ZeroDivisionError, match="scenario"):
        client.run_scenarios('{"names": ["%s"]}' % qg.scenarios()[0].name, refuse)
