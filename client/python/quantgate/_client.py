"""Clients: the verbs of QuantGate, and Local, which computes them in this process."""

from __future__ import annotations

import inspect
import json
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import _engine
from ._arguments import SEED_MAX, flag, integer, text
from ._connection import Connection
from ._errors import refuse, refuse_type
from ._play import LayersLike, StepLike, play_trace, trace_of
from ._recipes import RecipeLike
from ._reports import DiffReport, Explanation, Info, Record, RunReport, ScenarioReport, TraceReport
from ._requests import as_list, layer_of, parameters_of, placed, requirement, requires_grad_of, variants_of
from ._sessions import Session, open_session, restore_session, spec_of
from ._tensor_verbs import DequantizeCall, GemmCall, GemmResult, QuantizeAnswer, QuantizeCall, TensorVerbs, gemm_call
from ._tensors import NUMPY, Cuda, Output, read

_OF_GEMM = [name for name, argument in inspect.signature(gemm_call).parameters.items()
            if argument.kind is argument.KEYWORD_ONLY]


class Client(TensorVerbs):
    """The verbs, over connections that a subclass opens."""

    # Whether what was placed and opened over one connection is there over the next one.
    _keeps = False

    def _open(self, stored: bool) -> Connection:
        return Connection(self._connect, stored, self._keeps)

    # --- Layers.

    def _run_spec(self, session: Connection, x: Any, weight: Any, variants: List[Dict[str, Any]], layer: str,
                  options: Dict[str, Any]) -> Dict[str, Any]:
        step: Dict[str, Any] = {"x": session.place("x", x)}
        fields = {name: options.pop(name, None) for name in
                  ("norm", "activation", "operations", "attention", "m_splits", "return_norm_output", "fused",
                   "parallel_mode")}
        fields["name"] = options.pop("layer_name", None)  # Not "name", which verify has for the subject.
        step["layer"] = layer_of(text("layer", layer), fields)
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
        step["calibrate"] = flag("calibrate", options.pop("calibrate", False))
        spec: Dict[str, Any] = {
            "step": step, "variants": variants, "requirement": requirement("require", options.pop("require", None)),
            "seed": integer("seed", options.pop("seed", 0), 0, SEED_MAX),
            "keep_outputs": flag("keep_outputs", options.pop("keep_outputs", True)),
            "error_budget": flag("error_budget", options.pop("error_budget", False)),
        }
        if options:
            raise TypeError(f"{next(iter(options))}: no such argument of this verb")
        return spec

    def _report(self, session: Connection, document: Any) -> RunReport:
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
        bias : tensor [N], or list of tensors; gamma, beta : tensor [K]; parameters : dict of str to tensor
            Parameters; the dict by the names of docs/file-formats.md section 2 (``"fc1.weight"``).
        norm, activation : str or dict; operations : list of dict; attention : dict; m_splits : list of int
            What the layer kind is made of: the fields of ``Layer`` (``layer.proto``).
        return_norm_output, fused : bool; parallel_mode, layer_name : str
            Likewise; ``layer_name`` is its ``name``.
        grad_output : tensor [..., N]
            Of y's shape; without it only the forward runs.
        requires_grad : list of str
            The gradients wanted, of x, weight, bias and norm; by default every one that has an operand.
        main_grads : dict of str to tensor f32
            By the weights' names: the gradient is added to a copy, which is the output ``main_grad``.
        delayed_state : dict of str to tensor f32; calibrate : bool
            Of delayed scaling: what the step before left (``"input.scale"`` [1], ``"input.amax_history"`` [L]); whether to compute in
            high precision and only note the amaxes.
        require : None, ``"bitwise"`` or ``"bound"``
            The verdict's criterion.
        seed : int
            Of stochastic rounding; 0 where no variant has it.
        error_budget : bool
            Whether the report says how much of each output's error each stage makes.
        keep_outputs : bool
            Whether the report has the outputs; True by default.

        Returns
        -------
        RunReport
            ``outputs`` by name: y [..., N], and where there is a grad_output dx, dw, db, ...

        Raises
        ------
        InvalidArgument
            Names the field of the request, its value and the rule.
        TypeError
            For what is no tensor, or of another type than the argument takes.
        Unimplemented, FailedPrecondition
            For an arithmetic that this build, or this machine, does not have.
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
            ``variant_outputs`` has the outputs of each variant, ``run.pairs`` what differs between every two.

        Raises
        ------
        InvalidArgument, TypeError, Unimplemented, FailedPrecondition
            As of ``run``; also for two variants that are the same.
        """
        variants = variants_of(as_list("recipes", recipes), as_list("backward_overrides", backward_overrides),
                               as_list("arithmetics", arithmetics), parallel, "recipes")
        if not variants:
            raise refuse("recipes", "[]", "must be one at least")
        return self._execute("compare", x, weight, variants, layer, reference, options)

    def _execute(self, kind: str, x: Any, weight: Any, variants: List[Dict[str, Any]], layer: str,
                 reference: Optional[int], options: Dict[str, Any]) -> RunReport:
        session = self._open(stored=True)
        spec = self._run_spec(session, x, weight, variants, layer, dict(options))
        if reference is not None:
            spec["reference"] = integer("reference", reference, 0, len(variants) - 1)
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
            ``passed`` says whether all pass; ``diagnosis`` says why not, as far as it can be told.

        Raises
        ------
        InvalidArgument, TypeError, Unimplemented, FailedPrecondition
            As of ``run``; also where the subject has none of the layer's outputs. One that differs is no error.
        """
        if not isinstance(subject, Mapping):
            raise refuse_type("subject", subject, "must be a dict of tensors by name")
        if require not in ("bitwise", "bound"):
            raise refuse("require", repr(require), "must be bitwise or bound")
        variants = variants_of([recipe], as_list("backward_override", backward_override),
                               as_list("arithmetic", arithmetic), parallel, "recipe")
        if len(variants) > 1 and require == "bound":
            raise refuse("require", "bound", "what several ranks computed is compared bit for bit")
        session = self._open(stored=True)
        mine = [(output, read(f"subject[{output!r}]", tensor).tensor) for output, tensor in subject.items()]
        spec = self._run_spec(session, x, weight, variants, layer, dict(options))
        document = session.client.verify(json.dumps(spec), name, mine, as_list("only", only), require == "bound",
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

        Returns
        -------
        DiffReport
            ``comparisons``, one for each name; other dtypes and shapes are differences, too.

        Raises
        ------
        InvalidArgument
            Where there is nothing to compare.
        TypeError
            For what is no tensor.
        """
        if isinstance(a, Mapping) != isinstance(b, Mapping):
            raise refuse_type("b", b, "a and b must both be tensors or both be dicts of tensors")
        if not isinstance(names, (tuple, list)) or len(names) != 2 or not all(isinstance(name, str) for name in names):
            raise refuse_type("names", names, "must be two texts")
        sides = []
        for argument, value in (("a", a), ("b", b)):
            tensors = value if isinstance(value, Mapping) else {"tensor": value}
            sides.append([(name, read(f"{argument}[{name!r}]" if isinstance(value, Mapping) else argument, tensor).tensor)
                          for name, tensor in tensors.items()])
        if not sides[0] and not sides[1]:
            raise refuse("a", "{}", "a and b hold no tensors; there is nothing to compare")
        if max_ulp is not None:
            max_ulp = integer("max_ulp", max_ulp, 0, 2**63 - 2)
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

        Raises
        ------
        InvalidArgument
            For operands, codes or scales that do not fit together.
        TypeError
            For what is no tensor.
        """
        session = self._open(stored=False)
        if (d is None) == (codes is None):
            raise refuse("d", "given" if d is not None else "absent",
                         "give d with a and b to explain a GEMM, or codes with source and scale_inv")
        if d is not None:
            for name in gemm:
                if name not in _OF_GEMM:
                    raise TypeError(f"{name}: no such argument of this verb")
            request = {"gemm": {"gemm": gemm_call(a, b, None, **gemm).request(session), "d": session.place("d", d)}}
        else:
            if gemm:
                raise TypeError(f"{next(iter(gemm))}: no such argument of explain for codes")
            part: Dict[str, Any] = {"source": session.place("source", source), "codes": session.place("codes", codes),
                                    "scale_inv": session.place_small("scale_inv", scale_inv),
                                    "scale_layout": text("scale_layout", scale_layout)}
            for name, value in (("amax", amax), ("zero_point", zero_point)):
                if value is not None:
                    part[name] = session.place_small(name, value)
            request = {"codes": part}
        answer = session.call("Engine/Explain", request)
        return Explanation(json.loads(_engine.decode("ExplainResponse", answer)), lambda: _engine.explanation_text(answer))

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
            Fields of ``SessionSpec``: backward_override, arithmetic, weights, built_without_grad, masters, requantization,
            main_grads, seed, parallel.

        Returns
        -------
        Session
            A context manager.

        Raises
        ------
        InvalidArgument
            Names the field of the request, its value and the rule.
        TypeError
            For an unknown argument, and for what is no tensor.
        ResourceExhausted
            Where sessions take more memory than they may.
        """
        spec = spec_of(layers, recipe, optimizer, options)
        return open_session(self._open(stored=False), spec, parameters)

    def restore(self, checkpoint: bytes, layers: Mapping[str, Any], *, recipe: RecipeLike,
                optimizer: Optional[Mapping[str, Any]] = None, **options: Any) -> Session:
        """Opens a session that goes on from a checkpoint.

        Parameters
        ----------
        checkpoint : bytes
            What ``Session.checkpoint`` gave.
        layers, recipe, optimizer, **options
            As of ``session``; ``parallel`` may be other ranks than the checkpoint's.

        Returns
        -------
        Session

        Raises
        ------
        InvalidArgument
            For bytes that are no checkpoint.
        FailedPrecondition
            For a checkpoint of other layers.
        """
        spec = spec_of(layers, recipe, optimizer, options)
        return restore_session(self._open(stored=False), checkpoint, spec)

    def play(self, layers: LayersLike, parameters: Mapping[str, Any], steps: Sequence[StepLike], *,
             recipes: Sequence[RecipeLike], backward_overrides: Optional[Sequence[str]] = None,
             arithmetics: Optional[Sequence[str]] = None, parallel: Optional[Mapping[str, Any]] = None, reference: int = 0,
             rounds: int = 1, optimizer: Optional[Mapping[str, Any]] = None, require: Optional[str] = None,
             keep_outputs: bool = False, **options: Any) -> TraceReport:
        """Plays steps of training under several recipes side by side, each in a session of its own from the same parameters.

        Parameters
        ----------
        layers, parameters, optimizer, **options
            As of ``session``.
        steps : list
            Each a kind in text (``"optimize"``, ``"wgrad"``), or a dict of one kind: ``{"forward": x}``,
            ``{"backward": grad_output}``, ``{"change_recipe": recipe}``, ``{"offload": microbatch}``; with more than that, the
            arguments of the ``Session``'s method: ``{"forward": {"x": x, "microbatch": "1"}}``. ``{"restart": {}}`` goes on from
            a checkpoint (``variants``, ``parallel``). Beside the kind: ``subjects``, outputs of this step computed elsewhere, a
            dict of tensors by name (``"y"``, ``"fc1.dw"``), each held against that of the variant ``subjects_of`` (0), which
            must be met as ``require`` says (None, ``"bitwise"``, ``"bound"``).
        recipes, backward_overrides, arithmetics, parallel : list; dict
            The variants, as of ``compare``.
        reference : int
            The variant that the others are compared with, each step's outputs and after an update the parameters.
        rounds : int
            How often all steps are played; subjects go with one round.
        require : str, optional
            ``"bitwise"``: every output and parameter of every variant has the reference's bits.
        keep_outputs : bool
            Whether the report has the steps' outputs.

        Returns
        -------
        TraceReport

        Raises
        ------
        InvalidArgument
            Names the field, its value and the rule; a step that a variant refuses ends the trace so, too.
        """
        trace = trace_of(layers, recipes, backward_overrides, arithmetics, parallel, reference, rounds, optimizer, options)
        return play_trace(self._open(stored=True), trace, parameters, steps, require, keep_outputs)

    # --- What there is.

    def info(self) -> Info:
        """What this build, or the server, is and can do."""
        session = self._open(stored=False)
        answers: Dict[str, Any] = {}
        parts: List[bytes] = []
        for method, answer in (("GetCapabilities", "Capabilities"), ("ListRecipes", "ListRecipesResponse"),
                               ("ListArithmetics", "ListArithmeticsResponse")):
            parts.append(session.call(f"Info/{method}", {}))
            entries = json.loads(_engine.decode(answer, parts[-1]))
            answers.update({"capabilities": entries} if answer == "Capabilities" else entries)
        return Info(answers, lambda: _engine.info_text(*parts))

    def scenarios(self) -> List[Record]:
        """The scenarios of the self-check, with their invariants and the faults that they must catch."""
        session = self._open(stored=False)
        answer = _engine.decode("ListScenariosResponse", session.call("Scenarios/List", {}))
        listed: List[Record] = Record(json.loads(answer))["scenarios"]
        return listed

    def run_scenarios(self, names: Iterable[str] = (), *, with_faults: bool = False,
                      parallel_backend: str = "") -> ScenarioReport:
        """Runs scenarios of the self-check; no names: all of them.

        Parameters
        ----------
        names : list of str
        with_faults : bool
            Also runs each under each of its faults, which it must catch.
        parallel_backend : str
            Of several ranks: ``"local"`` (as empty), all on one device, or ``"nccl"``, a GPU for each.

        Returns
        -------
        ScenarioReport

        Raises
        ------
        NotFound
            For a name that no scenario has.
        """
        events: List[Dict[str, Any]] = []
        request = {"names": as_list("names", names), "with_faults": flag("with_faults", with_faults),
                   "parallel_backend": parallel_backend}
        run = self._connect().run_scenarios(json.dumps(request), lambda event: events.append(json.loads(event)))
        return ScenarioReport({"scenarios": [event["scenario"] for event in events if event.get("scenario")],
                               "faults": [event["fault"] for event in events if event.get("fault")],
                               "finished": json.loads(run.finished())}, run)


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
        By the first verb, for a GPU that this build, or this machine, does not have.
    """

    def __init__(self, device: str = "cpu", threads: int = 0):
        self._device = text("device", device)
        self._threads = integer("threads", threads, 0, 4096)
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

    def _wait(self) -> None:
        """Makes the GPU wait for what was given."""
        if self._cuda is not None:
            self._cuda.wait_for_torch()

    def __repr__(self) -> str:
        return f"quantgate.Local(device={self._device!r}, threads={self._threads})"

    def _compute_quantize(self, call: QuantizeCall) -> QuantizeAnswer:
        outputs = None if call.out is None else [(name, output.tensor) for name, output in call.out.items()]
        self._wait()
        answer = self._local.quantize(*call._replace(recipe=call.recipe.parsed, out=outputs))
        return QuantizeAnswer(answer.tensors, answer.shape, answer.source_dtype, answer.description(), answer.record)

    def _compute_dequantize(self, call: DequantizeCall) -> Any:
        self._wait()
        return self._local.dequantize(*call._replace(out=call.out and call.out.tensor))

    def _compute_gemm(self, call: GemmCall, arithmetic: str, out_dtype: str, output: Optional[Output],
                      on_device: bool) -> GemmResult:
        self._wait()
        answer = self._local.gemm([(slot, given.tensor) for slot, given in call.slots], call.layout, arithmetic, out_dtype,
                                  call.alpha, call.beta, call.in_place, call.scalings, call.groups, call.e4m3_max,
                                  output and output.tensor, on_device)
        return GemmResult(answer.d, answer.amax, answer.arithmetic, answer.text, answer.note, answer.seconds)

    def _compute_generate(self, distribution: str, shape: List[int], dtype: str, seed: int, scale: float) -> Any:
        return self._local.generate(distribution, shape, dtype, seed, scale)
