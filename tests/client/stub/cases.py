"""What the tests of this folder share: the server that they call, and the comparison of bits."""

import unittest

import grpc
import numpy as np

import tensors


class StubTest(unittest.TestCase):
    service = None  # Set once, by __main__.py.

    @property
    def pb(self):
        return self.service.pb

    def assert_bits(self, found, expected, what=""):
        """No element differs; and one flipped bit would have been seen, at its place."""
        places = tensors.differing(found, expected)
        if places:
            width = 2 * found.codes.itemsize
            bits = (int.from_bytes(np.array(side.codes[places[0]]).tobytes(), "little") for side in (found, expected))
            text = " is not ".join(f"0x{code:0{width}x}" for code in bits)
            self.fail(f"{what}: {len(places)} of {found.codes.size} elements differ, the first at {places[0]}: {text}")
        last = tuple(size - 1 for size in found.codes.shape)
        self.assertEqual(tensors.differing(tensors.flipped(found, last), expected), [last])

    def assert_outputs(self, report, expected):
        """The outputs of a VariantReport are exactly these, by name, and have their bits."""
        outputs = {output.tensor.name: output.tensor for output in report.outputs if not output.intermediate}
        self.assertEqual(sorted(outputs), sorted(expected))
        for name, tensor in expected.items():
            self.assert_bits(tensors.tensor_of(self.service, outputs[name]), tensor, f"{report.label}, {name}")

    def assert_refused(self, call, request, code, *words):
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(request)) if call is self.service.engine.Execute else call(request)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        for word in words:
            self.assertIn(word, caught.exception.details())

    def linear_spec(self, x, weight, grad_output, *variants, **fields):
        """A RunSpec of a linear layer. `variants`: Variant messages."""
        spec = self.pb.RunSpec(keep_outputs=True, variants=variants, **fields)
        spec.step.layer.kind = "linear"
        tensors.set_source(spec.step.x, x)
        tensors.set_source(spec.step.parameters["weight"], weight)
        tensors.set_source(spec.step.grad_output, grad_output)
        return spec

    def variant(self, recipe, **fields):
        """Of a recipe `name` or `name:knob=value,knob=value`."""
        name, _, text = recipe.partition(":")
        knobs = dict(knob.split("=") for knob in text.split(",")) if text else {}
        return self.pb.Variant(recipe=self.pb.Recipe(name=name, knobs=knobs), **fields)
