"""Errors: what the engine refuses, by its code, and as Python calls such a thing."""

from __future__ import annotations

_NUMBERS = {
    "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "ABORTED": 10, "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15, "UNAUTHENTICATED": 16,
}


class Error(Exception):
    """A request that the engine, or a server, did not carry out.

    Attributes
    ----------
    code : str
        The canonical code, ``"INVALID_ARGUMENT"``.
    message : str
        The text, ``"FIELD is VALUE: RULE"`` where a field is refused.
    field, value, rule : str
        The parts of a refusal; empty where no field is refused.
    """

    def __init__(self, message: str, code: str = "INTERNAL", field: str = "", value: str = "", rule: str = "",
                 detail: bytes = b""):
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
        self.value = value
        self.rule = rule
        self.detail = detail

    @property
    def number(self) -> int:
        """The code's number, as gRPC has it."""
        return _NUMBERS.get(self.code, 2)

    def __reduce__(self):
        return type(self), (self.message, self.code, self.field, self.value, self.rule, self.detail)


class InvalidArgument(Error, ValueError):
    """A value that breaks a rule: ``field``, ``value`` and ``rule`` say which."""


class NotFound(Error, LookupError):
    """Something that is named does not exist."""


class FailedPrecondition(Error, RuntimeError):
    """Valid, but not in this state or on this machine."""


class Unimplemented(Error, NotImplementedError):
    """This build, or this arithmetic, does not do that."""


class ResourceExhausted(Error, MemoryError):
    """Memory, a quota or a limit does not suffice."""


class DeadlineExceeded(Error, TimeoutError):
    """The deadline came first."""


class Unavailable(Error, ConnectionError):
    """The server cannot be reached, or shuts down."""


class PermissionDenied(Error, PermissionError):
    """The server does not let this caller do that."""


class Cancelled(Error, RuntimeError):
    """The work was ended before it was done."""


class InternalError(Error, RuntimeError):
    """A defect, or damaged bytes."""


_CLASSES = {
    "INVALID_ARGUMENT": InvalidArgument, "OUT_OF_RANGE": InvalidArgument, "NOT_FOUND": NotFound,
    "FAILED_PRECONDITION": FailedPrecondition, "ABORTED": FailedPrecondition, "ALREADY_EXISTS": FailedPrecondition,
    "UNIMPLEMENTED": Unimplemented, "RESOURCE_EXHAUSTED": ResourceExhausted, "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNAVAILABLE": Unavailable, "PERMISSION_DENIED": PermissionDenied, "UNAUTHENTICATED": PermissionDenied,
    "CANCELLED": Cancelled,
}


def make(code: str, message: str, field: str = "", value: str = "", rule: str = "", detail: bytes = b"") -> Error:
    """The error of a canonical code; ``detail`` is a serialized ``quantgate.v1.ErrorDetail``."""
    return _CLASSES.get(code, InternalError)(message, code, field, value, rule, detail)


def from_status(number: int, message: str, details: bytes = b"") -> Error:
    """The error of a call's status: its number, text and serialized ``quantgate.v1.ErrorDetail``."""
    code = next((name for name, known in _NUMBERS.items() if known == number), "UNKNOWN")
    field = value = rule = ""
    if details:
        import json

        from . import _engine

        parts = json.loads(_engine.decode("ErrorDetail", details))
        field, value, rule = parts["field"], parts["value"], parts["rule"]
    return make(code, message, field, value, rule, details)


def refuse(field: str, value: object, rule: str) -> InvalidArgument:
    """INVALID_ARGUMENT, worded as the engine words it."""
    return InvalidArgument(f"{field} is {value}: {rule}", "INVALID_ARGUMENT", field, str(value), rule)


def refuse_state(field: str, value: object, rule: str) -> FailedPrecondition:
    """FAILED_PRECONDITION, worded as the engine words it."""
    return FailedPrecondition(f"{field} is {value}: {rule}", "FAILED_PRECONDITION", field, str(value), rule)


def refuse_type(field: str, value: object, rule: str) -> TypeError:
    """A TypeError that names argument, value and rule."""
    text = repr(value)
    if len(text) > 80:
        text = f"{text[:77]}..."
    return TypeError(f"{field} is {text} ({type(value).__module__}.{type(value).__qualname__}): {rule}")
