"""Custom recipes: rules for the roles output and grad_input, and rules by the path of a module."""

import json

import numpy as np

import cases
import tensors
from tensors import formats, values_of

FP8 = {"name": "fp8_current", "knobs": {"power_2_scales": True}}
M, N, K = 32, 64, 96


def fp8_tensor(tensor, element):
    """The values of the codes of fp8_current:power_2_scales=true (docs/quantizers.md section 2)."""
    values = values_of(tensor)
    scale = np.exp2(np.floor(np.log2(formats.largest(element) / np.float32(np.abs(values).max()))))
    return formats.decode(formats.encode(values * scale, element), element).astype(np.float64) / scale


def mxfp8_rows(tensor, element):
    """The values of the codes of mxfp8 rowwise (section 4), in bf16."""
    values = values_of(tensor)
    blocks = values.reshape(values.shape[0], -1, 32)
    ratio = np.abs(blocks).max(axis=-1, keepdims=True).astype(np.float32) * (np.float32(1) / formats.largest(element))
    scale = np.exp2(np.ceil(np.log2(ratio.astype(np.float64))))  # The next power of two, or itself.
    codes = formats.encode(blocks / scale, element)
    return tensors.bf16((formats.decode(codes, element) * scale).reshape(values.shape))


def linear(x, weight, dy, is_quantized):
    """y, dx and dw of bf16 tensors, each product exact and rounded once."""
    def read(tensor, element):
        return fp8_tensor(tensor, element) if is_quantized else values_of(tensor)
    x, weight, dy = read(x, "e4m3"), read(weight, "e4m3"), read(dy, "e5m2")
    products = {"y": (x, weight), "dx": (dy, weight.T), "dw": (dy.T, x.T)}
    return {name: tensors.bf16(tensors.exact_product(*sides)) for name, sides in products.items()}


class CustomRecipeTest(cases.StubTest):
    def custom(self, *rules, **fields):
        return self.pb.Variant(recipe=self.pb.Recipe(name="custom", knobs={"rules": json.dumps(rules)}), **fields)


class ResultsTest(CustomRecipeTest):
    """Operands are integers that every format holds, so that results alone are rounded; sums of at most 13 bits, which a
    tensor core of any arithmetic adds exactly."""

    RULES = ({"tensor_type": "output", "quantizer": "mxfp8"},
             {"tensor_type": "grad_input", "quantizer": {"name": "mxfp8", "knobs": {"fp8_format": "hybrid"}}},
             {"quantizer": FP8})

    @classmethod
    def setUpClass(cls):
        random = np.random.default_rng(11)
        cls.x, cls.weight, cls.dy = (tensors.bf16(random.integers(-4, 5, shape)) for shape in ((M, K), (N, K), (M, N)))
        x, weight, dy = (values_of(tensor) for tensor in (cls.x, cls.weight, cls.dy))
        products = {"y": (x, weight), "dx": (dy, weight.T), "dw": (dy.T, x.T)}
        cls.plain = {name: tensors.bf16(tensors.exact_product(*sides, bits=13)) for name, sides in products.items()}
        cls.ruled = {"y": mxfp8_rows(cls.plain["y"], "e4m3"), "dx": mxfp8_rows(cls.plain["dx"], "e5m2"), "dw": cls.plain["dw"]}

    def test_y_and_dx_have_the_values_of_their_codes(self):
        variants = [recipe(arithmetic=arithmetic) for arithmetic in ("auto", "exact")
                    for recipe in (lambda **fields: self.custom(self.RULES[2], **fields),
                                   lambda **fields: self.custom(*self.RULES, **fields))]
        spec = self.linear_spec(self.x, self.weight, self.dy, *variants, reference=0)
        reports, _ = self.service.execute(spec)
        for report, expected in zip(reports, (self.plain, self.ruled) * 2):
            self.assert_outputs(report, expected)
        roles = [[record.role for record in report.quantizations] for report in reports[:2]]
        self.assertEqual(sorted(set(roles[1]) - set(roles[0])), ["grad_input", "output"])
        # What the rules change is what numpy's rounding changes.
        changed = {name: len(tensors.differing(self.ruled[name], self.plain[name])) for name in self.plain}
        self.assertEqual({comparison.tensor: comparison.parity.mismatch_count for comparison in reports[1].against_reference},
                         changed)
        self.assertTrue(changed["y"] > 500 and changed["dx"] > 500 and changed["dw"] == 0, changed)

    def test_a_session_gives_them_and_a_flipped_bit_is_found(self):
        for flip in (None, "y", "dx"):
            with self.subTest(flip):
                request = self.pb.RunTraceRequest()
                trace = request.trace
                trace.spec.layers.add(name="fc").layer.kind = "linear"
                trace.parameters["fc.weight"] = "weight"
                trace.variants.append(self.custom(*self.RULES))
                forward, backward = trace.steps.add(x="x"), trace.steps.add(grad_output="dy")
                forward.forward.SetInParent()
                backward.backward.SetInParent()
                for step, name, output in ((forward, "y", "y"), (backward, "dx", "dx"), (backward, "fc.dw", "dw")):
                    step.subjects[name] = "gives." + output
                    step.subjects_requirement = self.pb.REQUIREMENT_BITWISE
                    tensor = self.ruled[output]
                    tensors.set_source(request.tensors["gives." + output],
                                       tensors.flipped(tensor, (2, 3)) if output == flip else tensor)
                for name, tensor in (("x", self.x), ("weight", self.weight), ("dy", self.dy)):
                    tensors.set_source(request.tensors[name], tensor)
                report = self.service.trace(request)[-1].finished.report
                self.assertEqual((report.trace.subject_count, report.trace.failed_count), (3, 0 if flip is None else 1))
                self.assertEqual(getattr(report.verdict, "pass"), flip is None)


class ModulePathTest(CustomRecipeTest):
    """Two linear modules one after the other: operations `up` and `down` of a chain `tail`."""

    @classmethod
    def setUpClass(cls):
        random = np.random.default_rng(12)
        cls.x, cls.up, cls.down, cls.dy = (tensors.bf16(np.round(random.normal(size=shape) * 64) / 64)
                                           for shape in ((M, K), (N, K), (K, N), (M, K)))

    def expected(self, *quantized):
        """`quantized`: the modules that are."""
        any_gradient = tensors.bf16(np.ones((M, N)))  # Of a forward alone.
        middle = linear(self.x, self.up, any_gradient, "up" in quantized)["y"]
        down = linear(middle, self.down, self.dy, "down" in quantized)
        up = linear(self.x, self.up, down["dx"], "up" in quantized)
        return {"y": down["y"], "down.dw": down["dw"], "up.dw": up["dw"], "dx": up["dx"]}

    def variants(self):
        return [self.custom({"module_path": path, "quantizer": FP8}, {"quantizer": "bf16"}, arithmetic="exact")
                for path in ("*.down", "tail.up", "tail.*", "tail.middle")]

    def expectations(self):
        return [self.expected(*modules) for modules in (("down",), ("up",), ("up", "down"), ())]

    def set_chain(self, layer, parameters, prefix=""):
        layer.kind = "chain"
        for name, weight in (("up", self.up), ("down", self.down)):
            layer.operations.add(kind="basic_linear", name=name)
            tensors.set_source(parameters[f"{prefix}{name}.weight"], weight)

    def test_a_run_quantizes_the_modules_that_its_rules_name(self):
        spec = self.pb.RunSpec(keep_outputs=True, variants=self.variants())
        spec.step.layer.name = "tail"
        self.set_chain(spec.step.layer, spec.step.parameters)
        tensors.set_source(spec.step.x, self.x)
        tensors.set_source(spec.step.grad_output, self.dy)
        reports, _ = self.service.execute(spec)
        expectations = self.expectations()
        for report, expected in zip(reports, expectations):
            self.assert_outputs(report, expected)
        # No two of them have the same y, so that a rule that fits another module would be seen.
        for i, one in enumerate(expectations):
            for other in expectations[:i]:
                self.assertGreater(len(tensors.differing(one["y"], other["y"])), 100)
        quantized = [{record.tensor for record in report.quantizations if record.role == "weight"} for report in reports]
        self.assertEqual(quantized, [{"down.weight"}, {"up.weight"}, {"up.weight", "down.weight"}, set()])
        named = [any("tail.middle" in note for note in report.notes) for report in reports]
        self.assertEqual(named, [False, False, False, True])

    def test_a_session_does_the_same(self):
        for variant, expected, is_idle in zip(self.variants(), self.expectations(), (False, False, False, True)):
            request = self.pb.OpenSessionRequest()
            request.spec.recipe.CopyFrom(variant.recipe)
            request.spec.arithmetic = "exact"
            self.set_chain(request.spec.layers.add(name="tail").layer, request.parameters, "tail.")
            session = self.service.sessions.Open(request)
            self.assertEqual(any("tail.middle" in note for note in session.notes), is_idle)
            step = self.pb.SessionStepRequest(session_id=session.session_id, keep_outputs=True)
            tensors.set_source(step.forward.x, self.x)
            outputs = {output.name: output for output in self.service.sessions.Step(step).outputs}
            self.service.sessions.Close(self.pb.CloseSessionRequest(session_id=session.session_id))
            self.assert_bits(tensors.tensor_of(self.service, outputs["y"]), expected["y"])
