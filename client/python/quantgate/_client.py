"""Clients: the verbs of QuantGate in this process (Local) or over a transport (Remote)."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _engine
from ._errors import refuse, refuse_type
from ._quantized import PARTS, Quantized
from ._recipes import RecipeLike, read_recipe
from ._reports import DiffReport, Explanation, Info, RunReport, ScenarioReport
from ._requests import (as_list, layer_of, parameters_of, placed, recipe_dict, requirement, requires_grad_of,
                        variants_of)
from ._sessions import Session, open_session, restore_session, spec_of
from ._tensors import NUMPY, Cuda, Given, Kind, Output, dtype_name, kind_of_name, read, read_out, read_small


def _flag(argument: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refuse_type(argument, value, "must be True or False")


def _integer(argument: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise refuse_type(argument, value, "must be an integer")
    number = value.__index__()
    if not least <= number <= most:
        raise refuse(argument, number, f"must be from {least} to {most}")
    return number


def _real(argument: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise refuse_type(argument, value, "must be a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise refuse_type(argument, value, "must be a number") from None


def _text(argument: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse_type(argument, value, "must be text")
    return value


_SEED_MAX = 2**64 - 1
_NO_GPU: Any = nullcontext()


class _Connection:
    """One connection and what was placed there: tensors by their memory, each once."""

    def __init__(self, client: Any, stored: bool):
        self.client = client
        self.kind: Optional[Kind] = None
        self._stored = stored

    def place(self, argument: str, value: Any) -> Dict[str, Any]:
        """The TensorSource of a tensor, or of codes, that was given as ``argument``."""
        if isinstance(value, Quantized):
            parts = {name: self._place(f"{argument}.{name}", tensor) for name, tensor in value.given_to(argument).items()
                     if name != "amax_history"}
            return {"quantized": {"tensors": parts, "description": value.description,
                                  "source_dtype": value.source_dtype}}
        given = read(argument, value)
        if self.kind is None:
            self.kind = given.kind
        return self._place(argument, given.tensor)

    def place_small(self, argument: str, value: Any) -> Dict[str, Any]:
        given = read_small(argument, value)
        return {} if given is None else self._place(argument, given.tensor)

    def _place(self, argument: str, tensor: Any) -> Dict[str, Any]:
        return json.loads(self.client.place(argument, tensor, self._stored))

    def call(self, method: str, request: Mapping[str, Any]) -> bytes:
        return self.client.call(method, json.dumps(request))

    def fetch(self, named_tensor: bytes) -> Any:
        return (self.kind or NUMPY).back(self.client.fetch(named_tensor))


def _gemm_slots(arguments: Mapping[str, Any], a: Any, b: Any, cuda: Optional[Cuda]
                ) -> Tuple[List[Tuple[str, Given]], Dict[str, Any]]:
    """The tensors of a GEMM by the names of its slots, and what codes say of themselves."""
    slots: List[Tuple[str, Given]] = []
    said: Dict[str, Any] = {"a": {}, "b": {}}
    for side, operand in (("a", a), ("b", b)):
        if isinstance(operand, Quantized):
            for name in ("scale_inv", "amax", "zero_point"):
                if arguments[f"{side}_{name}"] is not None:
                    raise refuse(f"{side}_{name}", "given", f"{side} is Quantized and has its own")
            parts = operand.given_to(side, cuda)
            usage = "rowwise" if operand.rowwise_data is not None else "columnwise"
            direction = operand.description.get(usage, {})
            for slot, part in (("tensor", f"{usage}_data"), ("scale_inv", f"{usage}_scale_inv"),
                               ("zero_point", f"{usage}_zero_point"), ("amax", f"amax_{usage}")):
                tensor = parts.get(part)
                takes = slot != "amax" or direction.get("format") == "nvfp4"
                if tensor is not None and takes:
                    slots.append((f"{side}.{slot}", Given(tensor, NUMPY)))
            if direction.get("format") == "nvfp4" and direction.get("e4m3_max", 448) != 448:
                said[side]["e4m3_max"] = direction["e4m3_max"]
            if direction.get("group"):
                said[side]["group"] = direction["group"]
            continue
        slots.append((f"{side}.tensor", read(side, operand, cuda)))
        for name in ("scale_inv", "amax", "zero_point"):
            given = read_small(f"{side}_{name}", arguments[f"{side}_{name}"], cuda)
            if given is not None:
                slots.append((f"{side}.{name}", given))
    for name in ("c", "bias", "d_scale"):
        given = read_small(name, arguments[name], cuda)
        if given is not None:
            slots.append((name, given))
    return slots, said


class GemmResult:
    """The result of one GEMM.

    Attributes
    ----------
    d : tensor [M][N]
        Of ``out_dtype``, of the kind of a.
    amax : tensor f32 [1] or None
        FP8 outputs: the largest magnitude before ``d_scale``.
    arithmetic : str
        The arithmetic that ran, fully resolved.
    text, note : str
        One line that says what was computed; what the arithmetic says of itself.
    seconds : float
    """

    __slots__ = ("d", "amax", "arithmetic", "text", "note", "seconds")

    def __init__(self, d: Any, amax: Any, arithmetic: str, text: str, note: str, seconds: float):
        self.d, self.amax, self.arithmetic, self.text, self.note, self.seconds = d, amax, arithmetic, text, note, seconds

    def __repr__(self) -> str:
        return f"GemmResult({self.text!r}, arithmetic={self.arithmetic!r})"


class Client:
    """The verbs, over connections that a subclass opens."""

    def _connect(self) -> Any:
        """A connection for one verb."""
        raise NotImplementedError

    # --- Layers.

    def _run_spec(self, session: _Connection, x: Any, weight: Any, variants: List[Dict[str, Any]], layer: str,
                  options: Dict[str, Any]) -> Dict[str, Any]:
        step: Dict[str, Any] = {"x": session.place("x", x)}
        fields = {name: options.pop(name, None) for name in
                  ("norm", "activation", "operations", "attention", "m_splits", "return_norm_output", "fused",
                   "parallel_mode", "name")}
        step["layer"] = layer_of(_text("layer", layer), fields)
        shorts = {"weight": weight, "bias": options.pop("bias", None), "gamma": options.pop("gamma", None),
                  "beta": options.pop("beta", None)}
        parameters = parameters_of(shorts, options.pop("parameters", None))
        step["parameters"] = {
            name: session.place(name if shorts.get(name) is tensor else f"parameters[{name!r}]", tensor)
            for name, tensor in parameters.items()}
        grad_output = options.pop("grad_output", None)
        if grad_output is not None:
            step["grad_output"] = session.place("grad_output", grad_output)
        step["main_grads"] = placed("main_grads", options.pop("main_grads", None), session.place)
        step["delayed_state"] = placed("delayed_state", options.pop("delayed_state", None), session.place_small)
        wanted = requires_grad_of(options.pop("requires_grad", None))
        if wanted is not None:
            step["requires_grad"] = wanted
        step["calibrate"] = _flag("calibrate", options.pop("calibrate", False))
        spec: Dict[str, Any] = {
            "step": step, "variants": variants, "requirement": requirement("require", options.pop("require", None)),
            "seed": _integer("seed", options.pop("seed", 0), 0, _SEED_MAX),
            "keep_outputs": _flag("keep_outputs", options.pop("keep_outputs", True)),
            "error_budget": _flag("error_budget", options.pop("error_budget", False)),
        }
        if options:
            raise TypeError(f"{next(iter(options))}: no such argument of this verb")
        return spec

    def _report(self, session: _Connection, document: Any) -> RunReport:
        kind = session.kind or NUMPY
        outputs = []
        for variant in range(document.variant_count):
            tensors = {}
            for named in document.outputs(variant):
                name = json.loads(_engine.decode("NamedTensor", named))["name"]
                tensors[name] = kind.back(session.client.fetch(named))
            outputs.append(tensors)
        return RunReport(document, outputs)

    def run(self, x: Any, weight: Any = None, *, recipe: RecipeLike, layer: str = "linear",
            backward_override: str = "", arithmetic: str = "", parallel: Optional[Mapping[str, Any]] = None,
            **options: Any) -> RunReport:
        """Runs a layer forward, and backward where ``grad_output`` is given, under one recipe.

        Parameters
        ----------
        x : tensor [..., K]
        weight : tensor [N][K], list of tensors, or None
            Of the layer kinds that have one; a list has those of the experts.
        recipe : str, dict or Recipe
        layer : str
            ``"linear"``, ``"layernorm_linear"``, ``"layernorm_mlp"``, ``"grouped_linear"``, ``"chain"``,
            ``"attention"``, ``"transformer_layer"``.
        backward_override : str
            ``"none"``, ``"high_precision"``, ``"dequantized"``; empty: the recipe's own knob.
        arithmetic : str
            ``"auto"``, ``"sm90"``, ``"exact"``, ...; empty: auto.
        parallel : dict, optional
            Fields of ``Parallel``: the layer also runs on several ranks, and is compared with one.
        **options
            docs/python.md section 1.

        Returns
        -------
        RunReport

        Raises
        ------
        InvalidArgument
            Names the field of the request, its value and the rule.
        """
        variants = variants_of([recipe], as_list("backward_override", backward_override),
                               as_list("arithmetic", arithmetic), parallel, "recipe")
        return self._execute("run", x, weight, variants, layer, None, options)

    def compare(self, x: Any, weight: Any = None, *, recipes: Sequence[RecipeLike],
                backward_overrides: Optional[Sequence[str]] = None, arithmetics: Optional[Sequence[str]] = None,
                reference: Optional[int] = None, layer: str = "linear",
                parallel: Optional[Mapping[str, Any]] = None, **options: Any) -> RunReport:
        """Runs a layer under every recipe, override and arithmetic, each against the reference and each other.

        Parameters
        ----------
        x, weight, layer, parallel, **options
            As of ``run``.
        recipes, backward_overrides, arithmetics : list
            The variants are recipes x overrides x arithmetics, numbered from 0, arithmetics fastest.
        reference : int, optional
            The variant that the others are compared with; None: the exact result alone.

        Returns
        -------
        RunReport
        """
        variants = variants_of(as_list("recipes", recipes), as_list("backward_overrides", backward_overrides),
                               as_list("arithmetics", arithmetics), parallel, "recipes")
        if not variants:
            raise refuse("recipes", "[]", "must be one at least")
        return self._execute("compare", x, weight, variants, layer, reference, options)

    def _execute(self, kind: str, x: Any, weight: Any, variants: List[Dict[str, Any]], layer: str,
                 reference: Optional[int], options: Dict[str, Any]) -> RunReport:
        session = _Connection(self._connect(), stored=True)
        spec = self._run_spec(session, x, weight, variants, layer, dict(options))
        if reference is not None:
            spec["reference"] = _integer("reference", reference, 0, len(variants) - 1)
        elif len(variants) == 2 and "parallel" in variants[1] and "parallel" not in variants[0]:
            spec["reference"] = 0
        return self._report(session, session.client.run(kind, json.dumps(spec), f"quantgate.{kind}(...)"))

    def verify(self, subject: Mapping[str, Any], x: Any, weight: Any = None, *, recipe: RecipeLike,
               require: str = "bitwise", only: Optional[Iterable[str]] = None, layer: str = "linear",
               backward_override: str = "", arithmetic: str = "", parallel: Optional[Mapping[str, Any]] = None,
               name: str = "subject", **options: Any) -> RunReport:
        """Compares your own outputs with the engine's from the same operands.

        Parameters
        ----------
        subject : dict of str to tensor
            What your code computed, by names of outputs: y, dx, dw, db, ... One that it lacks fails.
        only : list of str, optional
            The outputs that it must hold; None: every one.
        require : str
            ``"bitwise"``, or ``"bound"``: within the error bound derived for what made the output.
        name : str
            What the report calls the subject.
        x, weight, recipe, layer, backward_override, arithmetic, parallel, **options
            As of ``run``.

        Returns
        -------
        RunReport
            ``passed`` says whether all pass; the report says why not, as far as it can be told.
        """
        if not isinstance(subject, Mapping):
            raise refuse_type("subject", subject, "must be a dict of tensors by name")
        if require not in ("bitwise", "bound"):
            raise refuse("require", repr(require), "must be bitwise or bound")
        variants = variants_of([recipe], as_list("backward_override", backward_override),
                               as_list("arithmetic", arithmetic), parallel, "recipe")
        if len(variants) > 1 and require == "bound":
            raise refuse("require", "bound", "what several ranks computed is compared bit for bit")
        session = _Connection(self._connect(), stored=True)
        mine = [(output, read(f"subject[{output!r}]", tensor).tensor) for output, tensor in subject.items()]
        spec = self._run_spec(session, x, weight, variants, layer, dict(options))
        document = session.client.verify(json.dumps(spec), name, mine, list(only or ()), require == "bound",
                                         "quantgate.verify(...)")
        return self._report(session, document)

    def diff(self, a: Any, b: Any, *, max_ulp: Optional[int] = None, names: Tuple[str, str] = ("a", "b")) -> DiffReport:
        """Parity and error report of two tensors, or of two dicts of tensors by name.

        Parameters
        ----------
        a, b : tensor, or dict of str to tensor
            The subject and the reference. A tensor that one of them lacks is a difference.
        max_ulp : int, optional
            Passes when no element is further apart than this; None: bitwise.
        names : pair of str
            What the report calls them.
        """
        if isinstance(a, Mapping) != isinstance(b, Mapping):
            raise refuse_type("b", b, "a and b must both be tensors or both be dicts of tensors")
        sides = []
        for argument, value in (("a", a), ("b", b)):
            tensors = value if isinstance(value, Mapping) else {"tensor": value}
            sides.append([(name, read(f"{argument}[{name!r}]" if isinstance(value, Mapping) else argument, tensor).tensor)
                          for name, tensor in tensors.items()])
        if not sides[0] and not sides[1]:
            raise refuse("a", "{}", "a and b hold no tensors; there is nothing to compare")
        if max_ulp is not None:
            max_ulp = _integer("max_ulp", max_ulp, 0, 2**63 - 2)
        return DiffReport(self._connect().diff(tuple(names), sides[0], sides[1], max_ulp, "quantgate.diff(...)"))

    def explain(self, *, a: Any = None, b: Any = None, d: Any = None, source: Any = None, codes: Any = None,
                scale_inv: Any = None, amax: Any = None, zero_point: Any = None, scale_layout: str = "",
                **gemm: Any) -> Explanation:
        """Which arithmetic, or which scale and rounding rule, produced these bytes.

        Parameters
        ----------
        a, b, d : tensor
            The operands and the result [M][N] of a GEMM; ``**gemm`` takes the other arguments of ``gemm``.
        source, codes, scale_inv : tensor
            What was quantized, the codes, and their scales.
        amax, zero_point : tensor, optional
        scale_layout : str
            Of ``scale_inv``; empty: logical.

        Returns
        -------
        Explanation
            ``gemm`` or ``codes``: candidates, best first; ``conclusion``, ``is_established``, ``cause``.
        """
        session = _Connection(self._connect(), stored=False)
        if (d is None) == (codes is None):
            raise refuse("d", "given" if d is not None else "absent",
                         "give d with a and b to explain a GEMM, or codes with source and scale_inv")
        if d is not None:
            request = {"gemm": {"gemm": self._gemm_request(session, a, b, gemm), "d": session.place("d", d)}}
        else:
            if gemm:
                raise TypeError(f"{next(iter(gemm))}: no such argument of explain for codes")
            part: Dict[str, Any] = {"source": session.place("source", source), "codes": session.place("codes", codes),
                                    "scale_inv": session.place_small("scale_inv", scale_inv),
                                    "scale_layout": _text("scale_layout", scale_layout)}
            for name, value in (("amax", amax), ("zero_point", zero_point)):
                if value is not None:
                    part[name] = session.place_small(name, value)
            request = {"codes": part}
        return Explanation(json.loads(_engine.decode("ExplainResponse", session.call("Engine/Explain", request))))

    @staticmethod
    def _gemm_request(session: _Connection, a: Any, b: Any, options: Mapping[str, Any]) -> Dict[str, Any]:
        defaults = dict.fromkeys(("a_scale_inv", "b_scale_inv", "a_amax", "b_amax", "a_zero_point", "b_zero_point", "c",
                                  "bias", "d_scale", "a_scaling", "b_scaling", "a_group", "b_group", "a_e4m3_max",
                                  "b_e4m3_max"))
        arguments = {**defaults, "layout": "tn", "alpha": 1.0, "beta": 0.0, "in_place": False}
        for name in options:
            if name not in arguments:
                raise TypeError(f"{name}: no such argument of this verb")
        arguments.update(options)
        slots, said = _gemm_slots(arguments, a, b, None)
        session.kind = slots[0][1].kind
        request: Dict[str, Any] = {"a": {}, "b": {}, "layout": arguments["layout"], "alpha": arguments["alpha"],
                                   "beta": arguments["beta"], "in_place": arguments["in_place"]}
        for slot, given in slots:
            side, _, part = slot.rpartition(".")
            (request[side] if side else request)[part] = session._place(slot, given.tensor)
        for side in ("a", "b"):
            for name in ("scaling", "group", "e4m3_max"):
                value = arguments[f"{side}_{name}"]
                if value is None:
                    value = said[side].get(name)
                if value is not None:
                    request[side][name] = value if name == "e4m3_max" else str(value)
        return request

    # --- Sessions.

    def session(self, layers: Mapping[str, Any], parameters: Mapping[str, Any], *, recipe: RecipeLike,
                optimizer: Optional[Mapping[str, Any]] = None, **options: Any) -> Session:
        """Opens a training session.

        Parameters
        ----------
        layers : dict
            By name, in order: a kind in text, or a dict of the fields of ``Layer`` (``layer.proto``).
        parameters : dict of str to tensor
            By ``"LAYER.NAME"``: ``"fc1.weight"``.
        recipe : str, dict or Recipe
        optimizer : dict, optional
            ``{"kind": "adam", "learning_rate": 1e-3, ...}`` or ``{"kind": "sgd", ...}``: the fields of ``Adam``, ``Sgd``.
        **options
            Fields of ``SessionSpec``: backward_override, arithmetic, weights, masters, main_grads, seed, parallel, ...
        """
        spec = spec_of(layers, recipe, optimizer, options)
        return open_session(_Connection(self._connect(), stored=False), spec, parameters)

    def restore(self, checkpoint: bytes, layers: Mapping[str, Any], *, recipe: RecipeLike,
                optimizer: Optional[Mapping[str, Any]] = None, **options: Any) -> Session:
        """Opens a session that goes on from a checkpoint; arguments as of ``session``."""
        spec = spec_of(layers, recipe, optimizer, options)
        return restore_session(_Connection(self._connect(), stored=False), checkpoint, spec)

    # --- What there is.

    def info(self) -> Info:
        """What this build, or the server, is and can do."""
        session = _Connection(self._connect(), stored=False)
        answers = {}
        for name, method, answer in (("capabilities", "Info/GetCapabilities", "Capabilities"),
                                     ("recipes", "Info/ListRecipes", "ListRecipesResponse"),
                                     ("arithmetics", "Info/ListArithmetics", "ListArithmeticsResponse")):
            entries = json.loads(_engine.decode(answer, session.call(method, {})))
            answers[name] = entries.get(name, entries)
        return Info(answers)

    def scenarios(self) -> List[Any]:
        """The scenarios of the self-check, with their invariants and the faults that they must catch."""
        session = _Connection(self._connect(), stored=False)
        answer = _engine.decode("ListScenariosResponse", session.call("Scenarios/List", {}))
        return Info(json.loads(answer))["scenarios"]

    def run_scenarios(self, names: Iterable[str] = (), *, with_faults: bool = False) -> ScenarioReport:
        """Runs scenarios of the self-check; no names: all of them.

        Parameters
        ----------
        names : list of str
        with_faults : bool
            Also runs each under each of its faults, which it must catch.
        """
        events: List[Dict[str, Any]] = []
        request = {"names": as_list("names", names), "with_faults": _flag("with_faults", with_faults)}
        finished = self._connect().run_scenarios(json.dumps(request), lambda event: events.append(json.loads(event)))
        return ScenarioReport({"scenarios": [event["scenario"] for event in events if event.get("scenario")],
                               "faults": [event["fault"] for event in events if event.get("fault")],
                               "finished": json.loads(finished)})


class Local(Client):
    """The verbs computed by this process.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    threads : int
        Of the CPU engine; 0: one for each CPU that the process may use.

    Raises
    ------
    Unimplemented, FailedPrecondition
        For a GPU that this build, or this machine, does not have.
    """

    def __init__(self, device: str = "cpu", threads: int = 0):
        self._device = _text("device", device)
        self._threads = _integer("threads", threads, 0, 4096)
        self._made: Any = None
        self._made_cuda: Optional[Cuda] = None

    @property
    def _local(self) -> Any:
        if self._made is None:
            made = _engine.LocalEngine(self._device, self._threads)
            if made.ordinal >= 0:
                self._made_cuda = Cuda(made)
            self._made = made
        return self._made

    @property
    def _cuda(self) -> Optional[Cuda]:
        return self._made_cuda if self._local is not None else None

    def _connect(self) -> Any:
        return _engine.Client.local(self._device, self._threads)

    def __repr__(self) -> str:
        return f"quantgate.Local(device={self._device!r}, threads={self._threads})"

    def quantize(self, tensor: Any, recipe: RecipeLike, *, role: str = "input", rowwise: bool = True,
                 columnwise: bool = False, seed: int = 0, scale: Any = None, amax_history: Any = None,
                 scale_layout: str = "logical", out: Any = None) -> Quantized:
        """Quantizes one tensor under a recipe.

        Parameters
        ----------
        tensor : tensor f32, bf16 or f16 [..., K]
        recipe : str, dict or Recipe
        role : str
            ``"input"``, ``"weight"`` or ``"grad_output"``: what the tensor is in its GEMMs.
        rowwise, columnwise : bool
            Which copies: blocks along the last dim, and along the first.
        seed : int
            Of stochastic rounding; 0 where the role has none.
        scale, amax_history : f32 [1], f32 [L], optional
            The state of delayed scaling: both or neither.
        scale_layout : str
            Of block scales (docs/file-formats.md section 2.1).
        out : Quantized or dict of str to tensor, optional
            Memory for the results, by name.

        Returns
        -------
        Quantized

        Raises
        ------
        InvalidArgument
            Names field, value and rule: a recipe, role or shape that cannot be.
        TypeError
            For what is no tensor.
        """
        cuda = self._cuda
        with cuda or _NO_GPU:
            given = read("tensor", tensor, cuda)
            state = [read_small(name, value, cuda) for name, value in (("scale", scale), ("amax_history", amax_history))]
            outputs = None if out is None else _outputs(out, [("tensor", given), *zip(("scale", "amax_history"), state)], cuda)
            parsed = read_recipe("recipe", recipe).parsed
            if cuda is not None:
                cuda.wait_for_torch()
            answer = self._local.quantize(
                given.tensor, parsed, _text("role", role), _flag("rowwise", rowwise), _flag("columnwise", columnwise),
                _integer("seed", seed, 0, _SEED_MAX), state[0] and state[0].tensor, state[1] and state[1].tensor,
                _text("scale_layout", scale_layout),
                None if outputs is None else [(name, output.tensor) for name, output in outputs.items()],
                given.kind.cuda is not None)
            tensors = answer.tensors
            values = None if outputs is None else {name: outputs[name].value for name, _ in tensors}
            return Quantized(tensors, given.kind, answer.shape, answer.source_dtype, answer.description(), answer.record,
                             values)

    def dequantize(self, quantized: Union[Quantized, Mapping[str, Any]], *, usage: Optional[str] = None,
                   out_dtype: Any = "f32", format: Optional[str] = None, scale_layout: Optional[str] = None,
                   out: Any = None) -> Any:
        """The values that codes and scales stand for.

        Parameters
        ----------
        quantized : Quantized, or dict of str to tensor
            A dict has the tensors' names of ``Quantized``.
        usage : str, optional
            ``"rowwise"`` or ``"columnwise"``; None: rowwise where it is there.
        out_dtype : dtype
            f32, bf16 or f16.
        format : str, optional
            ``"nvfp4:e4m3_max=256"``: what the codes of a dict are, where dtypes and shapes leave a doubt.
        scale_layout : str, optional
            Of the scales of a dict.
        out : tensor, optional

        Returns
        -------
        tensor
            In the shape of the source.
        """
        cuda = self._cuda
        if isinstance(quantized, Quantized):
            for name, value in (("format", format), ("scale_layout", scale_layout)):
                if value is not None:
                    raise refuse(name, f'"{value}"', "given with Quantized, which says it itself")
            tensors = [(name, Given(tensor, NUMPY)) for name, tensor in quantized.given_to("quantized", cuda).items()]
            kind = quantized._kind
            description = quantized._description
        elif isinstance(quantized, Mapping):
            for name in quantized:
                if name not in PARTS:
                    raise refuse(f"quantized[{name!r}]", "given", f"must be one of {', '.join(PARTS)}")
            tensors = [(name, read_small(f"quantized[{name!r}]", value, cuda)) for name, value in quantized.items()
                       if value is not None]
            kind = tensors[0][1].kind if tensors else NUMPY
            described: Dict[str, Any] = {}
            if format is not None:
                side = usage or ("rowwise" if "rowwise_data" in quantized else "columnwise")
                described[side] = _direction(format)
            if scale_layout is not None:
                described["scale_layout"] = _text("scale_layout", scale_layout)
            description = _engine.encode("QuantizedDescription", json.dumps(described))
        else:
            raise refuse_type("quantized", quantized, "must be Quantized, or a dict of tensors by name")
        output = None if out is None else read_out("out", out, cuda)
        if output is not None:
            output.check_apart("out", [(name, given.tensor) for name, given in tensors])
        with cuda or _NO_GPU:
            if cuda is not None:
                cuda.wait_for_torch()
            values = self._local.dequantize([(name, given.tensor) for name, given in tensors], usage or "",
                                            dtype_name("out_dtype", out_dtype), description, output and output.tensor,
                                            kind.cuda is not None and cuda is not None)
            return kind.back(values) if output is None else output.value

    def gemm(self, a: Any, b: Any, *, arithmetic: str = "auto", layout: str = "tn", out_dtype: Any = "f32",
             a_scale_inv: Any = None, b_scale_inv: Any = None, a_scaling: Optional[str] = None,
             b_scaling: Optional[str] = None, a_amax: Any = None, b_amax: Any = None, a_zero_point: Any = None,
             b_zero_point: Any = None, a_group: Any = None, b_group: Any = None, a_e4m3_max: Optional[int] = None,
             b_e4m3_max: Optional[int] = None, alpha: float = 1.0, beta: float = 0.0, c: Any = None,
             in_place: bool = False, bias: Any = None, d_scale: Any = None, out: Any = None) -> GemmResult:
        """One GEMM under a named arithmetic: d = alpha a b^T + beta c + bias.

        Parameters
        ----------
        a : tensor [M][K], or Quantized
        b : tensor [N][K], or Quantized
        layout : str
            ``"tn"``; ``"nn"``: b is [K][N]; ``"nt"``: a is [K][M] too.
        arithmetic : str
            A name that ``info().arithmetics`` lists, perhaps with parameters: ``"sm90:split"``.
        out_dtype : dtype
            f32, bf16, f16, f8_e4m3 or f8_e5m2.
        a_scale_inv, b_scale_inv : tensor, optional
            The scales of codes; ``a_scaling`` says how they apply where their shapes leave a doubt.
        out : tensor [M][N] of out_dtype, optional
            Where d is written; the CPU engine writes it there at once.

        Returns
        -------
        GemmResult
        """
        arguments = {"a_scale_inv": a_scale_inv, "b_scale_inv": b_scale_inv, "a_amax": a_amax, "b_amax": b_amax,
                     "a_zero_point": a_zero_point, "b_zero_point": b_zero_point, "c": c, "bias": bias,
                     "d_scale": d_scale}
        cuda = self._cuda
        with cuda or _NO_GPU:
            slots, said = _gemm_slots(arguments, a, b, cuda)
            output: Optional[Output] = None
            if out is not None:
                output = read_out("out", out, cuda)
                output.check_apart("out", [(slot, given.tensor) for slot, given in slots])
            scalings = tuple("" if value is None else _text(f"{side}_scaling", value)
                             for side, value in (("a", a_scaling), ("b", b_scaling)))
            groups = tuple(str(value if value is not None else said[side].get("group", ""))
                           for side, value in (("a", a_group), ("b", b_group)))
            bounds = tuple(
                _integer(f"{side}_e4m3_max", value if value is not None else said[side].get("e4m3_max", 0), 0, 448)
                for side, value in (("a", a_e4m3_max), ("b", b_e4m3_max)))
            kind = a._kind if isinstance(a, Quantized) else slots[0][1].kind
            if cuda is not None:
                cuda.wait_for_torch()
            answer = self._local.gemm(
                [(slot, given.tensor) for slot, given in slots], _text("layout", layout), _text("arithmetic", arithmetic),
                dtype_name("out_dtype", out_dtype), _real("alpha", alpha), _real("beta", beta),
                _flag("in_place", in_place), scalings, groups, bounds, output and output.tensor,
                kind.cuda is not None and cuda is not None)
            d = kind.back(answer.d) if output is None else output.value
            amax = answer.amax
            return GemmResult(d, None if amax is None else kind.back(amax), answer.arithmetic, answer.text, answer.note,
                              answer.seconds)

    def generate(self, distribution: str, shape: Sequence[int], dtype: Any = "f32", *, seed: int = 0,
                 scale: Optional[float] = None, kind: str = "numpy") -> Any:
        """A seeded tensor, the same bytes on every machine (docs/numerics.md section 3).

        Parameters
        ----------
        distribution : str
            ``"normal"``, ``"uniform"``, ``"lognormal_outliers"``, ``"subnormal_heavy"``, ``"specials"``, ``"zero"``,
            ``"one_huge"``.
        shape : tuple of int
        dtype : dtype
            f32, bf16, f16 or FP8.
        scale : float, optional
            Multiplies every value in fp32 before the cast.
        kind : str
            ``"numpy"``, ``"torch"`` or ``"jax"``.
        """
        library = kind_of_name("kind", kind)
        dims = [_integer(f"shape[{i}]", size, 0, 2**62) for i, size in enumerate(as_list("shape", shape))]
        return library.back(self._local.generate(
            _text("distribution", distribution), dims, dtype_name("dtype", dtype),
            _integer("seed", seed, 0, _SEED_MAX), 1.0 if scale is None else _real("scale", scale)))


def _direction(text: str) -> Dict[str, Any]:
    """``FORMAT[:element=DTYPE,block_dim=N,e4m3_max=N,group=N,hadamard=BOOL]`` as a QuantizedDirection."""
    name, _, rest = _text("format", text).partition(":")
    direction: Dict[str, Any] = {"format": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in ("element", "block_dim", "e4m3_max", "group", "hadamard"):
            raise refuse("format", f'"{text}"', f'"{part}" must be element=, block_dim=, e4m3_max=, group= or hadamard=')
        if key in ("element", "group"):
            direction[key] = value
        elif key == "hadamard" and value in ("true", "false"):
            direction[key] = value == "true"
        elif key != "hadamard" and value.isdecimal():
            direction[key] = int(value)
        else:
            raise refuse("format", f'"{text}"', f'"{part}" must be {"true or false" if key == "hadamard" else "a number"}')
    return direction


def _outputs(out: Any, inputs: Iterable[Tuple[str, Optional[Given]]], cuda: Optional[Cuda]) -> Dict[str, Output]:
    """Memory for the parts of a quantized tensor, by name."""
    wanted = out.tensors if isinstance(out, Quantized) else out
    if not isinstance(wanted, Mapping):
        raise refuse_type("out", out, "must be Quantized, or a dict of tensors by name")
    others = [(name, given.tensor) for name, given in inputs if given is not None]
    outputs: Dict[str, Output] = {}
    for name, value in wanted.items():
        argument = f"out[{name!r}]"
        if name not in PARTS:
            raise refuse(argument, "given", f"must be one of {', '.join(PARTS)}")
        outputs[name] = read_out(argument, value, cuda)
        outputs[name].check_apart(argument, others)
        others.append((argument, outputs[name].tensor))
    return outputs
