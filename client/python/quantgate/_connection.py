"""A connection of one verb or session, and what was placed there."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Mapping, Optional

from . import _engine
from ._quantized import Quantized
from ._tensors import NUMPY, Kind, read, read_small


def json_number(value: float) -> Any:
    """A number as protobuf's JSON has it: what is not finite is text."""
    return value if value - value == 0 else {float("inf"): "Infinity", -float("inf"): "-Infinity"}.get(value, "NaN")


class Connection:
    """One connection, and the kind of the first tensor that was placed there.

    Parameters
    ----------
    connect : callable
        Gives a ``_engine.Client``.
    stored : bool
        Tensors go there by digest, however small; False: small ones travel inside the request.
    keeps : bool
        What was placed and opened is there without this connection, too: it may be another one for each step.
    """

    def __init__(self, connect: Callable[[], Any], stored: bool, keeps: bool = False):
        self._connect = connect
        self._stored = stored
        self._keeps = keeps
        self.client = connect()
        self.kind: Optional[Kind] = None

    def begin_step(self) -> None:
        """Begins a step of a session, with the time of its own, where what the step before met is not met again."""
        if self._keeps:
            self.client = self._connect()

    def place(self, argument: str, value: Any) -> Dict[str, Any]:
        """The TensorSource of a tensor, or of codes, that was given as ``argument``."""
        if isinstance(value, Quantized):
            parts = {name: self.place_given(f"{argument}.{name}", tensor) for name, tensor in value.given_to(argument).items()
                     if name != "amax_history"}
            return {"quantized": {"tensors": parts, "description": value.description,
                                  "source_dtype": value.source_dtype}}
        given = read(argument, value)
        if self.kind is None:
            self.kind = given.kind
        return self.place_given(argument, given.tensor)

    def place_small(self, argument: str, value: Any) -> Dict[str, Any]:
        given = read_small(argument, value)
        return {} if given is None else self.place_given(argument, given.tensor)

    def place_to_keep(self, argument: str, value: Any) -> Dict[str, Any]:
        """As ``place``, of one of many tensors, which together would not fit into a message."""
        stored, self._stored = self._stored, self._stored or self._keeps
        try:
            return self.place(argument, value)
        finally:
            self._stored = stored

    def place_given(self, argument: str, tensor: Any) -> Dict[str, Any]:
        return json.loads(self.client.place(argument, tensor, self._stored))

    def call(self, method: str, request: Mapping[str, Any]) -> bytes:
        return self.client.call(method, json.dumps(request))

    def fetch(self, named_tensor: bytes) -> Any:
        return (self.kind or NUMPY).back(self.client.fetch(named_tensor))
