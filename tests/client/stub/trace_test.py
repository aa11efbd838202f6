"""A trace of a linear layer under fp8_current beside bf16, and subjects of it."""

import hashlib

import numpy as np

import cases
import tensors
from tensors import formats

ROWS, COLUMNS, VALUES = 32, 32, 16


def operands():
    """x [ROWS][32] and weight [COLUMNS][32] in bf16: values of [1, 2), and in columns of their own the amaxes, 448, so
    that both scales are 1."""
    random = np.random.default_rng(7)
    x, weight = np.zeros((ROWS, 32)), np.zeros((COLUMNS, 32))
    for tensor in (x, weight):
        shape = tensor.shape[0], VALUES
        tensor[:, :VALUES] = random.choice([-1, 1], shape) * random.uniform(1, 1.99, shape)
    x[0, VALUES] = weight[0, VALUES + 1] = 448
    return tensors.bf16(x), tensors.bf16(weight)


def expected_y(x, weight):
    """The products of E4M3 values are multiples of 2^-6 and the sums at most 64: exact in every order, also in the 13 bits
    below the largest exponent that an FP8 tensor core keeps."""
    values = [formats.decode(formats.encode(tensors.values_of(tensor), "e4m3"), "e4m3").astype(np.float64)
              for tensor in (x, weight)]
    assert (np.abs(values[0]) @ np.abs(values[1]).T).max() <= 64
    return tensors.bf16(tensors.exact_product(*values, bits=13))


class TraceTest(cases.StubTest):
    @classmethod
    def setUpClass(cls):
        cls.x, cls.weight = operands()
        cls.y = expected_y(cls.x, cls.weight)

    def request(self, subject=None):
        request = self.pb.RunTraceRequest(keep_outputs=True)
        trace = request.trace
        trace.spec.layers.add(name="fc").layer.kind = "linear"
        trace.parameters["fc.weight"] = "weight"
        trace.variants.extend(self.variant(recipe) for recipe in ("bf16", "fp8_current"))
        step = trace.steps.add(x="x")
        step.forward.SetInParent()
        tensors.set_source(request.tensors["x"], self.x)
        tensors.set_source(request.tensors["weight"], self.weight)
        if subject is not None:
            step.subjects["y"] = "mine"
            step.subjects_of = 1
            step.subjects_requirement = self.pb.REQUIREMENT_BITWISE
            tensors.set_source(request.tensors["mine"], subject)
        return request

    def test_a_step_gives_the_bits_of_numpy_and_waiting_its_events(self):
        events = self.service.trace(self.request())
        self.assertEqual(list(events[1].trace.variants), ["bf16 / none / auto", "fp8_current / none / auto"])
        steps = [event.trace_step for event in events if event.HasField("trace_step")]
        self.assertEqual([step.variant for step in steps], [0, 1])
        (output,) = steps[1].outputs
        self.assertEqual((output.name, output.digest.sha256), ("y", hashlib.sha256(self.y.codes.tobytes()).digest()))
        self.assert_bits(tensors.tensor_of(self.service, output), self.y)
        # The reference variant multiplies the bf16 operands themselves: in y of other bits.
        plain = tensors.bf16(tensors.exact_product(tensors.values_of(self.x), tensors.values_of(self.weight), bits=24))
        (comparison,) = steps[1].against_reference
        self.assertEqual(comparison.parity.mismatch_count, len(tensors.differing(self.y, plain)))
        self.assertGreater(comparison.parity.mismatch_count, 100)
        again = list(self.service.engine.WaitRun(self.pb.WaitRunRequest(run_id=events[0].run_id)))
        self.assertEqual([event.sequence for event in again], list(range(1, len(events) + 1)))
        self.assertEqual(again, events)

    def test_a_subject_passes_and_one_flipped_bit_is_found(self):
        verdict = self.service.trace(self.request(self.y))[-1].finished.report.verdict
        self.assertTrue(getattr(verdict, "pass"), verdict)
        events = self.service.trace(self.request(tensors.flipped(self.y, (3, 5))))
        verdict = events[-1].finished.report.verdict
        self.assertFalse(getattr(verdict, "pass"), verdict)
        (subject,) = next(event.trace_step.subjects for event in events
                          if event.HasField("trace_step") and event.trace_step.subjects)
        self.assertEqual(subject.parity.mismatch_count, 1)
        self.assertEqual(list(subject.parity.first.coordinate), [3, 5])
        self.assertEqual(subject.parity.first.reference_bits, int(self.y.codes[3, 5]))
        self.assertEqual(subject.parity.first.subject_bits, int(self.y.codes[3, 5]) ^ 1)

    def test_a_subject_that_fails_has_its_cause(self):
        negated = tensors.Tensor(self.y.dtype, self.y.codes ^ np.uint16(0x8000))
        events = self.service.trace(self.request(negated))
        steps = [event.trace_step for event in events if event.HasField("trace_step")]
        self.assertFalse(steps[0].HasField("diagnosis"))
        self.assertEqual(steps[1].diagnosis.sentence, "y is negated")
        self.assertFalse(steps[1].diagnosis.is_unknown)
        for event in self.service.trace(self.request(self.y)):
            self.assertFalse(event.trace_step.HasField("diagnosis"))
