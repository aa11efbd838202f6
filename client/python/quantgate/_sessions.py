"""Training sessions: what training keeps between steps (docs/sessions.md)."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _engine
from ._errors import Error, refuse, refuse_type
from ._recipes import RecipeLike
from ._reports import Record, StepReport
from ._requests import fields_of, layer_of, placed, plain, recipe_dict, requires_grad_of

LayerLike = Union[str, Mapping[str, Any]]


def spec_of(layers: Mapping[str, LayerLike], recipe: Optional[RecipeLike], optimizer: Optional[Mapping[str, Any]],
            options: Mapping[str, Any]) -> Dict[str, Any]:
    """The ``SessionSpec`` of the keywords of ``session``; without a recipe that of a trace, whose variants have theirs."""
    if not isinstance(layers, Mapping) or not layers:
        raise refuse_type("layers", layers, "must be a dict of layers by name, one at least")
    spec: Dict[str, Any] = {"layers": []}
    if recipe is not None:
        spec["recipe"] = recipe_dict("recipe", recipe)
    for name, layer in layers.items():
        fields = {"kind": layer} if isinstance(layer, str) else fields_of(f"layers[{name!r}]", layer)
        spec["layers"].append({"name": name, "layer": layer_of(fields.pop("kind", "linear"), fields)})
    if optimizer is not None:
        fields = fields_of("optimizer", optimizer)
        kind = fields.pop("kind", None)
        if kind not in ("adam", "sgd"):
            raise refuse("optimizer", repr(optimizer), 'must be {"kind": "adam" or "sgd", "learning_rate": ...}')
        spec[kind] = fields
    for name in options:
        if name not in ("backward_override", "arithmetic", "weights", "built_without_grad", "masters", "requantization",
                        "main_grads", "seed", "parallel"):
            raise TypeError(f"{name}: no such argument of session")
    spec.update({name: plain(name, value) for name, value in options.items() if value is not None})
    return spec


class Session:
    """Layers in a row with what training keeps of them: parameters, optimizer, scales, what forwards saved.

    A context manager: leaving it closes the session. Not for use by several threads at once.

    Attributes
    ----------
    step : int
        Number of steps done.
    notes : list of str
        Rules of a custom recipe that decide nothing, and why.
    """

    def __init__(self, connection: Any, opened: Mapping[str, Any]):
        self._connection = connection
        self._id = opened["session_id"]
        self.step = opened["step"]
        self.notes: List[str] = list(opened.get("notes") or [])

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # Else what went wrong before is what the caller should see.
                raise

    def __repr__(self) -> str:
        return f"Session({self._id!r}, step={self.step})"

    def close(self) -> None:
        """Lets the session go; closing a closed one is no error."""
        self._call("Close", {})

    def _call(self, method: str, request: Mapping[str, Any]) -> bytes:
        self._connection.begin_step()
        return self._connection.call(f"Sessions/{method}", {"session_id": self._id, **request})

    def _place(self, argument: str, value: Any) -> Any:
        """Where a step finds its tensor, with which it begins."""
        self._connection.begin_step()
        return self._connection.place(argument, value)

    def _do(self, kind: str, step: Mapping[str, Any], has_begun: bool = False,
            against: Optional[RecipeLike] = None) -> StepReport:
        if not has_begun:
            self._connection.begin_step()
        request = {"session_id": self._id, "expected_step": self.step, "request_id": _engine.new_request_id(),
                   kind: dict(step), "keep_outputs": True}
        if against is not None:
            request["against"] = {"recipe": recipe_dict("against", against)}
        response = self._connection.call("Sessions/Step", request)
        entries = json.loads(_engine.decode("SessionStepResponse", response))
        self.step = entries["step"]
        tensors = {}
        for named in _engine.parts("SessionStepResponse", response, "outputs"):
            name = json.loads(_engine.decode("NamedTensor", named))["name"]
            tensors[name] = self._connection.fetch(named)
        return StepReport(entries, lambda: _engine.step_text(response), tensors)

    def forward(self, x: Any, *, microbatch: str = "", evaluate: bool = False, is_first: str = "",
                recompute: bool = False, calibrate: bool = False, requires_grad: Optional[Sequence[str]] = None,
                defer_wgrad: bool = False, amax_groups: Optional[Mapping[str, str]] = None,
                overlap: Optional[Mapping[str, Any]] = None, against: Optional[RecipeLike] = None) -> StepReport:
        """One forward; ``outputs["y"]`` is what the last layer gives.

        Parameters
        ----------
        x : tensor [..., K], or Quantized
        microbatch : str
            Its name until its backward; several may be in flight.
        evaluate : bool
            Saves nothing and updates no scale.
        is_first : str
            ``"first"`` or ``"later"``: whether cached weights are made anew.
        recompute : bool
            Saves x alone, and runs the forward again before the backward.
        calibrate : bool
            Of delayed scaling: computes in high precision and only notes the amaxes.
        requires_grad : list of str, optional
            The gradients wanted, of x, weight, bias and norm; None: every one.
        defer_wgrad : bool
            The backward leaves the weights' gradients to ``wgrad``.
        amax_groups, overlap : dict, optional
            Of several ranks: in place of the session's, for this forward and its backward.
        against : str, dict or Recipe, optional
            Does this step under another recipe too, from the same state: ``report.against`` compares the outputs.

        Returns
        -------
        StepReport

        Raises
        ------
        FailedPrecondition
            For a step out of order, such as a backward without its forward, and of a closed session.
        """
        step: Dict[str, Any] = {"microbatch": microbatch, "x": self._place("x", x), "evaluate": evaluate,
                                "is_first": is_first, "recompute": recompute, "calibrate": calibrate,
                                "defer_wgrad": defer_wgrad}
        wanted = requires_grad_of(requires_grad)
        if wanted is not None:
            step["requires_grad"] = wanted
        for name, value in (("amax_groups", amax_groups), ("overlap", overlap)):
            if value is not None:
                step[name] = fields_of(name, value)
        return self._do("forward", step, has_begun=True, against=against)

    def backward(self, grad_output: Any, *, microbatch: str = "", against: Optional[RecipeLike] = None) -> StepReport:
        """The backward of a forward in flight; ``outputs`` has dx and the parameters' gradients (``fc1.dw``).

        Parameters
        ----------
        grad_output : tensor [..., N], or Quantized
            Of the shape of that forward's y.
        microbatch : str
            The forward's.
        against : str, dict or Recipe, optional
            As its forward had.
        """
        return self._do("backward", {"microbatch": microbatch, "grad_output": self._place("grad_output", grad_output)},
                        has_begun=True, against=against)

    def wgrad(self) -> StepReport:
        """The weights' gradients that backwards left (``defer_wgrad``)."""
        return self._do("wgrad", {})

    def optimize(self, *, learning_rate: Optional[float] = None) -> StepReport:
        """One step of the optimizer, which ends the accumulation of gradients."""
        return self._do("optimize", {} if learning_rate is None else {"learning_rate": plain("learning_rate", learning_rate)})

    def change_recipe(self, recipe: RecipeLike, *, backward_override: str = "") -> StepReport:
        """Another recipe for the forwards from now on."""
        return self._do("change_recipe", {"recipe": recipe_dict("recipe", recipe),
                                          "backward_override": backward_override})

    def offload(self, microbatch: str = "") -> StepReport:
        """Moves what a forward saved to host memory."""
        return self._do("offload", {"microbatch": microbatch})

    def reload(self, microbatch: str = "") -> StepReport:
        """Moves it back."""
        return self._do("reload", {"microbatch": microbatch})

    def checkpoint(self) -> bytes:
        """The whole state as the bytes of one safetensors file."""
        response = json.loads(_engine.decode("CheckpointResponse", self._call("Checkpoint", {})))
        digest, _, size = response["digest"].partition("/")
        return self._connection.client.download(bytes.fromhex(digest), int(size))

    def state(self) -> Record:
        """The session as it is: step, microbatches in flight, memory, and type and fingerprint of every tensor.

        Also what ``step`` is from then on: after a step that an interrupt, a deadline or a lost server ended, this says whether
        it was done.
        """
        entries = json.loads(_engine.decode("Session", self._call("Get", {"with_tensors": True})))
        self.step = entries["step"]
        return Record(entries)

    def tensor(self, name: str) -> Any:
        """A tensor of the state: ``"fc1.weight"``, ``"fc1.weight.master"``, ``"fc1.input.amax_history"``."""
        response = self._call("Get", {"tensor": name})
        named, = _engine.parts("Session", response, "tensor")
        return self._connection.fetch(named)


def open_session(connection: Any, spec: Mapping[str, Any], parameters: Mapping[str, Any]) -> Session:
    request = {"spec": dict(spec), "parameters": placed("parameters", parameters, connection.place_to_keep),
               "request_id": _engine.new_request_id()}
    return Session(connection, json.loads(_engine.decode("Session", connection.call("Sessions/Open", request))))


def restore_session(connection: Any, checkpoint: bytes, spec: Mapping[str, Any]) -> Session:
    if not isinstance(checkpoint, (bytes, bytearray, memoryview)):
        raise refuse_type("checkpoint", checkpoint, "must be the bytes that Session.checkpoint gave")
    import base64

    import numpy as np

    data = np.frombuffer(bytes(checkpoint), np.uint8)
    stored: Tuple[bytes, int] = connection.client.upload(_engine.wrap(data, "u8"))
    request = {"spec": dict(spec), "request_id": _engine.new_request_id(),
               "checkpoint": {"sha256": base64.b64encode(stored[0]).decode(), "size": stored[1]}}
    return Session(connection, json.loads(_engine.decode("Session", connection.call("Sessions/Restore", request))))
