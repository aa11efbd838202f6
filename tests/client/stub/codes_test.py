"""x, weight and grad_output as codes with scales, of runs and of sessions, and Engine.UpdateUsages.

Codes and sums are those of tests/data/given_codes, which numpy and ml_dtypes made (given_codes_reference.py)."""

import grpc
import numpy as np

import cases
import tensors
from tensors import Tensor, formats

FORMATS = ("fp8_tensor", "fp8_block", "mxfp8", "nvfp4")
SCALES = {"fp8_tensor": "f32", "fp8_block": "f32", "mxfp8": "f8_e8m0", "nvfp4": "f8_e4m3"}
# Columns of a block, and its rows where it is a tile.
BLOCKS = {"fp8_block": 128, "mxfp8": 32, "nvfp4": 16}
PARTS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")


class Operand:
    """A file of codes and scales in both directions."""

    def __init__(self, format_name, role):
        parts, metadata = tensors.read_file(f"tests/data/given_codes/{format_name}.{role}.safetensors")
        self.format, self.recipe = format_name, metadata["quantgate.recipe"]
        self.shape = tuple(map(int, metadata["quantgate.shape"].split("x")))
        fields = dict(field.split("=") for field in metadata["quantgate.rowwise"].split(":")[1].split(","))
        self.element, self.block_dim = fields["element"], int(fields["block_dim"])
        self.parts = {name: Tensor(SCALES[format_name] if name.endswith("scale_inv") else self.element, tensor.codes)
                      for name, tensor in parts.items()}

    def set_source(self, quantized, part_names=PARTS):
        """Into a QuantizedSource."""
        for name in part_names:
            tensors.set_source(quantized.tensors[name], self.parts[name])
        quantized.description.shape.extend(self.shape)
        for usage in ("rowwise", "columnwise"):
            if usage + "_data" in part_names:
                direction = getattr(quantized.description, usage)
                direction.format, direction.element, direction.block_dim = self.format, self.element, self.block_dim
                direction.e4m3_max = 448
        quantized.source_dtype = "f32"

    def values(self):
        """What the rowwise codes and scales say, in binary64."""
        codes, scales = self.parts["rowwise_data"].codes, self.parts["rowwise_scale_inv"].codes
        if self.format == "nvfp4":
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(self.shape)
            element, scales = "e2m1", formats.decode(scales, "e4m3")
        else:
            element = self.element.removeprefix("f8_")
        if self.format == "mxfp8":
            scales = np.exp2(scales.astype(np.float64) - 127)
        if self.format != "fp8_tensor":
            rows = 128 if self.format == "fp8_block" and self.block_dim == 2 else 1
            scales = np.repeat(np.repeat(scales, rows, axis=0), BLOCKS[self.format], axis=1)
            scales = scales[:self.shape[0], :self.shape[1]]
        return formats.decode(codes, element).astype(np.float64) * scales.astype(np.float64)

    def with_flipped_code(self, place):
        """`place`: of rowwise_data."""
        changed = Operand.__new__(Operand)
        changed.__dict__.update(self.__dict__)
        changed.parts = {**self.parts, "rowwise_data": tensors.flipped(self.parts["rowwise_data"], place)}
        return changed


def read_case(format_name):
    """x, weight, grad_output, and the outputs by name."""
    operands = [Operand(format_name, role) for role in ("x", "weight", "grad_output")]
    return operands, tensors.read_file(f"tests/data/given_codes/{format_name}.expected.safetensors")[0]


class CodesTest(cases.StubTest):
    def spec(self, x, weight, grad_output=None, recipe=None, weight_parts=PARTS):
        spec = self.pb.RunSpec(keep_outputs=True, variants=[self.variant(recipe or x.recipe, arithmetic="exact")])
        spec.step.layer.kind = "linear"
        x.set_source(spec.step.x.quantized)
        weight.set_source(spec.step.parameters["weight"].quantized, weight_parts)
        if grad_output is not None:
            grad_output.set_source(spec.step.grad_output.quantized)
        return spec

    def test_a_run_gives_the_exact_sums(self):
        for name in FORMATS:
            with self.subTest(name):
                operands, expected = read_case(name)
                (report,), _ = self.service.execute(self.spec(*operands))
                self.assert_outputs(report, expected)

    def test_the_source_is_quantized_to_these_codes(self):
        """By Engine.Quantize, and by a run, whose outputs are the same then."""
        source = tensors.read_file("tests/data/given_codes/source.safetensors")[0]
        roles = {"x": "input", "weight": "weight", "grad_output": "grad_output"}
        for name in FORMATS:
            with self.subTest(name):
                operands, expected = read_case(name)
                for operand, (tensor, role) in zip(operands, roles.items()):
                    recipe = self.variant(operand.recipe).recipe
                    request = self.pb.QuantizeRequest(recipe=recipe, role=role, rowwise=True, columnwise=True)
                    tensors.set_source(request.tensor, source[tensor])
                    found = {named.name: named for named in self.service.engine.Quantize(request).tensors}
                    for part in PARTS:
                        self.assert_bits(tensors.tensor_of(self.service, found[part]), operand.parts[part], f"{tensor}, {part}")
                variant = self.variant(operands[0].recipe, arithmetic="exact")
                (report,), _ = self.service.execute(self.linear_spec(*(source[tensor] for tensor in roles), variant))
                self.assert_outputs(report, expected)

    def test_one_flipped_code_changes_the_outputs_that_numpy_says(self):
        for name in FORMATS:
            with self.subTest(name):
                (x, weight, _), expected = read_case(name)
                row = 5
                x = x.with_flipped_code((row, 7))
                product = tensors.exact_product(x.values(), weight.values())
                changed = Tensor("f32", product.astype(np.float32))
                places = tensors.differing(changed, expected["y"])
                self.assertEqual({place[0] for place in places}, {row})
                self.assertGreater(len(places), 10)
                (report,), _ = self.service.execute(self.spec(x, weight))
                self.assert_outputs(report, {"y": changed})

    def test_a_session_gives_the_exact_sums(self):
        for name in FORMATS:
            with self.subTest(name):
                (x, weight, grad_output), expected = read_case(name)
                request = self.pb.OpenSessionRequest()
                request.spec.layers.add(name="fc").layer.kind = "linear"
                request.spec.recipe.CopyFrom(self.variant(x.recipe).recipe)
                request.spec.arithmetic, request.spec.weights = "exact", "quantized"
                parts = PARTS
                if name == "fp8_tensor":  # A session keeps these beside the codes.
                    source = tensors.read_file("tests/data/given_codes/source.safetensors")[0]["weight"]
                    amax = Tensor("f32", np.abs(source.codes).max().reshape(1))
                    scale = Tensor("f32", 1 / weight.parts["rowwise_scale_inv"].codes)
                    weight.parts |= {"amax_rowwise": amax, "amax_columnwise": amax, "scale": scale}
                    parts += ("amax_rowwise", "amax_columnwise", "scale")
                weight.set_source(request.parameters["fc.weight"].quantized, parts)
                session = self.service.sessions.Open(request).session_id
                forward = self.pb.SessionStepRequest(session_id=session, keep_outputs=True)
                x.set_source(forward.forward.x.quantized)
                backward = self.pb.SessionStepRequest(session_id=session, expected_step=1, keep_outputs=True)
                grad_output.set_source(backward.backward.grad_output.quantized)
                outputs = {}
                for step in (forward, backward):
                    outputs |= {output.name: output for output in self.service.sessions.Step(step).outputs}
                self.service.sessions.Close(self.pb.CloseSessionRequest(session_id=session))
                self.assertEqual(sorted(outputs), ["dx", "fc.dw", "y"])
                for output, tensor in outputs.items():
                    self.assert_bits(tensors.tensor_of(self.service, tensor), expected[output.removeprefix("fc.")], output)

    def test_a_missing_direction_is_derived_or_refused(self):
        for name in ("fp8_tensor", "fp8_block", "nvfp4"):  # The last two of tiles.
            with self.subTest(name):
                operands, expected = read_case(name)
                (report,), _ = self.service.execute(self.spec(*operands, weight_parts=PARTS[:2]))
                self.assert_outputs(report, expected)
                self.assertTrue(any("weight" in note and "columnwise" in note for note in report.notes), report.notes)
        operands, _ = read_case("mxfp8")
        request = self.pb.ExecuteRequest(spec=self.spec(*operands, weight_parts=PARTS[:2]))
        self.assert_refused(self.service.engine.Execute, request, grpc.StatusCode.INVALID_ARGUMENT, "parameters[weight]",
                            "columnwise")

    def test_another_format_than_the_recipes_is_refused(self):
        operands, _ = read_case("mxfp8")
        request = self.pb.ExecuteRequest(spec=self.spec(*operands, recipe="fp8_current"))
        self.assert_refused(self.service.engine.Execute, request, grpc.StatusCode.INVALID_ARGUMENT, "mxfp8", "fp8_tensor")


class UsagesTest(cases.StubTest):
    def request(self, operand, part_names, **wishes):
        request = self.pb.UpdateUsagesRequest(**wishes)
        operand.set_source(request.tensor, part_names)
        return request

    def tensors_of(self, response):
        return {named.name: tensors.tensor_of(self.service, named) for named in response.tensors}

    def assert_parts(self, response, operand, part_names):
        found = self.tensors_of(response)
        self.assertEqual(sorted(found), sorted(part_names))
        for name in part_names:
            self.assert_bits(found[name], operand.parts[name], f"{operand.format}, {name}")

    def test_columnwise_codes_are_those_that_numpy_made_of_the_source(self):
        for name in ("fp8_tensor", "fp8_block", "nvfp4"):
            with self.subTest(name):
                weight = Operand(name, "weight")
                query = self.service.engine.UpdateUsages(self.request(weight, PARTS[:2]))
                self.assertEqual(len(query.tensors), 0)
                self.assertTrue(query.rowwise.present and not query.rowwise.droppable)
                self.assertTrue(query.columnwise.derivable and not query.columnwise.present)
                both = self.service.engine.UpdateUsages(self.request(weight, PARTS[:2], columnwise=True))
                self.assert_parts(both, weight, PARTS)
                # Of one flipped code the same code is another one there.
                row, column = 3, 8
                changed = weight.with_flipped_code((row, column))
                other = self.tensors_of(self.service.engine.UpdateUsages(self.request(changed, PARTS[:2], columnwise=True)))
                place = (2 * column, row // 2) if name == "nvfp4" else (column, row)
                self.assertEqual(tensors.differing(other["columnwise_data"], weight.parts["columnwise_data"]), [place])

    def test_a_direction_is_dropped_and_the_last_one_is_not(self):
        for name in FORMATS:
            with self.subTest(name):
                weight = Operand(name, "weight")
                query = self.service.engine.UpdateUsages(self.request(weight, PARTS))
                self.assertTrue(query.rowwise.droppable and query.columnwise.droppable)
                for left, wish in ((PARTS[:2], {"columnwise": False}), (PARTS[2:], {"rowwise": False})):
                    response = self.service.engine.UpdateUsages(self.request(weight, PARTS, **wish))
                    self.assert_parts(response, weight, left)
                self.assert_refused(self.service.engine.UpdateUsages, self.request(weight, PARTS[:2], rowwise=False),
                                    grpc.StatusCode.FAILED_PRECONDITION, "rowwise")

    def test_what_a_format_cannot_derive_is_refused(self):
        # Columnwise from blocks of rows, and rowwise from columnwise.
        for name, role, parts, wish in (("mxfp8", "weight", PARTS[:2], "columnwise"), ("nvfp4", "x", PARTS[:2], "columnwise"),
                                        ("fp8_block", "x", PARTS[:2], "columnwise"), ("mxfp8", "x", PARTS[2:], "rowwise"),
                                        ("fp8_tensor", "x", PARTS[2:], "rowwise")):
            with self.subTest(f"{name}, {role}, {wish}"):
                operand = Operand(name, role)
                query = self.service.engine.UpdateUsages(self.request(operand, parts))
                state = getattr(query, wish)
                self.assertFalse(state.present or state.derivable)
                self.assertIn(wish, state.reason)
                self.assert_refused(self.service.engine.UpdateUsages, self.request(operand, parts, **{wish: True}),
                                    grpc.StatusCode.FAILED_PRECONDITION, wish)
