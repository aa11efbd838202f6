"""Reports as objects: attributes, text, pages and files (docs/python.md section 2)."""

from __future__ import annotations

import json
import keyword
import os
import tempfile
from typing import Any, Dict, Iterator, List, Optional

from ._errors import refuse

_REALS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


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

    def keys(self):
        return self._all().keys()

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._all() else default

    def to_dict(self) -> Dict[str, Any]:
        """Plain dicts, lists, texts and numbers, which ``json.dumps`` takes; NaN and infinities are text."""
        return json.loads(json.dumps(self._all()))

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
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".quantgate-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Report(Record):
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

    @property
    def passed(self) -> bool:
        return self._document.passed

    def __bool__(self) -> bool:
        raise TypeError("a report is neither true nor false: ask report.passed")

    def __str__(self) -> str:
        return self._document.text()

    def to_html(self) -> str:
        """The page of ``--report FILE.html``, which needs nothing else."""
        return self._document.html()

    def _repr_html_(self) -> str:
        import html

        page = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" sandbox width="100%" height="600" style="border:0"></iframe>'

    def save(self, path: "os.PathLike[str] | str") -> None:
        """Writes the report: ``.html``, ``.json``, or ``.xml`` (JUnit), whole or not at all.

        Raises
        ------
        InvalidArgument
            For another suffix.
        OSError
            Where the file cannot be written.
        """
        suffix = os.path.splitext(os.fspath(path))[1]
        makers = {".html": self._document.html, ".json": self._document.json, ".xml": self._document.junit}
        if suffix not in makers:
            raise refuse("path", f'"{os.fspath(path)}"', "must end in .html, .json or .xml")
        write_whole(path, makers[suffix]())


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


class Answer(Record):
    """What a call answered, as a record with a plain text.

    ``str()`` is its JSON, indented.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return json.dumps(self._all(), indent=2)


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
    """The results of scenarios: ``scenarios``, ``faults``, ``finished``."""

    __slots__ = ()

    @property
    def passed(self) -> bool:
        return bool(self["finished"]["good"])


class StepReport(Answer):
    """What one step of a session did.

    Attributes
    ----------
    outputs : dict of str to tensor
    """

    __slots__ = ("_tensors",)

    def __init__(self, entries: Dict[str, Any], tensors: Dict[str, Any]):
        super().__init__(entries)
        self._tensors = tensors

    @property
    def outputs(self) -> Dict[str, Any]:
        return self._tensors
