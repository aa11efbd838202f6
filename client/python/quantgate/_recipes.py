"""Recipes as text, dict or keywords: the three are the same (docs/recipes.md section 1)."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Tuple, Union

import numpy as np

from . import _engine
from ._errors import refuse, refuse_type

RecipeLike = Union[str, Mapping[str, Any], "Recipe"]


def _knob_text(argument: str, knob: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Recipe):
        return json.dumps(value.to_dict())
    if isinstance(value, (list, tuple, Mapping)):
        return json.dumps(_composed(f"{argument}.knobs[{knob!r}]", value))
    raise refuse_type(f"{argument}.knobs[{knob!r}]", value, "must be text, a number, a boolean, a list or a dict")


def _composed(argument: str, value: Any) -> Any:
    """A value of a composed recipe as JSON has it, with the recipes in it as dicts."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Recipe):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): _composed(f"{argument}[{name!r}]", entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_composed(f"{argument}[{index}]", entry) for index, entry in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise refuse_type(argument, value, "must be text, a number, a boolean, a recipe, a list or a dict")


class Recipe:
    """A recipe with its knobs. Two recipes are equal where their numerics are.

    Attributes
    ----------
    name : str
    knobs : dict of str to str
        Those that were given, as the command line has them; others have their defaults.
    text : str
        Name and the knobs that differ from the defaults.
    digest : str
        SHA-256 of the numerics, 64 hex digits.
    """

    __slots__ = ("name", "knobs", "parsed")

    def __init__(self, name: str, knobs: Mapping[str, Any], argument: str = "recipe"):
        self.name = name
        self.knobs: Dict[str, str] = {knob: _knob_text(argument, knob, value) for knob, value in knobs.items()}
        self.parsed = _engine.parse_recipe(name, list(self.knobs.items()))

    @property
    def text(self) -> str:
        return self.parsed.text

    @property
    def digest(self) -> str:
        return self.parsed.digest

    def to_dict(self) -> Dict[str, Any]:
        return {"name": self.name, "knobs": dict(self.knobs)}

    def __repr__(self) -> str:
        return f"quantgate.recipe({self.text!r})"

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _split_knobs(argument: str, text: str) -> Tuple[str, Dict[str, str]]:
    """Name and knobs of ``name:key=value,key=value``, where values that are JSON may hold commas."""
    name, colon, rest = text.partition(":")
    parts: List[str] = _engine.split_knobs(rest) if colon else []
    knobs: Dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise refuse(argument, f'"{text}"', f'"{part}" is no key=value')
        if key in knobs:
            raise refuse(argument, f'"{text}"', f"{key} is given twice")
        knobs[key] = value
    return name, knobs


_PARSED: Dict[str, Recipe] = {}


def read_recipe(argument: str, value: RecipeLike) -> Recipe:
    """The recipe that an argument says."""
    if isinstance(value, Recipe):
        return value
    if isinstance(value, str):
        found = _PARSED.get(value)
        if found is None:
            found = Recipe(*_split_knobs(argument, value), argument)
            if len(_PARSED) > 256:
                _PARSED.clear()
            _PARSED[value] = found
        return found
    if isinstance(value, Mapping):
        extra = set(value) - {"name", "knobs"}
        if extra or not isinstance(value.get("name"), str):
            raise refuse(argument, json.dumps(dict(value), default=str),
                         'must be {"name": ..., "knobs": {...}} and no more')
        knobs = value.get("knobs") or {}
        if not isinstance(knobs, Mapping):
            raise refuse_type(f"{argument}.knobs", knobs, "must be a dict")
        return Recipe(value["name"], knobs, argument)
    raise refuse_type(argument, value, "must be a recipe: text, a dict, or quantgate.recipe(...)")


def recipe(name: str, **knobs: Any) -> Recipe:
    """A recipe by its name and knobs.

    Parameters
    ----------
    name : str
        ``"fp8_current"``, or with knobs in it ``"fp8_current:power_2_scales=true"``.
    **knobs
        Text, booleans, numbers, and of composed recipes lists and dicts.

    Raises
    ------
    InvalidArgument
        For an unknown recipe or knob, or a value that the knob does not have.
    """
    base, given = _split_knobs("name", name)
    for knob in knobs:
        if knob in given:
            raise refuse(knob, repr(knobs[knob]), "is in the name already")
    return Recipe(base, {**given, **knobs})
