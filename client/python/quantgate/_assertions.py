"""What the assertions of ``quantgate.testing`` compare, and what they say of a failure (docs/pytest.md)."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import ml_dtypes
import numpy as np

from . import _engine
from ._connection import Connection
from ._differences import (Difference, Elements, Nearer, as_matrix, counted, half_unit_of, map_lines, number, shape_text)
from ._errors import Error, refuse, refuse_type
from ._quantized import Quantized
from ._recipes import read_recipe
from ._requests import as_list, variants_of
from ._tensor_verbs import gemm_slots
from ._tensors import NUMPY, Given, read, read_small
from .testing import Mismatch, default_client

_EXACT_GEMM_DTYPES = ("f32", "bf16", "f16")
# How long a failed assertion may look for its cause where the engine, which looks as long as the comparison took, ran out of
# time; and for the first element beyond a bound, unless the comparison itself takes long.
_SECONDS = 10.0


class _Found:
    """What a failed assertion says: filled as it is found."""

    def __init__(self, assertion: str, required: str):
        self.assertion = assertion
        self.required = required
        self.cause = ""
        self.is_unknown = True
        self.maybe: List[str] = []
        self.headlines: Dict[str, str] = {}
        self.paragraphs: List[List[str]] = []
        self.notes: List[str] = []
        self.counts: Dict[str, int] = {}
        self.make_report: Optional[Callable[[], Any]] = None

    def add(self, difference: Difference) -> None:
        self.counts[difference.name] = difference.count
        if difference:
            self.headlines[difference.name] = difference.headline
        self.paragraphs.append(difference.lines())

    def diagnose(self, diagnosis: Any) -> None:
        """Takes over a Diagnosis of the engine, certain parts alone as the cause."""
        if diagnosis is None:
            return
        known, _, _ = str(diagnosis["sentence"]).partition("unknown: ")
        self.maybe = []
        certain = []
        for part in filter(None, known.strip().rstrip(";").split("; ")):
            (self.maybe if "to be sure" in part or "may have" in part else certain).append(part)
        self.cause = "; ".join(certain)
        self.is_unknown = bool(diagnosis["is_unknown"]) or bool(self.maybe)

    def message(self) -> str:
        named = self.cause.partition(" ")[0]
        head = self.headlines.get(named) or next(iter(self.headlines.values()), self.required)
        if len(self.headlines) > 1:
            head += f"; and {len(self.headlines) - 1} more of {len(self.paragraphs)} tensors"
        cause = self.cause or "cause unknown"
        if self.cause and self.is_unknown:
            cause += ", which is not all"
        lines = [f"{cause}: {head}"]
        lines += [f"maybe {part}" for part in self.maybe]
        for paragraph in self.paragraphs:
            lines += paragraph
        return "\n".join([*lines, *self.notes, f"required: {self.required}"])

    def mismatch(self) -> Mismatch:
        return Mismatch(self.message(), self.cause, self.is_unknown or not self.cause, self.counts, self.make_report,
                        self.assertion)


def _passed(criterion: str) -> None:
    plugin = sys.modules.get("quantgate._pytest")
    if plugin is not None:
        plugin.count(criterion)


def _within(within: Any, *allowed: str) -> str:
    if within not in allowed:
        raise refuse("within", repr(within), f"must be {' or '.join(allowed)}")
    return within


def _client_of(client: Any) -> Any:
    if client is None:
        return default_client()
    if not hasattr(client, "verify"):
        raise refuse_type("client", client, "must be a quantgate.Client")
    return client


def _again(tensor: Any) -> Tuple[np.ndarray, str]:
    """A tensor of the engine, for a verb."""
    return _engine.array_of(tensor), tensor.dtype


def _as(argument: str, given: Given, wanted: Any) -> Given:
    """Bytes as the dtype that is wanted, and one element as [1]; what is of another dtype stays as it is."""
    tensor = given.tensor
    array, dtype = _again(tensor)
    if dtype in ("u8", "i8") and wanted.dtype not in ("u8", "i8") and _engine.array_of(wanted).itemsize == 1:
        dtype = wanted.dtype
    shape = list(tensor.shape)
    if array.size == 1 and list(wanted.shape) == [1]:
        shape = [1]
    if dtype == tensor.dtype and shape == list(tensor.shape):
        return given
    return Given(_engine.wrap(np.ascontiguousarray(array).reshape(shape), dtype), given.kind)


def _values(tensor: Any) -> np.ndarray:
    return Elements(tensor).values()


# --- Quantizers.

def quantized(codes: Any, scale_inv: Any, source: Any, recipe: Any, role: str, usage: str, scale_layout: str, amax: Any,
              zero_point: Any, seed: int, scale: Any, amax_history: Any, check_padding: bool, within: str, client: Any) -> None:
    __tracebackhide__ = True
    _within(within, "bits")
    client = _client_of(client)
    if usage not in ("rowwise", "columnwise"):
        raise refuse("usage", repr(usage), "must be rowwise or columnwise")
    known = read_recipe("recipe", recipe)
    asked = dict(role=role, rowwise=usage == "rowwise", columnwise=usage == "columnwise", seed=seed, scale_layout=scale_layout)
    wanted = client.quantize(source, known, scale=scale, amax_history=amax_history, **asked)
    expected = wanted.given_to("quantized")
    data, scales = f"{usage}_data", f"{usage}_scale_inv"
    if scales not in expected:
        raise refuse("recipe", f'"{known.text}"', f"makes no {usage} codes with scales of role {role}: nothing is quantized")
    if scale_inv is None:
        raise refuse_type("scale_inv", scale_inv, "must be the scales that the codes are multiplied by")
    given = {data: read("codes", codes), scales: read_small("scale_inv", scale_inv)}
    for name, argument, value in ((f"amax_{usage}", "amax", amax), (f"{usage}_zero_point", "zero_point", zero_point)):
        if value is not None:
            if name not in expected:
                raise refuse(argument, "given", f"{known.text} has none of role {role}")
            given[name] = read_small(argument, value)
    given = {name: _as(name, tensor, expected[name]) for name, tensor in given.items()}
    differences = {name: Difference(name, tensor, Given(expected[name], NUMPY)) for name, tensor in given.items()}
    padding = None
    if scale_layout != "logical" and differences[scales] and not differences[scales].mismatch:
        padding = _padding(client, source, known, asked, scales)
        if not check_padding:
            differences[scales] = _outside(differences[scales], padding, given[scales], expected[scales])
    if not any(differences.values()):
        _passed("bits")
        return
    found = _Found("assert_quantized", f"the bits of {known.text} (role {role}, {usage}"
                   + (f", scale_layout {scale_layout}" if scale_layout != "logical" else "")
                   + (f", seed {seed}" if seed else "") + ")")
    for difference in differences.values():
        found.add(difference)
    if padding is not None and not differences[data] and bool(np.all(padding[differences[scales].mask])):
        found.cause, found.is_unknown = "padding is not zero, the scales beside it are right", False
    else:
        _explain_codes(client, found, known, source, given[data], given[scales], given.get(f"amax_{usage}"),
                       given.get(f"{usage}_zero_point"), "" if scale_layout == "logical" else scale_layout)
    _nearer_to_source(client, found, source, usage, wanted, given)
    sides = [{name: _again(tensor.tensor if isinstance(tensor, Given) else tensor) for name, tensor in side.items()}
             for side in (given, {name: expected[name] for name in given})]
    found.make_report = lambda: client.diff(*sides, names=("mine", known.text))
    _passed("bits")
    raise found.mismatch()


def _padding(client: Any, source: Any, recipe: Any, asked: Mapping[str, Any], scales: str) -> np.ndarray:
    """Where a layout has no scale: scales of ones are not zero, and what pads them is."""
    given = read("source", source).tensor
    dtype = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}.get(given.dtype, np.float32)
    ones = client.quantize(np.ones(tuple(given.shape), dtype), recipe, **{**asked, "seed": 0})
    return _engine.array_of(ones.given_to("quantized")[scales]) == 0


def _outside(difference: Difference, padding: np.ndarray, mine: Given, theirs: Any) -> Difference:
    """The difference without what pads the scales."""
    array, dtype = _again(mine.tensor)
    kept = np.where(padding, _engine.array_of(theirs), array)
    return Difference(difference.name, Given(_engine.wrap(kept, dtype), NUMPY), Given(theirs, NUMPY))


def _explain_codes(client: Any, found: _Found, recipe: Any, source: Any, codes: Given, scale_inv: Given,
                   amax: Optional[Given], zero_point: Optional[Given], scale_layout: str) -> None:
    array, dtype = _again(read("source", source).tensor)
    packed, codes_dtype = _again(codes.tensor)
    options = {name: _again(part.tensor) for name, part in (("amax", amax), ("zero_point", zero_point)) if part is not None}
    try:
        answer = client.explain(source=(as_matrix(array), dtype), codes=(as_matrix(packed), codes_dtype),
                                scale_inv=_again(scale_inv.tensor), scale_layout=scale_layout, **options)
    except Error as error:
        found.notes.append(f"not explained: {error}")
        return
    if answer.cause not in ("", "unknown"):
        found.cause, found.is_unknown = answer.cause, False
    elif answer.cause == "" and answer.is_established:
        best = answer.codes[0]
        libraries = f" ({'; '.join(best.libraries)})" if best.libraries else ""
        found.cause, found.is_unknown = (f"codes and scales are what another rule makes: {best.element} {best.block}, "
                                         f"{best.scale_rule}, {best.element_rule}{libraries}"), False
    else:
        found.notes += [f"explain: {sentence}" for sentence in answer.conclusion if not sentence.startswith("Nothing tried")]


def _nearer_to_source(client: Any, found: _Found, source: Any, usage: str, wanted: Quantized, given: Mapping[str, Given]) -> None:
    theirs = wanted.given_to("quantized")
    mine = {**theirs, **{name: part.tensor for name, part in given.items()}}
    exact = _values(read("source", source).tensor)
    values = []
    try:
        for parts in (mine, theirs):
            holder = Quantized(list(parts.items()), NUMPY, wanted.shape, wanted.source_dtype, wanted._description, dict)
            side = np.asarray(client.dequantize(holder, usage=usage)).astype(np.float64)
            values.append(side if side.shape == exact.shape else side.T)
        if values[0].shape == exact.shape:
            found.notes.append(Nearer(values[0], values[1], exact).text("the source"))
    except (Error, TypeError, ValueError):
        return  # What has other shapes or dtypes, or is transformed, stands for no values to compare.


def dequantized(values: Any, codes: Any, scale_inv: Any, usage: Optional[str], amax: Any, zero_point: Any, format: Optional[str],
                scale_layout: Optional[str], within: str, client: Any) -> None:
    __tracebackhide__ = True
    _within(within, "bits")
    client = _client_of(client)
    mine = read("values", values)
    if mine.tensor.dtype not in _EXACT_GEMM_DTYPES:
        raise refuse("values", f"{mine.tensor.dtype}{shape_text(mine.tensor.shape)}", "must be f32, bf16 or f16")
    if isinstance(codes, (Quantized, Mapping)):
        for name, value in (("scale_inv", scale_inv), ("amax", amax), ("zero_point", zero_point)):
            if value is not None:
                raise refuse(name, "given", "codes has its own")
        tensors = codes
    else:
        side = usage or "rowwise"
        tensors = {f"{side}_data": codes, f"{side}_scale_inv": scale_inv, f"amax_{side}": amax,
                   f"{side}_zero_point": zero_point}
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    asked: Dict[str, Any] = dict(usage=usage)
    if format is not None:
        asked["format"] = format
    if scale_layout is not None:
        asked["scale_layout"] = scale_layout
    wanted = read("expected", client.dequantize(tensors, out_dtype=mine.tensor.dtype, **asked))
    difference = Difference("values", mine, wanted)
    _passed("bits")
    if not difference:
        return
    found = _Found("assert_dequantized", f"the codes times their scales, rounded once to {mine.tensor.dtype}")
    found.add(difference)
    sides = {"values": _again(mine.tensor)}, {"values": _again(wanted.tensor)}
    report = client.diff(*sides, names=("mine", "expected"))
    found.diagnose(report.get("diagnosis"))
    found.make_report = lambda: report
    if not difference.mismatch and mine.tensor.dtype != "f32":
        exact = np.asarray(client.dequantize(tensors, **asked)).astype(np.float64)
        found.notes.append(Nearer(_values(mine.tensor), _values(wanted.tensor), exact, half_unit_of(exact, "f32")).text(
            "what is not rounded"))
    raise found.mismatch()


# --- GEMMs.

_GEMM_DEFAULTS: Dict[str, Any] = {
    **dict.fromkeys(("a_scale_inv", "b_scale_inv", "a_amax", "b_amax", "a_zero_point", "b_zero_point", "c", "bias", "d_scale",
                     "a_scaling", "b_scaling", "a_group", "b_group", "a_e4m3_max", "b_e4m3_max")),
    "layout": "tn", "alpha": 1.0, "beta": 0.0, "in_place": False}
_checker: Any = None


def _checked(a: Any, b: Any, options: Mapping[str, Any]) -> Tuple[Any, List[Any], Tuple[Any, ...]]:
    """The CPU engine of this process, and the tensors and the other arguments by which it looks into a result."""
    global _checker
    if _checker is None:
        _checker = _engine.LocalEngine("cpu", 0)
    slots, said = gemm_slots(options, a, b)
    sides = ("a", "b")
    rest = (float(options["alpha"]), float(options["beta"]), bool(options["in_place"]),
            tuple(options[f"{side}_scaling"] or "" for side in sides),
            tuple(str(options[f"{side}_group"] or said[side].get("group", "")) for side in sides),
            tuple(int(options[f"{side}_e4m3_max"] or said[side].get("e4m3_max", 0)) for side in sides))
    return _checker, [(slot, given.tensor) for slot, given in slots], rest


def _bound_of(d: Given, a: Any, b: Any, arithmetic: str, options: Mapping[str, Any]) -> Any:
    """The share of its bound that each element of d has."""
    engine, slots, rest = _checked(a, b, options)
    return engine.gemm_bound(slots, d.tensor, options["layout"], arithmetic, *rest)


def gemm_result(d: Any, a: Any, b: Any, arithmetic: str, within: str, amax: Any, client: Any, options: Dict[str, Any]) -> None:
    __tracebackhide__ = True
    _within(within, "bound", "bits")
    client = _client_of(client)
    for name in options:
        if name not in _GEMM_DEFAULTS:
            raise TypeError(f"{name}: no such argument of assert_gemm")
    options = {**_GEMM_DEFAULTS, **options}
    mine = read("d", d)
    if amax is not None and within == "bound":
        raise refuse("amax", "given", 'is compared with within="bits" alone')
    if within == "bits":
        _gemm_bits(mine, a, b, arithmetic, amax, client, options)
    else:
        _gemm_within_bound(mine, a, b, arithmetic, client, options)


def _gemm_bits(mine: Given, a: Any, b: Any, arithmetic: str, amax: Any, client: Any, options: Mapping[str, Any]) -> None:
    __tracebackhide__ = True
    result = client.gemm(a, b, arithmetic=arithmetic, out_dtype=mine.tensor.dtype, **options)
    wanted = read("expected", result.d)
    differences = [Difference("d", mine, wanted)]
    if amax is not None:
        if result.amax is None:
            raise refuse("amax", "given", f"a GEMM with an output of {mine.tensor.dtype} has none")
        expected = read("expected", result.amax)
        differences.append(Difference("amax", _as("amax", read_small("amax", amax), expected.tensor), expected))
    _passed("bits")
    if not any(differences):
        return
    found = _Found("assert_gemm", f"the bits of {result.arithmetic}: {result.text}")
    for difference in differences:
        found.add(difference)
    if differences[0] and not differences[0].mismatch:
        _explain_gemm(client, found, mine, a, b, result.arithmetic, options)
        bound = _bound_or_none(mine, a, b, result.arithmetic, options)
        if bound is not None:
            _add_bound_notes(found, bound, mine, wanted, options)
    found.make_report = lambda: client.diff({"d": _again(mine.tensor)}, {"d": _again(wanted.tensor)},
                                            names=("mine", result.arithmetic))
    raise found.mismatch()


def _bound_or_none(mine: Given, a: Any, b: Any, arithmetic: str, options: Mapping[str, Any]) -> Any:
    try:
        return _bound_of(mine, a, b, arithmetic, options)
    except Error:
        return None  # Of fp16 accumulators and integers no bound is derived.


def _add_bound_notes(found: _Found, bound: Any, mine: Given, wanted: Given, options: Mapping[str, Any]) -> None:
    ratios = _values(bound.ratios)
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(ratios), np.inf, ratios))), ratios.shape)
    beyond = int(np.count_nonzero(~(ratios <= 1)))
    found.notes.append(f"share of the bound ({bound.derivation}): at most {number(float(ratios[worst]))}, at "
                       f"{tuple(int(i) for i in worst)}; {counted(beyond)} of {counted(ratios.size)} elements are beyond it")
    if options["d_scale"] is None and mine.tensor.shape == wanted.tensor.shape:
        exact = _values(bound.exact)
        found.notes.append(Nearer(_values(mine.tensor), _values(wanted.tensor), exact, half_unit_of(exact, "f32")).text(
            "the exact product"))


def _gemm_within_bound(mine: Given, a: Any, b: Any, arithmetic: str, client: Any, options: Mapping[str, Any]) -> None:
    __tracebackhide__ = True
    from ._client import Local

    if not (isinstance(client, Local) and client._device == "cpu"):
        # Only the client knows what its engine runs.
        arithmetic = client.gemm(a, b, arithmetic=arithmetic, out_dtype=mine.tensor.dtype, **options).arithmetic
    bound = _shaped_bound(mine, a, b, arithmetic, options)
    _passed("bound")
    if bound is not None:
        beyond = ~(_values(bound.ratios) <= 1)
        if not beyond.any():
            return
    result = client.gemm(a, b, arithmetic=arithmetic, out_dtype=mine.tensor.dtype, **options)
    wanted = read("expected", result.d)
    found = _Found("assert_gemm", f"within the bound of {result.arithmetic}: {result.text}")
    difference = Difference("d", mine, wanted)
    if bound is None:
        found.add(difference)
        raise found.mismatch()
    count = int(np.count_nonzero(beyond))
    found.counts["d"] = count
    ratios = np.where(np.isnan(_values(bound.ratios)), np.inf, _values(bound.ratios))
    first, worst = (np.unravel_index(int(np.argmax(of)), ratios.shape) for of in (beyond, ratios))
    what = f"{counted(count)} of {counted(beyond.size)} elements"
    found.headlines["d"] = (f"d is beyond its bound in {what}, first at {tuple(int(i) for i in first)}")
    lines = [f"d ({mine.tensor.dtype}{shape_text(mine.tensor.shape)}): {what} beyond the bound ({bound.derivation})"]
    exact = Elements(bound.exact)
    for label, index in (("first", first), ("worst", worst)):
        place = tuple(int(i) for i in index)
        lines.append(f"  {difference.element(label, place)}, exact {exact.text(place)}, "
                     f"{number(float(ratios[place]))} of the bound")
    lines += [f"  {line}" for line in map_lines(beyond)]
    found.paragraphs.append(lines)
    _explain_gemm(client, found, mine, a, b, "", options)
    if options["d_scale"] is None:
        found.notes.append(Nearer(_values(mine.tensor), _values(wanted.tensor), exact.values(),
                                  half_unit_of(exact.values(), "f32")).text("the exact product"))
    found.make_report = lambda: client.diff({"d": _again(mine.tensor)}, {"d": _again(wanted.tensor)},
                                            names=("mine", result.arithmetic))
    raise found.mismatch()


def _shaped_bound(mine: Given, a: Any, b: Any, arithmetic: str, options: Mapping[str, Any]) -> Any:
    """The bound, or None where d has another shape than the GEMM's, which is a mismatch and no refusal."""
    try:
        return _bound_of(mine, a, b, arithmetic, options)
    except Error as error:
        if error.field != "subject":
            raise
        return None


def _explain_gemm(client: Any, found: _Found, mine: Given, a: Any, b: Any, arithmetic: str, options: Mapping[str, Any]) -> None:
    try:
        answer = client.explain(a=a, b=b, d=_again(mine.tensor), **options)
    except Error as error:
        found.notes.append(f"not explained: {error}")
        return
    all_of_it = [candidate for candidate in answer.gemm if candidate.match_count == candidate.output_count]
    size = int(np.prod(mine.tensor.shape))
    if arithmetic and answer.is_established and all_of_it and all_of_it[0].output_count == size:
        best = all_of_it[0]
        names = (best.arithmetic or best.rule).split(", ")
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.cause, found.is_unknown = f"d has the bits of {', '.join(names[:3])}{more}, not of {arithmetic}", False
    elif answer.diagnosis is not None and not all_of_it:
        found.diagnose(answer.diagnosis)
        if not found.cause and _was_short_of_time(answer.diagnosis):
            # The same again, for longer than the explanation took.
            engine, slots, rest = _checked(a, b, options)
            found.diagnose(json.loads(engine.diagnose_gemm(slots, mine.tensor, options["layout"], *rest, _SECONDS)))


# --- Layers.

def layer(kind: str, given: Mapping[str, Any], outputs: Optional[Mapping[str, Any]], related: Optional[Mapping[str, Any]], x: Any,
          weight: Any, recipe: Any, within: str, client: Any, options: Dict[str, Any]) -> None:
    __tracebackhide__ = True
    _within(within, "bound", "bits")
    client = _client_of(client)
    mine: Dict[str, Any] = {name: tensor for name, tensor in given.items() if tensor is not None}
    for argument, tensors in (("outputs", outputs), ("related", related)):
        if tensors is not None and not isinstance(tensors, Mapping):
            raise refuse_type(argument, tensors, "must be a dict of tensors by name")
        for name in tensors or ():
            if name in mine:
                raise refuse(f"{argument}[{name!r}]", "given", f"{name} is given as an argument of its own, too")
        if argument == "outputs":
            mine.update({name: tensor for name, tensor in (outputs or {}).items()})
    if not mine:
        raise refuse("y", "None", "one output must be given at least; there is nothing to compare")
    options = dict(options)
    call = dict(recipe=recipe, layer=kind, require="bitwise" if within == "bits" else "bound", name="mine", **options)
    started = time.monotonic()
    report = client.verify({**mine, **(related or {})}, x, weight, only=list(mine), **call)
    seconds = time.monotonic() - started
    _passed(within)
    if report.passed:
        return
    arithmetic = options.get("arithmetic") or "auto"
    found = _Found(f"assert_{kind}", f"{report.verdict.threshold} ({read_recipe('recipe', recipe).text}, "
                   f"arithmetic {arithmetic})")
    budget = max(_SECONDS, 2 * seconds)
    for comparison in report.comparisons:
        name = comparison.tensor
        expected = read("expected", report.outputs[name])
        difference = Difference(name, read(name, mine[name]) if name in mine else None, expected)
        if comparison.passes:
            found.counts[name] = 0 if within == "bound" else difference.count
            held = ("within its bound" if comparison.bound is not None else
                    f"equal ({counted(difference.total)})")
            found.paragraphs.append([f"{name} ({expected.tensor.dtype}{shape_text(expected.tensor.shape)}): {held}"])
        elif within == "bits" or comparison.bound is None:
            if within == "bound":
                difference.notes.append("no bound is derived for it: it must have the bits")
            found.add(difference)
        else:
            check = _bound_check(client, x, weight, call, name, expected)
            _add_beyond(found, comparison.bound, difference, check, budget)
    found.diagnose(report.get("diagnosis"))
    if (not found.cause or found.is_unknown) and _was_short_of_time(report.get("diagnosis")):
        found.diagnose(_diagnosed_again(client, report, mine, related, x, weight, kind, recipe, options, budget) or
                       report.get("diagnosis"))
    _nearer_of_layer(client, found, report, kind, mine, x, weight, recipe, options)
    found.make_report = lambda: report
    raise found.mismatch()


def _was_short_of_time(diagnosis: Any) -> bool:
    return diagnosis is not None and any("(no time)" in what for what in diagnosis["not_tried"])


def _diagnosed_again(client: Any, report: Any, mine: Mapping[str, Any], related: Optional[Mapping[str, Any]], x: Any, weight: Any,
                     kind: str, recipe: Any, options: Mapping[str, Any], budget: float) -> Optional[Dict[str, Any]]:
    """Engine.Diagnose, which may take longer than the comparison did: a failed test is worth it."""
    rest = dict(options)
    if rest.get("parallel") is not None:
        return None
    rest.pop("parallel", None)
    variants = variants_of([recipe], as_list("backward_override", rest.pop("backward_override", "")),
                           as_list("arithmetic", rest.pop("arithmetic", "")), None, "recipe")
    session = Connection(client._connect, stored=True)
    request: Dict[str, Any] = {"expected": {}, "subjects": {}, "related": {}, "seconds": budget}
    for comparison in report.comparisons:
        name = comparison.tensor
        is_within = comparison.bound is not None and comparison.passes and not comparison.parity.equal
        if name not in mine or is_within:
            continue
        request["expected"][name] = session.place("expected", report.outputs[name])
        request["subjects"][name] = session.place(name, mine[name])
    for name, tensor in (related or {}).items():
        request["related"][name] = session.place(f"related[{name!r}]", tensor)
    try:
        request["spec"] = client._run_spec(session, x, weight, variants, kind, rest)
        return json.loads(_engine.decode("DiagnoseResponse", session.call("Engine/Diagnose", request)))["diagnosis"]
    except Error:
        return None


_Check = Callable[[np.ndarray], Tuple[int, float]]


def _bound_check(client: Any, x: Any, weight: Any, call: Mapping[str, Any], name: str, expected: Given) -> _Check:
    """How many elements of a tensor in the place of output ``name`` are beyond the bound, and the largest share of it."""
    dtype = expected.tensor.dtype

    def check(array: np.ndarray) -> Tuple[int, float]:
        bound = client.verify({name: (array, dtype)}, x, weight, only=[name], **call).comparisons[0].bound
        return bound.violation_count, bound.worst_ratio

    return check


def _add_beyond(found: _Found, bound: Any, difference: Difference, check: _Check, budget: float) -> None:
    """A tensor with elements beyond its bound: the first of them is looked for, by halves, as long as there is time."""
    name, total = difference.name, difference.total
    found.counts[name] = bound.violation_count
    what = f"{counted(bound.violation_count)} of {counted(total)} elements"
    lines = [f"{name} ({difference.theirs.dtype}{shape_text(difference.theirs.shape)}): {what} beyond the bound "
             f"({bound.derivation}), by up to {number(bound.worst_ratio)} of it"]
    headline = f"{name} is beyond its bound in {what}"
    if difference.mine is None or difference.mask is None or not difference.count:
        found.headlines[name] = headline
        found.paragraphs.append(lines)
        return
    places = np.flatnonzero(difference.mask)
    mine, theirs = difference.mine.codes.reshape(-1), difference.theirs.codes.reshape(-1)

    def shares(begin: int, end: int) -> Tuple[int, float]:
        array = theirs.copy()
        array[places[begin:end]] = mine[places[begin:end]]
        return check(array.reshape(difference.theirs.shape))

    ends = time.monotonic() + budget
    low, high, share = 0, len(places), bound.worst_ratio
    while high - low > 1 and time.monotonic() < ends:
        middle = (low + high) // 2
        count, ratio = shares(low, middle)
        if count:
            high, share = middle, ratio
        else:
            low = middle
    first, last = difference.index_of(places[low]), difference.index_of(places[high - 1])
    if high - low == 1:
        headline += f", first at {first}"
        lines.append(f"  {difference.element('first', first)}, {number(share)} of the bound")
    else:
        lines.append(f"  the first lies between {first} and {last}")
    with np.errstate(all="ignore"):
        distances = np.abs(difference.mine.values() - difference.theirs.values())
    distances = np.where(difference.mask, np.where(np.isnan(distances), np.inf, distances), -1).reshape(-1)
    largest = int(np.argmax(distances))
    if time.monotonic() < ends or high - low == 1:
        at = int(np.searchsorted(places, largest))
        _, ratio = shares(at, at + 1)
        label = "worst" if ratio == bound.worst_ratio else "largest difference"
        lines.append(f"  {difference.element(label, difference.index_of(largest))}, {number(ratio)} of the bound")
    else:
        lines.append(f"  {difference.element('largest difference', difference.index_of(largest))}")
    lines.append(f"  {counted(difference.count)} elements have other bits than expected:")
    lines += [f"  {line}" for line in map_lines(difference.mask)]
    found.headlines[name] = headline
    found.paragraphs.append(lines)


def _nearer_of_layer(client: Any, found: _Found, report: Any, kind: str, mine: Mapping[str, Any], x: Any, weight: Any,
                     recipe: Any, options: Mapping[str, Any]) -> None:
    """Of a linear layer: its GEMMs read what does not depend on the arithmetic, so that `exact` is exact for each."""
    if kind != "linear" or read_recipe("recipe", recipe).name == "custom" or options.get("parallel") is not None:
        return
    rest = {name: value for name, value in options.items() if name not in ("arithmetic", "parallel")}
    try:
        exact = client.run(x, weight, recipe=recipe, layer=kind, arithmetic="exact", **rest).outputs
    except Error:
        return
    for comparison in report.comparisons:
        name = comparison.tensor
        if comparison.passes or name not in mine or name not in exact:
            continue
        truth = read("exact", exact[name]).tensor
        sides = [read(name, tensor).tensor for tensor in (mine[name], report.outputs[name])]
        if any(list(side.shape) != list(truth.shape) for side in sides) or truth.dtype not in _EXACT_GEMM_DTYPES:
            continue
        values = _values(truth)
        found.notes.append(Nearer(_values(sides[0]), _values(sides[1]), values, half_unit_of(values, truth.dtype)).text(
            f"the exact {name}"))


# --- Tensors.

def same_bits(mine: Any, theirs: Any, client: Any) -> None:
    __tracebackhide__ = True
    client = _client_of(client)
    report = client.diff(mine, theirs, names=("mine", "theirs"))
    _passed("bits")
    if report.passed:
        return
    found = _Found("assert_same_bits", "equal bits")
    sides = [value if isinstance(value, Mapping) else {"tensor": value} for value in (mine, theirs)]
    for name in {**sides[1], **sides[0]}:
        if name not in sides[1]:
            found.headlines[name] = f"{name} is not in theirs"
            found.paragraphs.append([f"{name} is not in theirs"])
            continue
        given = read(f"mine[{name!r}]", sides[0][name]) if name in sides[0] else None
        found.add(Difference(name, given, read(f"theirs[{name!r}]", sides[1][name])))
    found.diagnose(report.get("diagnosis"))
    found.make_report = lambda: report
    raise found.mismatch()


def nearer(mine: Any, theirs: Any, exact_of: Any, client: Any) -> None:
    __tracebackhide__ = True
    client = _client_of(client)
    sides = [read("mine", mine).tensor, read("theirs", theirs).tensor]
    if isinstance(exact_of, Mapping):
        options = dict(exact_of)
        if "a" not in options or "b" not in options:
            raise refuse("exact_of", f"{{{', '.join(map(repr, options))}}}", "must have a and b, the operands of a GEMM")
        result = client.gemm(options.pop("a"), options.pop("b"), arithmetic="exact", out_dtype="f32", **options)
        exact = read("exact_of", result.d).tensor
    else:
        exact = read("exact_of", exact_of).tensor
    if exact.dtype not in ("f32", "f64"):
        raise refuse("exact_of", f"{exact.dtype}{shape_text(exact.shape)}", "must be f32 or f64")
    for name, side in zip(("mine", "theirs"), sides):
        if list(side.shape) != list(exact.shape):
            raise refuse(name, f"{side.dtype}{shape_text(side.shape)}",
                         f"must be {shape_text(exact.shape)}, as the exact result is")
    values = _values(exact)
    half = 0.0 if exact.dtype == "f64" else half_unit_of(values, "f32")
    with np.errstate(all="ignore"):
        broken = ~np.isfinite(_values(sides[0])) & np.isfinite(values)
    answer = Nearer(_values(sides[0]), _values(sides[1]), values, half)
    _passed("nearer")
    if answer.mine >= answer.theirs and not broken.any():
        return
    found = _Found("assert_nearer", "mine is nearer to the exact result in as many elements as theirs, or more")
    if broken.any():
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(broken)), broken.shape))
        count = int(broken.sum())
        found.counts["mine"] = count
        what = (f"mine is not finite in {counted(count)} {'element' if count == 1 else 'elements'} where the exact result is, "
                f"first at {place}")
        found.cause, found.is_unknown = what, False
        found.headlines["mine"] = f"{counted(count)} of {counted(broken.size)}"
        found.paragraphs.append([f"  mine {Elements(sides[0]).text(place)}, exact {Elements(exact).text(place)}"])
        raise found.mismatch()
    found.cause, found.is_unknown = "theirs is nearer to the exact result", False
    found.headlines["mine"] = (f"in {counted(answer.theirs)} of {counted(values.size)} elements, mine in {counted(answer.mine)}, "
                               f"neither in {counted(answer.neither)}")
    lost = answer.decided & (answer.gap > 0)
    elements = [Elements(side) for side in (*sides, exact)]
    lines = []
    for label, flat in (("first", int(np.argmax(lost))), ("worst", int(np.argmax(np.where(lost, answer.gap, -1))))):
        place = tuple(int(i) for i in np.unravel_index(flat, lost.shape))
        lines.append(f"{label} {place}: {elements[0].text(place)}, theirs {elements[1].text(place)}, exact "
                     f"{elements[2].text(place)}")
    found.paragraphs.append([*lines, *map_lines(lost)])
    found.counts["mine"] = answer.theirs
    raise found.mismatch()
