"""Reports as objects: attributes, text, pages and files (docs/python.md section 2)."""

from __future__ import annotations

import html
import json
import keyword
import os
import secrets
from typing import Any, Callable, Dict, Iterator, KeysView, List, Optional

from ._errors import refuse

# How JSON has what are no numbers there. Beside a real number KEY is KEY_bits, but in lists, which are those of heat maps.
_REALS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_LISTS_OF_REALS = ("rms_error", "max_abs_error")


class Record:
    """A part of a report: its entries are attributes and items alike.

    A name that is a word of Python has an underscore behind it as an attribute (``verdict.pass_``).
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Dict[str, Any]):
        self._entries = entries

    def _all(self) -> Dict[str, Any]:
        return self._entries

    def __getitem__(self, name: str) -> Any:
        entries = self._all()
        value = entries[name]
        if isinstance(value, str) and value in _REALS and f"{name}_bits" in entries:
            return _REALS[value]
        if name in _LISTS_OF_REALS and isinstance(value, list):
            return [_REALS.get(item, item) for item in value]
        return _shown(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        entries = self._all()
        for known in (name, name[:-1] if name.endswith("_") else name):
            if known in entries:
                return self[known]
        raise AttributeError(f"{type(self).__name__} has no {name}; it has {', '.join(sorted(entries))}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def keys(self) -> KeysView[str]:
        return self._all().keys()

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._all() else default

    def to_dict(self) -> Dict[str, Any]:
        """Plain dicts, lists, texts and numbers, which ``json.dumps`` takes; NaN and infinities are text."""
        entries: Dict[str, Any] = json.loads(json.dumps(self._all()))
        return entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._all() == other._all()

    __hash__ = None  # type: ignore[assignment]

    def __dir__(self) -> List[str]:
        names = [f"{name}_" if keyword.iskeyword(name) else name for name in self._all()]
        return sorted({*names, *super().__dir__()})

    def __repr__(self) -> str:
        parts = []
        for name, value in self._all().items():
            if isinstance(value, (dict, list)):
                continue
            if not name.endswith("_bits") and value not in (None, ""):
                parts.append(f"{name}={value!r}")
        text = f"{type(self).__name__}({', '.join(parts)})"
        return text if len(text) <= 200 else f"{text[:196]}...)"


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value


def write_whole(path: "os.PathLike[str] | str", text: str) -> None:
    """Writes a file whole or not at all."""
    path = os.fspath(path)
    temporary = os.path.join(os.path.dirname(path), f".quantgate-{secrets.token_hex(8)}")
    # Not by tempfile, whose files nobody else may read: here the process's umask decides, as for any other file.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Shown(Record):
    """A record that can be shown and saved: what all reports have in common."""

    __slots__ = ()

    def _makers(self) -> Dict[str, Callable[[], str]]:
        """What makes the text of a file, by its suffix."""
        raise NotImplementedError

    def to_html(self) -> str:
        """A page that needs nothing else."""
        return self._makers()[".html"]()

    def save(self, path: "os.PathLike[str] | str") -> None:
        """Writes the report as its suffix says, whole or not at all.

        Parameters
        ----------
        path : str or path
            ``.html``: the page. ``.json``: the entries. ``.xml``: JUnit, of ``RunReport``, ``DiffReport`` and ``ScenarioReport``.

        Raises
        ------
        InvalidArgument
            For another suffix.
        OSError
            Where the file cannot be written.
        """
        makers = self._makers()
        suffix = os.path.splitext(os.fspath(path))[1]
        if suffix not in makers:
            raise refuse("path", f'"{os.fspath(path)}"', f"must end in {' or '.join(makers)}")
        write_whole(path, makers[suffix]())


class Report(Shown):
    """A report with the text and the pages that the commands make of it.

    Attributes
    ----------
    passed : bool
        Whether the criterion holds; True where none was stated.
    """

    __slots__ = ("_document", "_read")

    def __init__(self, document: Any):
        super().__init__({})
        self._document = document
        self._read: Optional[Dict[str, Any]] = None

    def _all(self) -> Dict[str, Any]:
        if self._read is None:
            self._read = json.loads(self._document.json())
        return self._read

    def _makers(self) -> Dict[str, Callable[[], str]]:
        return {".html": self._document.html, ".json": self._document.json, ".xml": self._document.junit}

    @property
    def passed(self) -> bool:
        return bool(self._document.passed)

    def __bool__(self) -> bool:
        raise TypeError("a report is neither true nor false: ask report.passed")

    def __str__(self) -> str:
        return str(self._document.text())

    def _repr_html_(self) -> str:
        page = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" sandbox width="100%" height="600" style="border:0"></iframe>'


class RunReport(Report):
    """The report of ``run``, ``compare`` or ``verify``.

    Attributes
    ----------
    outputs : dict of str to tensor
        Of the only variant, or of several that of the last; of the kind of x. Empty where outputs were not kept.
    variant_outputs : list of dict
        Of each variant.
    """

    __slots__ = ("variant_outputs",)

    def __init__(self, document: Any, variant_outputs: List[Dict[str, Any]]):
        super().__init__(document)
        self.variant_outputs = variant_outputs

    @property
    def outputs(self) -> Dict[str, Any]:
        return self.variant_outputs[-1] if self.variant_outputs else {}


class DiffReport(Report):
    """The report of ``diff``."""

    __slots__ = ()


class TraceReport(Report):
    """The report of ``play``: ``steps``, ``variants``, ``tensors``, ``subjects``, ``diagnoses``, ``quantizations``, ...

    Steps count from 1 in the entries, variants from 0.

    Attributes
    ----------
    step_outputs : list of list of dict of str to tensor
        ``step_outputs[step][variant]``, both from 0: what each step gave; empty dicts where outputs were not kept.
    """

    __slots__ = ("step_outputs",)

    def __init__(self, document: Any, step_outputs: List[List[Dict[str, Any]]]):
        super().__init__(document)
        self.step_outputs = step_outputs

    def _makers(self) -> Dict[str, Callable[[], str]]:
        return {".html": self._document.html, ".json": self._document.json}


class Answer(Shown):
    """What a call answered, as a record with the text that the command prints.

    The commands write no page of these: ``to_html`` is one of their text alone, ``_repr_html_`` that text.
    """

    __slots__ = ("_text",)

    def __init__(self, entries: Dict[str, Any], text: Callable[[], str]):
        super().__init__(entries)
        self._text = text

    def _makers(self) -> Dict[str, Callable[[], str]]:
        return {".html": self._page, ".json": lambda: json.dumps(self._all(), indent=2) + "\n"}

    def _page(self) -> str:
        return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{type(self).__name__}</title></head>'
                f"<body>{self._repr_html_()}</body></html>\n")

    def __str__(self) -> str:
        return self._text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Explanation(Answer):
    """The answer of ``explain``: candidates, best first, with their match counts.

    Attributes
    ----------
    is_established : bool
        Whether a candidate gives everything, on enough evidence.
    """

    __slots__ = ()


class Info(Answer):
    """What this build is and can do: ``capabilities``, ``recipes``, ``arithmetics``."""

    __slots__ = ()


class ScenarioReport(Answer):
    """The results of scenarios: ``scenarios``, ``faults``, ``finished``.

    Attributes
    ----------
    passed : bool
        Whether every scenario holds and catches its faults, as far as they were run.
    """

    __slots__ = ("_run",)

    def __init__(self, entries: Dict[str, Any], run: Any):
        super().__init__(entries, run.text)
        self._run = run

    @property
    def passed(self) -> bool:
        return bool(self["finished"]["good"])

    def _makers(self) -> Dict[str, Callable[[], str]]:
        return {**super()._makers(), ".xml": self._run.junit}

    def __bool__(self) -> bool:
        raise TypeError("a report is neither true nor false: ask report.passed")


class StepReport(Answer):
    """What one step of a session did.

    Attributes
    ----------
    outputs : dict of str to tensor
    """

    __slots__ = ("_tensors",)

    def __init__(self, entries: Dict[str, Any], text: Callable[[], str], tensors: Dict[str, Any]):
        super().__init__(entries, text)
        self._tensors = tensors

    @property
    def outputs(self) -> Dict[str, Any]:
        return self._tensors
