"""Quantized: codes and scales of one tensor."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from . import _engine
from ._reports import Record

PARTS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv", "rowwise_zero_point",
         "columnwise_zero_point", "amax_rowwise", "amax_columnwise", "rowwise_scale", "columnwise_scale", "scale",
         "amax_history")


class Quantized:
    """Codes and scales of one tensor, in the layouts of docs/file-formats.md section 2.

    Attributes
    ----------
    rowwise_data, rowwise_scale_inv, columnwise_data, columnwise_scale_inv, ... : tensor or None
        As far as the format has them, of the kind of the tensor that was quantized.
    tensors : dict of str to tensor
        All of them that are there, by name.
    dtypes : dict of str to str
        The engine's dtype of each: packed FP4 comes back as bytes.
    shape : tuple of int
        Of the source.
    source_dtype : str
    record : Record
        The quantizer as resolved, amax, scale, and how many elements saturated, were flushed to zero, ...
    description : dict
        What dtypes and shapes do not say of the codes.
    """

    __slots__ = ("_tensors", "_given", "_kind", "_record", "_description", "shape", "source_dtype", "__weakref__")

    def __init__(self, given: List[Tuple[str, Any]], kind: Any, shape: Tuple[int, ...], source_dtype: str,
                 description: bytes, record: Any, values: Optional[Dict[str, Any]] = None):
        """``values``: the caller's own tensors, whose memory ``given`` are; None: ``given`` are the engine's."""
        self._given = dict(given)
        self._kind = kind
        if values is not None:
            self._tensors = values
        else:
            self._tensors = {name: kind.back(tensor) for name, tensor in given}
            if kind.cuda is not None:
                self._given = {name: kind.kept(self._tensors[name], tensor) for name, tensor in given}
        self.shape = tuple(shape)
        self.source_dtype = source_dtype
        self._description = description
        self._record = record

    def __getattr__(self, name: str) -> Any:
        if name in PARTS:
            return self._tensors.get(name)
        raise AttributeError(f"Quantized has no {name}")

    def given_to(self, argument: str, cuda: Any = None) -> Dict[str, Any]:
        """The tensors as an engine reads them: on its GPU ``cuda`` where they lie there, else in host memory."""
        own = self._kind.cuda
        if own is None:
            return self._given
        if cuda is not None:
            cuda.check(argument, own.ordinal)
            return self._given
        with own:
            own.wait_for_torch()
            return {name: own.engine.to_host(tensor) if tensor.ordinal >= 0 else tensor
                    for name, tensor in self._given.items()}

    @property
    def tensors(self) -> Dict[str, Any]:
        return dict(self._tensors)

    @property
    def dtypes(self) -> Dict[str, str]:
        return {name: tensor.dtype for name, tensor in self._given.items()}

    @property
    def record(self) -> Record:
        if not isinstance(self._record, Record):
            self._record = Record(json.loads(self._record()))
        return self._record

    @property
    def description(self) -> Dict[str, Any]:
        return json.loads(_engine.request_json("QuantizedDescription", self._description))

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={tensor.dtype}{list(tensor.shape)}" for name, tensor in self._given.items())
        return f"Quantized({self.record.quantizer!r}, shape={self.shape}, {parts})"
