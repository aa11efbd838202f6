"""Bytes saved for backward, of runs and of sessions: docs/quantizers.md section 9 says what is saved, docs/reports.md
section 9 what its bytes are. Counted here from shapes."""

import numpy as np

import cases
import tensors

M, N, K = 64, 96, 160
MODES = ("none", "high_precision", "dequantized")


def scale_bytes(recipe, rows, columns, direction, is_tile):
    """Of the codes of one direction, by the shapes of docs/file-formats.md section 2."""
    def blocks(size):
        return -(-size // 128)
    if recipe == "fp8_current":
        return 4
    if recipe == "fp8_block" and is_tile:
        return 4 * blocks(rows) * blocks(columns)
    if recipe == "fp8_block":
        return 4 * (rows * blocks(columns) if direction == "rowwise" else blocks(rows) * columns)
    # Scales of nvfp4's tiles are there for every row; its amax is a factor of every value.
    return rows * columns // 32 if recipe == "mxfp8" else rows * columns // 16 + 4


def expected_saved(recipe, mode):
    """Of x, weight and the weight workspace, by name: bytes of data, of scales, and held anyway."""
    x, weight = 2 * M * K, 2 * N * K
    if recipe == "bf16":
        return {"x": (x, 0, 0), "weight": (weight, 0, weight)}

    def sums(role, *directions):
        rows, is_tile = (M, False) if role == "x" else (N, recipe in ("fp8_block", "nvfp4"))
        data = len(directions) * rows * K // (2 if recipe == "nvfp4" else 1)
        scales = [scale_bytes(recipe, rows, K, direction, is_tile) for direction in directions]
        # Both directions of fp8_current have one scale.
        return data, scales[0] if recipe == "fp8_current" else sum(scales), 0
    if mode == "none":
        return {"x": sums("x", "columnwise"), "weight": sums("weight", "rowwise", "columnwise")}
    if mode == "dequantized":
        return {"x": sums("x", "rowwise"), "weight": sums("weight", "rowwise")}
    return {"x": (x, 0, 0), "weight": (weight, 0, weight), "weight workspace": sums("weight", "rowwise")}


class SavedBytesTest(cases.StubTest):
    @classmethod
    def setUpClass(cls):
        random = np.random.default_rng(13)
        cls.x, cls.weight, cls.dy = (tensors.bf16(random.normal(size=shape)) for shape in ((M, K), (N, K), (M, N)))

    def test_a_run_counts_every_recipe_and_mode(self):
        names = [(recipe, mode) for recipe in ("bf16", "fp8_current", "fp8_block", "mxfp8", "nvfp4")
                 for mode in MODES if recipe != "bf16" or mode == "none"]
        variants = [self.variant(recipe, backward_override=mode) for recipe, mode in names]
        reports, _ = self.service.execute(self.linear_spec(self.x, self.weight, self.dy, *variants))
        for (recipe, mode), report in zip(names, reports):
            with self.subTest(f"{recipe}, {mode}"):
                expected = expected_saved(recipe, mode)
                found = {saved.name: (saved.data_bytes, saved.scale_bytes, saved.held_bytes) for saved in report.saved}
                self.assertEqual(found, expected)
                for other in set(MODES) - {mode}:
                    self.assertTrue(found != expected_saved(recipe, other) or recipe == "bf16")
                data, scales, held = map(sum, zip(*expected.values()))
                total = report.saved_bytes
                self.assertEqual((total.bytes, total.data_bytes, total.scale_bytes, total.held_bytes),
                                 (data + scales, data, scales, held))

    def play(self, mode, *steps):
        """SessionMemory after each step of a session under mxfp8. `steps`: fields of SessionStepRequest."""
        request = self.pb.OpenSessionRequest()
        request.spec.layers.add(name="fc").layer.kind = "linear"
        request.spec.recipe.name, request.spec.backward_override = "mxfp8", mode
        tensors.set_source(request.parameters["fc.weight"], self.weight)
        session = self.service.sessions.Open(request).session_id
        memories = []
        for count, step in enumerate(steps):
            request = self.pb.SessionStepRequest(session_id=session, expected_step=count, **step)
            if request.HasField("forward"):
                tensors.set_source(request.forward.x, self.x)
            if request.HasField("backward"):
                tensors.set_source(request.backward.grad_output, self.dy)
            memories.append(self.service.sessions.Step(request).memory)
        self.service.sessions.Close(self.pb.CloseSessionRequest(session_id=session))
        return memories

    def test_a_session_counts_what_is_saved_moved_and_freed(self):
        for mode in MODES:
            with self.subTest(mode):
                saved, moved, back, freed = self.play(mode, {"forward": {}}, {"offload": {}}, {"reload": {}}, {"backward": {}})
                expected = expected_saved("mxfp8", mode)
                data, scales, held = map(sum, zip(*expected.values()))
                self.assertEqual((saved.saved_bytes, saved.scale_bytes, saved.held_bytes, saved.added_bytes, saved.host_bytes),
                                 (data + scales, scales, held, data + scales - held, 0))
                self.assertEqual({one.operand: (one.data_bytes, one.scale_bytes, one.held_bytes) for one in saved.operands},
                                 expected)
                self.assertEqual((moved.saved_bytes, moved.host_bytes), (0, data + scales))
                self.assertEqual({one.place[:4] for one in moved.operands}, {"host"})
                self.assertEqual((back.saved_bytes, back.host_bytes), (data + scales, 0))
                self.assertEqual((freed.saved_bytes, freed.host_bytes, len(freed.operands)), (0, 0, 0))

    def test_a_recomputed_forward_saves_x_alone(self):
        saved, freed = self.play("none", {"forward": {"recompute": True}}, {"backward": {}})
        data, scales, _ = map(sum, zip(*expected_saved("mxfp8", "none").values()))
        self.assertEqual((saved.saved_bytes, saved.not_saved_bytes), (2 * M * K, data + scales))
        self.assertEqual((freed.saved_bytes, freed.not_saved_bytes), (0, 0))
        self.assertEqual((freed.peak_bytes, freed.peak_step), (2 * M * K + data + scales, 2))
