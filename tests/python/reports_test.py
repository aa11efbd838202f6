"""Every verb over every layer kind; texts, pages and files of reports. QUANTGATE_PROGRAM is what they are compared with."""

import html
import json
import os
import pathlib
import re
import subprocess
import time
import xml.etree.ElementTree

import numpy as np
import pytest

import quantgate as qg
from quantgate import _reports
from tensor_files import ROOT, assert_same, bits, read_file

PROGRAM = pathlib.Path(os.environ.get("QUANTGATE_PROGRAM", "quantgate"))
K = 64  # Columns of x.
LINEAR = {"weight": (96, K), "bias": (96,)}

# Of each layer kind: keywords of the verbs, options of the command, the parameters' shapes, those of x and of y.
LAYERS = {
    "linear": ({}, [], LINEAR, (64, K), (64, 96)),
    "layernorm_linear": (
        {"norm": {"kind": "rmsnorm", "epsilon": 1e-6}, "return_norm_output": True},
        ["--norm", "rmsnorm,eps=1e-6", "--return-norm-output"], {"gamma": (K,), **LINEAR}, (64, K), (64, 96)),
    "layernorm_mlp": (
        {"activation": "swiglu"}, ["--activation", "swiglu"],
        {"gamma": (K,), "beta": (K,), "fc1.weight": (192, K), "fc2.weight": (K, 96), "fc2.bias": (K,)}, (64, K), (64, K)),
    "grouped_linear": (
        {"m_splits": [32, 0, 32]}, ["--m-splits", "32,0,32"],
        {f"{name}.{expert}": shape for name, shape in LINEAR.items() for expert in range(3)}, (64, K), (64, 96)),
    "chain": (
        {"operations": [{"name": "ln", "kind": "norm"}, {"name": "fc", "kind": "basic_linear"}, {"name": "b", "kind": "bias"},
                        {"name": "act", "kind": "activation", "activation": {"kind": "gelu"}},
                        {"name": "half", "kind": "scale", "factor": 0.5}]},
        ["--operation", "ln=norm", "--operation", "fc=basic_linear", "--operation", "b=bias", "--operation",
         "act=activation,gelu", "--operation", "half=scale,0.5"],
        {"ln.gamma": (K,), "ln.beta": (K,), "fc.weight": (96, K), "b.bias": (96,)}, (64, K), (64, 96)),
    "attention": (
        {"attention": {"heads": 2, "groups": 1, "mask": "causal", "rotary_base": 10000}},
        ["--heads", "2", "--groups", "1", "--mask", "causal", "--rotary-base", "10000"],
        {"qkv.weight": (128, K), "qkv.bias": (128,), "proj.weight": (K, K)}, (2, 32, K), (2, 32, K)),
    "transformer_layer": (
        {"attention": {"heads": 2}, "norm": "rmsnorm", "activation": "gelu"},
        ["--heads", "2", "--norm", "rmsnorm", "--activation", "gelu"],
        {"norm1.gamma": (K,), "qkv.weight": (192, K), "proj.weight": (K, K), "norm2.gamma": (K,), "fc1.weight": (128, K),
         "fc2.weight": (K, 128)}, (2, 32, K), (2, 32, K)),
}


def command(*arguments, folder=ROOT):
    result = subprocess.run([str(PROGRAM), *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stderr
    return result


def generated(seed, shape):
    """A tensor as the command names it, and as the package makes it: the same bytes."""
    text = f"gen:normal,seed={seed},shape={'x'.join(map(str, shape))},dtype=bf16"
    return text, qg.generate("normal", shape, "bf16", seed=seed)


class Operands:
    def __init__(self, kind):
        self.keywords, self.options, shapes, x, y = LAYERS[kind]
        self.kind = kind
        self.x, self.dy = generated(1, x), generated(2, y)
        self.named = {name: generated(10 + index, shape) for index, (name, shape) in enumerate(shapes.items())}
        self.parameters = {name: tensor for name, (_, tensor) in self.named.items()}

    def outputs_of_the_command(self, recipe, path, *options):
        parameters = [part for name, (text, _) in self.named.items() for part in ("--param", f"{name}={text}")]
        command("run", "--layer", self.kind, "--input", self.x[0], "--recipe", recipe, "-o", path, *parameters, *self.options,
                *options)
        return read_file(path)[0]


@pytest.fixture(scope="module", params=LAYERS)
def layer(request):
    return Operands(request.param)


def assert_outputs(actual, expected):
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        assert_same(actual[name], tensor)


def spoiled(tensor):
    """The tensor with one bit of its first element changed."""
    other = tensor.copy()
    other.view(np.uint16).reshape(-1)[0] ^= 0x4000
    return other


@pytest.mark.parametrize("recipe", ["bf16", "mxfp8"])
def test_every_layer_runs_forward_and_backward(layer, recipe, tmp_path):
    keywords = dict(recipe=recipe, layer=layer.kind, parameters=layer.parameters, **layer.keywords)
    forward = qg.run(layer.x[1], **keywords)
    assert_outputs(forward.outputs, layer.outputs_of_the_command(recipe, tmp_path / "y.safetensors"))
    report = qg.run(layer.x[1], require="bound", grad_output=layer.dy[1], **keywords)
    expected = layer.outputs_of_the_command(recipe, tmp_path / "all.safetensors", "--grad-output", layer.dy[0])
    assert report.passed and len(expected) > len(forward.outputs)
    assert_outputs(report.outputs, expected)


def test_every_layer_is_verified_and_compared(layer):
    keywords = dict(layer=layer.kind, parameters=layer.parameters, grad_output=layer.dy[1], **layer.keywords)
    compared = qg.compare(layer.x[1], recipes=["bf16", "mxfp8"], reference=0, **keywords)
    assert [variant.label for variant in compared.run.variants] == ["bf16 / none / auto", "mxfp8 / none / auto"]
    outputs = compared.variant_outputs[1]
    assert qg.verify(outputs, layer.x[1], recipe="mxfp8", **keywords).passed
    for name in outputs:
        report = qg.verify({**outputs, name: spoiled(outputs[name])}, layer.x[1], recipe="mxfp8", **keywords)
        assert not report.passed and name in report.verdict.found, name
        assert report.diagnosis.sentence


def test_a_small_layer_leaves_time_to_find_the_knob():
    """Trying every recipe takes longer than to compare outputs of this size."""
    x, w, dy = (qg.generate("normal", shape, "bf16", seed=seed) for shape, seed in (((32, 64), 1), ((32, 64), 2), ((32, 32), 3)))
    outputs = qg.run(x, w, recipe="mxfp8:scale_rule=floor", grad_output=dy).outputs
    report = qg.verify(outputs, x, w, recipe="mxfp8", grad_output=dy)
    assert report.diagnosis.sentence == "fits mxfp8:scale_rule=floor in y, dx and dw" and not report.diagnosis.not_tried


def test_every_layer_takes_steps(layer):
    keywords = dict(layer=layer.kind, parameters=layer.parameters, **layer.keywords)
    layers = {"l": {"kind": layer.kind, **layer.keywords}}
    parameters = {f"l.{name}": tensor for name, tensor in layer.parameters.items()}
    expected = qg.run(layer.x[1], recipe="mxfp8", grad_output=layer.dy[1], **keywords).outputs
    with qg.session(layers, parameters, recipe="mxfp8") as session:
        outputs = {**session.forward(layer.x[1]).outputs, **session.backward(layer.dy[1]).outputs}
    assert_outputs({name.removeprefix("l."): tensor for name, tensor in outputs.items()}, expected)
    steps = [{"forward": layer.x[1]}, {"backward": layer.dy[1], "subjects": {"dx": expected["dx"]}, "require": "bitwise"}]
    report = qg.play(layers, parameters, steps, recipes=["mxfp8", "bf16"], keep_outputs=True)
    assert report.passed and len(report.subjects) == 1 and report.subjects[0].parity.equal
    played = {**report.step_outputs[0][0], **report.step_outputs[1][0]}
    assert_outputs({name.removeprefix("l."): tensor for name, tensor in played.items()}, expected)
    steps[1]["subjects"] = {"dx": spoiled(expected["dx"])}
    report = qg.play(layers, parameters, steps, recipes=["mxfp8"])
    assert not report.passed and report.subjects[0].parity.mismatch_count == 1
    assert report.diagnoses[0].step == 2 and report.diagnoses[0].sentence in str(report)
    assert report.step_outputs == [[{}], [{}]]


@pytest.fixture(scope="module")
def training():
    """Two steps of SGD of one linear, as the verbs take them and as a file of the command's."""
    x, w, dy = generated(1, (64, 96)), generated(2, (32, 96)), generated(3, (64, 32))
    keywords = dict(layers={"fc1": "linear"}, parameters={"fc1.weight": w[1]}, optimizer={"kind": "sgd", "learning_rate": 0.5},
                    steps=[{"forward": {"x": x[1], "microbatch": "a"}}, {"backward": {"grad_output": dy[1], "microbatch": "a"}},
                           {"optimize": {"learning_rate": 0.25}}], rounds=2)
    trace = {"spec": {"layers": [{"name": "fc1", "layer": {"kind": "linear"}}], "sgd": {"learning_rate": 0.5}},
             "parameters": {"fc1.weight": w[0]}, "rounds": 2,
             "steps": [{"forward": {"microbatch": "a"}, "x": x[0]}, {"backward": {"microbatch": "a"}, "grad_output": dy[0]},
                       {"optimize": {"learning_rate": 0.25}}]}
    return keywords, trace


def test_a_trace_is_that_of_the_command(training, tmp_path):
    keywords, trace = training
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    report = qg.play(recipes=["bf16", "fp8_current"], backward_overrides=["none", "dequantized"], reference=1,
                     require="bitwise", **keywords)
    arguments = ["session", "run", path, "--recipe", "bf16,fp8_current", "--backward-override", "none,dequantized",
                 "--reference", "1", "--require", "bitwise"]
    expected = command(*arguments)
    assert str(report) == expected.stdout
    assert not report.passed and expected.returncode == 1
    entries, of_the_command = report.to_dict(), json.loads(command(*arguments, "--format", "json").stdout)
    assert entries.pop("command") == "quantgate.play(...)" and of_the_command.pop("command")
    assert entries == of_the_command
    assert [step.kind for step in report.steps] == ["forward", "backward", "optimize"] * 2
    assert qg.play(recipes=["bf16"], require=None, **keywords).passed


def test_an_update_of_a_trace_is_numpys(training):
    x = np.array([[1, 2], [3, -1]], np.float32)
    w = np.array([[0.5, 0.25]], np.float32)
    dy = np.array([[1], [2]], np.float32)
    report = qg.play({"fc": "linear"}, {"fc.weight": w}, [{"forward": x}, {"backward": dy}, "optimize", {"restart": {}}],
                     recipes=["bf16"], optimizer={"kind": "sgd", "learning_rate": 0.5}, keep_outputs=True)
    outputs = [step[0] for step in report.step_outputs]
    # Small whole numbers: every sum is exact, in whatever order and format.
    assert_same(outputs[0]["y"], x @ w.T)
    assert_same(outputs[1]["fc.dw"], dy.T @ x)
    assert_same(outputs[2]["fc.weight"], w - np.float32(0.5) * (dy.T @ x))
    assert_same(outputs[3]["fc.weight"], outputs[2]["fc.weight"])


REFUSED_STEPS = {
    "no kind": ({"subjects": {}}, "steps[0]"),
    "two kinds": ({"wgrad": {}, "optimize": {}}, "steps[0]"),
    "another kind": ("train", "steps[0]"),
    "no x": ({"forward": {}}, "steps[0]['forward']['x']"),
    "no grad_output": ({"backward": {"microbatch": "a"}}, "steps[0]['backward']['grad_output']"),
    "another field": ({"optimize": {"rate": 1}}, "steps[0]['optimize']['rate']"),
    "no recipe": ({"change_recipe": {"backward_override": "none"}}, "steps[0]['change_recipe']['recipe']"),
    "another requirement": ({"forward": np.ones((2, 2), np.float32), "require": "close"}, "steps[0]['require']"),
}


@pytest.mark.parametrize("what", REFUSED_STEPS)
def test_steps_are_refused_by_name(what):
    step, field = REFUSED_STEPS[what]
    with pytest.raises(qg.InvalidArgument) as raised:
        qg.play({"fc": "linear"}, {"fc.weight": np.ones((2, 2), np.float32)}, [step], recipes=["bf16"])
    assert raised.value.field == field and raised.value.rule


def test_arguments_of_a_trace_are_refused():
    arguments = dict(layers={"fc": "linear"}, parameters={"fc.weight": np.ones((2, 2), np.float32)}, recipes=["bf16"],
                     steps=[{"forward": np.ones((2, 2), np.float32)}])
    for change, field in (({"recipes": []}, "recipes"), ({"reference": 1}, "reference"), ({"rounds": 0}, "rounds"),
                          ({"require": "bound"}, "require")):
        with pytest.raises(qg.InvalidArgument) as raised:
            qg.play(**{**arguments, **change})
        assert raised.value.field == field
    with pytest.raises(qg.FailedPrecondition, match="optimize.*opened without one"):
        qg.play(**{**arguments, "steps": ["optimize"]})
    for change in ({"steps": "optimize"}, {"steps": [3]}, {"steps": [{"wgrad": 3}]}, {"parameters": 3}, {"foo": 1}):
        with pytest.raises(TypeError):
            qg.play(**{**arguments, **change})


# --- Texts are those of the command.


def without_times(text):
    """Columns of a table are as wide as their widest time."""
    return re.sub(r" +", " ", re.sub(r"\d[\d.]* (us|ms|s)\b", "TIME", text))


def test_the_text_of_scenarios_is_the_commands():
    name = qg.scenarios()[0].name
    report = qg.run_scenarios([name], with_faults=True)
    expected = command("scenario", "run", name, "--with-faults")
    assert without_times(str(report)) == without_times(expected.stdout + expected.stderr)
    assert report.passed and report.scenarios[0].scenario == name and len(report.faults) >= 1


def test_the_text_of_info_is_the_commands():
    expected = re.sub(r"(?m)^local store: .*\n", "", command("info").stdout)
    assert str(qg.info()) == expected


def test_the_text_of_an_explanation_is_the_commands(tmp_path):
    a, b = generated(1, (32, 64)), generated(2, (48, 64))
    d, q = tmp_path / "d.safetensors", tmp_path / "q.safetensors"
    command("gemm", "--a", a[0], "--b", b[0], "--arithmetic", "sm90", "-o", d)
    report = qg.explain(a=a[1], b=b[1], d=read_file(d)[0]["d"])
    assert str(report) == command("explain", "--a", a[0], "--b", b[0], "--d", f"{d}:d").stdout
    command("quantize", a[0], "--recipe", "mxfp8:scale_rule=floor", "--role", "input", "-o", q)
    codes = read_file(q)[0]
    report = qg.explain(source=a[1], codes=codes["rowwise_data"], scale_inv=codes["rowwise_scale_inv"])
    assert str(report) == command("explain", "--source", a[0], "--codes", f"{q}:rowwise_data", "--scale-inv",
                                  f"{q}:rowwise_scale_inv").stdout
    assert report.is_established and "floor" in str(report)


def test_the_text_of_a_step_is_the_commands(tmp_path):
    x, w, dy = generated(1, (64, 96)), generated(2, (32, 96)), generated(3, (64, 32))
    spec = {"layers": [{"name": "fc1", "layer": {"kind": "linear"}}], "recipe": {"name": "fp8_delayed"}}
    (tmp_path / "session.json").write_text(json.dumps({**spec, "parameters": {"fc1.weight": w[0]}}))
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen([PROGRAM.parent / "quantgated", "--listen", "unix:s", "--metrics-listen", "127.0.0.1:0",
                                   "--data-dir", "store"], cwd=tmp_path, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 60
        while "quantgated ready" not in log.read_text():
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        opened = command("--server", "unix:s", "session", "open", "session.json", "--format", "json", folder=tmp_path)
        step = ["--server", "unix:s", "session", "step", json.loads(opened.stdout)["session_id"]]
        with qg.session({"fc1": "linear"}, {"fc1.weight": w[1]}, recipe="fp8_delayed") as session:
            for report, arguments in ((session.forward(x[1]), ("train", "--x", x[0])),
                                      (session.backward(dy[1]), ("backward", "--grad-output", dy[0])),
                                      (session.forward(x[1], against="bf16", requires_grad=["weight"]),
                                       ("train", "--x", x[0], "--against", "bf16", "--requires-grad", "w")),
                                      (session.backward(dy[1], against="bf16"),
                                       ("backward", "--grad-output", dy[0], "--against", "bf16"))):
                assert str(report) == command(*step, *arguments, folder=tmp_path).stdout
                assert len(report.outputs) == len(report["outputs"]) >= 1
            outputs = qg.run(x[1], w[1], recipe="bf16", grad_output=dy[1]).outputs
            compared = report.against.against_reference[0]
            assert compared.tensor == "fc1.dw" and [entry.name for entry in report["outputs"]] == ["fc1.dw"]
            mismatches = (outputs["dw"].view(np.uint16) != report.outputs["fc1.dw"].view(np.uint16)).sum()
            assert compared.parity.mismatch_count == mismatches > 0
    finally:
        server.terminate()
        server.wait(60)


# --- Pages and files.


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def reports():
    """A report of each class, and the suffixes that it is saved under."""
    with qg.session({"fc": "linear"}, {"fc.weight": X}, recipe="bf16") as session:
        step = session.forward(X)
    pages, gates = {".html", ".json"}, {".html", ".json", ".xml"}
    return [(qg.run(X, X, recipe="bf16"), gates), (qg.diff(X, X + 1), gates), (step, pages), (qg.info(), pages),
            (qg.play({"fc": "linear"}, {"fc.weight": X}, [{"forward": X}], recipes=["bf16"]), pages),
            (qg.explain(a=X, b=X, d=X @ X.T), pages), (qg.run_scenarios([qg.scenarios()[0].name]), gates)]


def test_every_report_is_shown_and_saved(tmp_path):
    classes = set()
    for report, suffixes in reports():
        classes.add(type(report))
        assert str(report) and report._repr_html_()
        assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
        for suffix in (".html", ".json", ".xml", ".txt"):
            path = tmp_path / f"report{suffix}"
            if suffix not in suffixes:
                with pytest.raises(qg.InvalidArgument, match=r"^path is .*: must end in \.html or \.json"):
                    report.save(path)
                assert not path.exists()
                continue
            report.save(path)
            text = path.read_text()
            assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()
            if suffix == ".json":
                assert json.loads(text) == report.to_dict()
            if suffix == ".xml":
                assert xml.etree.ElementTree.fromstring(text).iter("testcase")
            if suffix == ".html":
                assert text == report.to_html() and text.lower().startswith("<!doctype html>")
                assert "<script" not in text and "http://" not in text.replace("http://www.w3.org/", "")
            path.unlink()
    assert len(classes) == 7
    assert not list(tmp_path.iterdir())


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_text_of_an_answer_is_escaped_on_its_page():
    text = "y <script>alert('1 & 2')</script> &lt;\n"
    shown = _reports.Answer({}, lambda: text)._repr_html_()
    assert "<script" not in shown and shown.startswith("<pre>") and shown.endswith("</pre>") and shown.count("<") == 2
    assert html.unescape(shown[5:-6]) == text
    info = qg.info()
    assert html.unescape(info._repr_html_()[5:-6]) == str(info) and info._repr_html_() in info.to_html()


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    report = qg.diff(X, X)
    with pytest.raises(OSError):
        report.save(tmp_path / "absent" / "report.json")
    (tmp_path / "report.json").mkdir()
    with pytest.raises(OSError):
        report.save(tmp_path / "report.json")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_entries_are_attributes_and_items():
    other = X.copy()
    other[1, 2] = np.inf
    report = qg.diff(other, X)
    comparison = report.comparisons[0]
    assert comparison.parity.first.subject == np.inf and report["comparisons"][0]["parity"]["first"]["subject"] == np.inf
    assert report.to_dict()["comparisons"][0]["parity"]["first"]["subject"] == "Infinity"
    assert report.verdict.pass_ is False and report.verdict["pass"] is False and "pass_" in dir(report.verdict)
    assert dict(report.verdict)["pass"] is False and report.verdict.get("absent", 3) == 3
    with pytest.raises(AttributeError, match="it has .*criterion"):
        report.verdict.none_such
