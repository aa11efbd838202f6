"""Arguments of the verbs that are no tensors: their types and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._errors import refuse, refuse_type

SEED_MAX = 2**64 - 1


def flag(argument: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refuse_type(argument, value, "must be True or False")


def integer(argument: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise refuse_type(argument, value, "must be an integer")
    number = value.__index__()
    if not least <= number <= most:
        raise refuse(argument, number, f"must be from {least} to {most}")
    return number


def real(argument: str, value: Any) -> float:
    """A number that f32 has: what is given, rounded to nearest even."""
    if isinstance(value, (bool, np.bool_, str, bytes, bytearray)):  # Texts are numbers to float().
        raise refuse_type(argument, value, "must be a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise refuse_type(argument, value, "must be a number") from None
    with np.errstate(over="ignore"):
        rounded = float(np.float32(number))
    if np.isinf(rounded) and not np.isinf(number):
        raise refuse(argument, number, "must be within the range of f32")
    return rounded


def seconds(argument: str, value: Any) -> float:
    """A duration, zero at least."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refuse_type(argument, value, "must be a number of seconds")
    if not 0 <= value < float("inf"):
        raise refuse(argument, value, "must be a number of seconds, zero at least")
    return float(value)


def text(argument: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse_type(argument, value, "must be text")
    return value
