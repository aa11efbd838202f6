"""Traces: steps of training under several recipes side by side (docs/python.md section 1)."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _engine
from ._arguments import integer
from ._errors import refuse, refuse_type
from ._reports import TraceReport
from ._requests import as_list, plain, recipe_dict, requirement, requires_grad_of, variants_of
from ._sessions import spec_of

LayersLike = Mapping[str, Union[str, Mapping[str, Any]]]
StepLike = Union[str, Mapping[str, Any]]

# The fields of each kind of step. The first is what a value that is no dict stands for.
_FIELDS = {
    "forward": ("x", "microbatch", "evaluate", "is_first", "recompute", "calibrate", "requires_grad", "defer_wgrad",
                "amax_groups", "overlap"),
    "backward": ("grad_output", "microbatch"),
    "wgrad": (),
    "optimize": ("learning_rate",),
    "change_recipe": ("recipe", "backward_override"),
    "offload": ("microbatch",),
    "reload": ("microbatch",),
    "restart": ("variants", "parallel"),
}
_BESIDE = ("subjects", "subjects_of", "require")


class _Tensors:
    """The tensors of a trace, by names that say where they were given."""

    def __init__(self, connection: Any):
        self._connection = connection
        self.sources: Dict[str, Any] = {}

    def name(self, argument: str, value: Any) -> str:
        self.sources[argument] = self._connection.place(argument, value)
        return argument

    def names(self, argument: str, values: Any) -> Dict[str, str]:
        if not isinstance(values, Mapping):
            raise refuse_type(argument, values, "must be a dict of tensors by name")
        return {name: self.name(f"{argument}[{name!r}]", value) for name, value in values.items()}


def _kind_and_fields(argument: str, step: StepLike) -> Tuple[str, Dict[str, Any]]:
    """The kind of a step and its fields, with what the step says beside it."""
    if isinstance(step, str):
        step = {step: {}}
    if not isinstance(step, Mapping):
        raise refuse_type(argument, step, 'must be a kind in text, or a dict: {"forward": x}')
    kinds = [name for name in step if name not in _BESIDE]
    if len(kinds) != 1 or kinds[0] not in _FIELDS:
        raise refuse(argument, ", ".join(map(str, kinds)) or "no kind", f"must be one of {', '.join(_FIELDS)}")
    kind = kinds[0]
    # A recipe may be a dict itself.
    is_recipe = kind == "change_recipe" and isinstance(step[kind], Mapping) and "name" in step[kind]
    if isinstance(step[kind], Mapping) and not is_recipe:
        fields = dict(step[kind])
    elif _FIELDS[kind]:
        fields = {_FIELDS[kind][0]: step[kind]}
    else:
        raise refuse_type(f"{argument}[{kind!r}]", step[kind], "must be {}")
    for name in fields:
        if name not in _FIELDS[kind]:
            raise refuse(f"{argument}[{kind!r}][{name!r}]", "given",
                         f"must be one of {', '.join(_FIELDS[kind])}" if _FIELDS[kind] else "takes no fields")
    return kind, fields


def _step(argument: str, step: StepLike, tensors: _Tensors) -> Dict[str, Any]:
    """``SessionTrace.Step``."""
    kind, fields = _kind_and_fields(argument, step)
    at = f"{argument}[{kind!r}]"
    made: Dict[str, Any] = {}
    for name in ("x", "grad_output"):
        if name in _FIELDS[kind]:
            if fields.get(name) is None:
                raise refuse(f"{at}[{name!r}]", "absent", f"a {kind} needs it")
            made[name] = tensors.name(f"{at}[{name!r}]", fields.pop(name))
    if "requires_grad" in fields:
        fields["requires_grad"] = requires_grad_of(fields["requires_grad"])
    if kind == "change_recipe":
        if "recipe" not in fields:
            raise refuse(f"{at}['recipe']", "absent", "a change of recipe needs it")
        fields["recipe"] = recipe_dict(f"{at}['recipe']", fields["recipe"])
    made[kind] = {name: plain(f"{at}[{name!r}]", value) for name, value in fields.items() if value is not None}
    if isinstance(step, Mapping):
        if step.get("subjects") is not None:
            made["subjects"] = tensors.names(f"{argument}['subjects']", step["subjects"])
        if "subjects_of" in step:
            made["subjects_of"] = integer(f"{argument}['subjects_of']", step["subjects_of"], 0, 2**31 - 1)
        if "require" in step:
            made["subjects_requirement"] = requirement(f"{argument}['require']", step["require"])
    return made


def trace_of(layers: LayersLike, recipes: Any, backward_overrides: Any, arithmetics: Any, parallel: Any, reference: Any,
             rounds: Any, optimizer: Optional[Mapping[str, Any]], options: Mapping[str, Any]) -> Dict[str, Any]:
    """A ``SessionTrace`` without parameters and steps, of the keywords of ``play``."""
    variants = variants_of(as_list("recipes", recipes), as_list("backward_overrides", backward_overrides),
                           as_list("arithmetics", arithmetics), parallel, "recipes")
    if not variants:
        raise refuse("recipes", "[]", "must be one at least")
    return {"spec": spec_of(layers, None, optimizer, options), "variants": variants,
            "reference": integer("reference", reference, 0, len(variants) - 1),
            "rounds": integer("rounds", rounds, 1, 2**31 - 1)}


def play_trace(connection: Any, trace: Mapping[str, Any], parameters: Mapping[str, Any], steps: Sequence[StepLike],
               require: Optional[str], keep_outputs: bool) -> TraceReport:
    """Plays what ``trace_of`` gave with these parameters and steps."""
    if require not in (None, "bitwise"):
        raise refuse("require", repr(require), "must be None or bitwise; subjects have a require of their own")
    if isinstance(steps, (str, Mapping)) or not isinstance(steps, Sequence):
        raise refuse_type("steps", steps, "must be a list of steps")
    tensors = _Tensors(connection)
    if not isinstance(keep_outputs, bool):
        raise refuse_type("keep_outputs", keep_outputs, "must be True or False")
    trace = {**trace, "parameters": tensors.names("parameters", parameters),
             "steps": [_step(f"steps[{index}]", step, tensors) for index, step in enumerate(steps)]}
    request = {"trace": trace, "tensors": tensors.sources, "requirement": requirement("require", require),
               "request_id": _engine.new_request_id(), "keep_outputs": keep_outputs}
    document = connection.client.play(json.dumps(request), "quantgate.play(...)")
    outputs: List[List[Dict[str, Any]]] = []
    for step_index in range(document.step_count):
        outputs.append([])
        for variant in range(document.variant_count):
            given = {}
            for named in document.outputs(step_index, variant):
                given[json.loads(_engine.decode("NamedTensor", named))["name"]] = connection.fetch(named)
            outputs[-1].append(given)
    return TraceReport(document, outputs)
