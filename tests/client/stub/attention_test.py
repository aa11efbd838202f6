"""The layers `attention` and `transformer_layer`, as runs and as sessions of a trace.

Operands and outputs are those of tests/data/attention_layers.safetensors, which numpy, ml_dtypes and mpmath made
(attention_layer_reference.py)."""

import cases
import tensors

# Name: kind and fields of the message Layer.
LAYERS = {
    "grouped_causal_rotary": ("attention", {"attention": {"heads": 4, "groups": 2, "mask": "causal", "rotary_base": 10000.0}}),
    "plain": ("attention", {"attention": {"heads": 3}}),
    "integers": ("attention", {"attention": {"heads": 4, "groups": 2, "mask": "causal"}}),
    "gelu_block": ("transformer_layer",
                   {"attention": {"heads": 2, "groups": 1, "mask": "causal", "rotary_base": 100.0},
                    "norm": {"kind": "layernorm"}, "activation": {"kind": "gelu"}}),
    "swiglu_block": ("transformer_layer", {"attention": {"heads": 4, "groups": 2}, "norm": {"kind": "rmsnorm"},
                                           "activation": {"kind": "swiglu"}}),
}


class AttentionTest(cases.StubTest):
    @classmethod
    def setUpClass(cls):
        cls.recorded = tensors.read_file("tests/data/attention_layers.safetensors")[0]

    def part(self, prefix):
        """Tensors by their names behind the prefix."""
        return {name[len(prefix):]: tensor for name, tensor in self.recorded.items() if name.startswith(prefix)}

    def layer(self, name, **changes):
        kind, fields = LAYERS[name]
        return self.pb.Layer(kind=kind, **{key: value | changes.get(key, {}) for key, value in fields.items()})

    def run_of(self, name, layer, *arithmetics):
        variants = [self.variant("bf16", arithmetic=arithmetic) for arithmetic in arithmetics]
        spec = self.pb.RunSpec(keep_outputs=True, variants=variants)
        spec.step.layer.CopyFrom(layer)
        tensors.set_source(spec.step.x, self.recorded[name + ".x"])
        tensors.set_source(spec.step.grad_output, self.recorded[name + ".dy"])
        for parameter, tensor in self.part(name + ".given.").items():
            tensors.set_source(spec.step.parameters[parameter], tensor)
        return self.service.execute(spec)[0]

    def test_runs_give_the_recorded_bits(self):
        for name in LAYERS:
            with self.subTest(name):
                # Of the integers every sum is exact in any order.
                arithmetics = ("exact", "auto", "sm90", "sm80") if name == "integers" else ("exact",)
                for report in self.run_of(name, self.layer(name), *arithmetics):
                    self.assert_outputs(report, self.part(name + ".gives."))

    def test_another_layer_gives_other_bits(self):
        for name, changes in (("plain", {"attention": {"mask": "causal"}}),
                              ("integers", {"attention": {"mask": "none"}}),
                              ("grouped_causal_rotary", {"attention": {"rotary_base": 1000.0}}),
                              ("gelu_block", {"activation": {"kind": "relu"}}),
                              ("swiglu_block", {"attention": {"mask": "causal"}})):
            with self.subTest(name):
                (report,) = self.run_of(name, self.layer(name, **changes), "exact")
                with self.assertRaisesRegex(AssertionError, "elements differ"):
                    self.assert_outputs(report, self.part(name + ".gives."))

    def trace_of(self, name, flip=None):
        """A forward and a backward whose recorded outputs are subjects, one bit of one of them flipped."""
        request = self.pb.RunTraceRequest()
        trace = request.trace
        trace.spec.arithmetic = "exact"
        trace.spec.layers.add(name="block", layer=self.layer(name))
        trace.variants.append(self.variant("bf16"))
        tensors.set_source(request.tensors["x"], self.recorded[name + ".x"])
        tensors.set_source(request.tensors["dy"], self.recorded[name + ".dy"])
        for parameter, tensor in self.part(name + ".given.").items():
            trace.parameters["block." + parameter] = "given." + parameter
            tensors.set_source(request.tensors["given." + parameter], tensor)
        forward, backward = trace.steps.add(x="x"), trace.steps.add(grad_output="dy")
        forward.forward.SetInParent()
        backward.backward.SetInParent()
        for output, tensor in self.part(name + ".gives.").items():
            step = forward if output == "y" else backward
            step.subjects[output if output in ("y", "dx") else "block." + output] = "gives." + output
            step.subjects_requirement = self.pb.REQUIREMENT_BITWISE
            if output == flip:
                tensor = tensors.flipped(tensor, (1,) * tensor.codes.ndim)
            tensors.set_source(request.tensors["gives." + output], tensor)
        events = self.service.trace(request)
        subjects = [subject for event in events if event.HasField("trace_step") for subject in event.trace_step.subjects]
        return subjects, events[-1].finished.report

    def test_sessions_give_the_recorded_bits_and_a_flipped_one_is_found(self):
        for name, flip in (("grouped_causal_rotary", "qkv.dw"), ("gelu_block", "norm1.dgamma")):
            with self.subTest(name):
                count = len(self.part(name + ".gives."))
                subjects, report = self.trace_of(name)
                self.assertEqual((len(subjects), report.trace.failed_count), (count, 0))
                self.assertTrue(getattr(report.verdict, "pass"), report.verdict)
                subjects, report = self.trace_of(name, flip)
                self.assertEqual((len(subjects), report.trace.failed_count), (count, 1))
                self.assertFalse(getattr(report.verdict, "pass"), report.verdict)
                (failed,) = (subject for subject in subjects if not getattr(subject, "pass"))
                self.assertEqual((failed.tensor, failed.parity.mismatch_count), ("block." + flip, 1))
                self.assertEqual(set(failed.parity.first.coordinate), {1})
