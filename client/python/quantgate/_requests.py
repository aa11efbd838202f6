"""Requests of runs, as protobuf's JSON has them, from the keywords of the verbs."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from ._errors import refuse, refuse_type
from ._recipes import RecipeLike, read_recipe

_REQUIREMENTS = {None: "REQUIREMENT_UNSPECIFIED", "bitwise": "REQUIREMENT_BITWISE", "bound": "REQUIREMENT_BOUND"}
_PARAMETERS = ("weight", "bias", "gamma", "beta")

# Gives the TensorSource of a tensor that was given as an argument.
Place = Callable[[str, Any], Dict[str, Any]]


def requirement(argument: str, value: Optional[str]) -> str:
    if value not in _REQUIREMENTS:
        raise refuse(argument, repr(value), "must be None, bitwise or bound")
    return _REQUIREMENTS[value]


def as_list(argument: str, value: Any) -> List[Any]:
    """A list of what was given as one or several."""
    if value is None:
        return []
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _kind_or_fields(argument: str, value: Any) -> Dict[str, Any]:
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, Mapping):
        return dict(value)
    raise refuse_type(argument, value, "must be a kind in text, or a dict of fields")


def _rows(argument: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise refuse_type(argument, value, "must be an integer")
    return value.__index__()


def layer_of(kind: str, fields: Mapping[str, Any]) -> Dict[str, Any]:
    """The ``Layer`` of the verbs' keywords."""
    layer: Dict[str, Any] = {"kind": kind}
    for name, value in fields.items():
        if value is None:
            continue
        if name in ("norm", "activation"):
            layer[name] = _kind_or_fields(name, value)
        elif name == "operations":
            layer[name] = [dict(operation) for operation in value]
        elif name == "m_splits":
            layer[name] = [_rows(f"m_splits[{expert}]", rows) for expert, rows in enumerate(as_list("m_splits", value))]
        else:
            layer[name] = value
    return layer


def parameters_of(given: Mapping[str, Any], parameters: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Parameters by their names; the short ones, of which a list is of each expert, and the mapping together."""
    named: Dict[str, Any] = {}
    for name in _PARAMETERS:
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, list):
            named.update({f"{name}.{expert}": tensor for expert, tensor in enumerate(value)})
        else:
            named[name] = value
    if parameters is not None and not isinstance(parameters, Mapping):
        raise refuse_type("parameters", parameters, "must be a dict of tensors by name")
    for name, value in (parameters or {}).items():
        if name in named:
            raise refuse(f"parameters[{name!r}]", "given", f"{name} is given as an argument of its own, too")
        named[name] = value
    return named


def placed(argument: str, tensors: Optional[Mapping[str, Any]], place: Place) -> Dict[str, Any]:
    if tensors is None:
        return {}
    if not isinstance(tensors, Mapping):
        raise refuse_type(argument, tensors, "must be a dict of tensors by name")
    return {name: place(f"{argument}[{name!r}]", value) for name, value in tensors.items()}


def requires_grad_of(names: Optional[Iterable[str]]) -> Optional[Dict[str, bool]]:
    if names is None:
        return None
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in ("x", "weight", "bias", "norm"):
            raise refuse("requires_grad", repr(name), "must be x, weight, bias or norm")
    return {name: True for name in wanted}


def recipe_dict(argument: str, value: RecipeLike) -> Dict[str, Any]:
    return read_recipe(argument, value).to_dict()


def variants_of(recipes: Sequence[RecipeLike], overrides: Sequence[str], arithmetics: Sequence[str],
                parallel: Optional[Mapping[str, Any]], argument: str) -> List[Dict[str, Any]]:
    """Recipes x overrides x arithmetics, arithmetics fastest, each followed by its twin on several ranks."""
    variants = []
    for index, recipe in enumerate(recipes):
        name = argument if len(recipes) == 1 and argument == "recipe" else f"{argument}[{index}]"
        for override in overrides or [""]:
            for arithmetic in arithmetics or [""]:
                variant: Dict[str, Any] = {"recipe": recipe_dict(name, recipe), "backward_override": override,
                                           "arithmetic": arithmetic}
                variants.append(variant)
                if parallel is not None:
                    variants.append({**variant, "parallel": dict(parallel)})
    return variants
