"""Capture of training steps: what named layers read and gave, byte for byte, in files (docs/capture.md).

``quantgate.capture`` is the class below: a context manager, whose static method ``diff`` compares two captures.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import threading
import warnings
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

from . import _engine
from ._capture_copies import Copier, Copy, NotCopied, Writer, chosen_rows, write_tensors, write_whole
from ._capture_layers import CapturedModule, KindLike, choose, gradient_name
from ._errors import make, refuse, refuse_type
from ._recipes import RecipeLike, read_recipe
from ._reports import DiffReport, Report

WHAT = ("x", "weight", "bias", "dy", "y", "dx", "dw", "main_grad")
_GRAPH_NODES_MAX = 4096  # A layer has a handful; more is no layer that dx and dw are looked for in.


class CaptureReport(Report):
    """The report of ``capture.verify``: ``layers``, one for each captured call, and ``first_divergence``."""

    __slots__ = ()


class _Call:
    """One call of a captured module."""

    def __init__(self, captured: CapturedModule, step: int, call: int, microbatch: int):
        self.captured = captured
        self.step, self.call, self.microbatch = step, call, microbatch
        self.forward_order = 0
        self.backward_order: Optional[int] = None
        self.copies: Dict[str, Copy] = {}
        self.left_out: Dict[str, str] = {}
        self.knobs: Dict[str, Any] = {}
        self.parameter_names: List[str] = []
        self.reserved = 0
        self.is_open = True  # Until its step is written.
        self.awaits_recompute = False

    def record(self, file: str) -> Dict[str, Any]:
        return {"file": file, "module": self.captured.path, "class": self.captured.class_name, "kind": self.captured.kind,
                "step": self.step, "call": self.call, "microbatch": self.microbatch,
                "forward_order": self.forward_order, "backward_order": self.backward_order,
                "parameters": self.parameter_names, "left_out": self.left_out, "knobs": self.knobs,
                "tensors": {name: copy.record() for name, copy in self.copies.items()}}


class Capture:
    """Captures what layers of a model read and give in chosen training steps.

    ::

        with quantgate.capture(model, layers=r".*fc1", steps=[0, 10], optimizer=optimizer) as c:
            train()
        print(c.verify(recipe="bf16"))

    Parameters
    ----------
    model : torch.nn.Module
    layers : str, optional
        The modules whose whole path in the model this regular expression matches; by default those of a known kind of layer.
    steps : int or iterable of int, optional
        Steps to capture, counted from 0; by default all. A step ends with ``step()``, or with that of ``optimizer``.
    what : str
        Of x, weight, bias, dy, y, dx, dw, main_grad, separated by commas.
    directory : path, optional
        Where the files go; it must have none of a capture of this rank yet. By default a temporary one, which goes with this
        object.
    kind : str or dict, optional
        Kind of layer of modules whose class does not say it: ``"linear"``, ``"layernorm_linear"``, ``"layernorm_mlp"``,
        ``"grouped_linear"``; a dict has kinds (or None: none) by regular expressions.
    optimizer : torch.optim.Optimizer, optional
        Counts the steps; then ``step()`` is not called.
    max_bytes : int
        Tensors of a rank in all. A call that does not fit is left out as a whole, and said.
    rows : int, optional
        Of x, y, dx and dy at most so many rows, drawn by ``seed``; all dims but the last count as one. By default all.
    seed : int
    rank, world_size : int, optional
        By default those of ``torch.distributed``, or of the variables RANK and WORLD_SIZE.

    Attributes
    ----------
    directory : str

    Raises
    ------
    InvalidArgument
        For a value that breaks a rule, and layers that match nothing.
    """

    def __init__(self, model: Any, layers: Optional[str] = None, steps: Union[None, int, Iterable[int]] = None,
                 what: str = ",".join(WHAT), *, directory: "Union[None, str, os.PathLike[str]]" = None,
                 kind: KindLike = None, optimizer: Any = None, max_bytes: int = 4 << 30, rows: Optional[int] = None,
                 seed: int = 0, rank: Optional[int] = None, world_size: Optional[int] = None):
        import torch

        self._torch = torch
        self._model = model
        self._what = _what(what)
        self._steps = _steps(steps)
        self._max_bytes = _at_least("max_bytes", max_bytes, 0)
        self._rows = None if rows is None else _at_least("rows", rows, 1)
        self._seed = _at_least("seed", seed, 0)
        self._modules = choose(model, layers, kind, torch)
        self._rank, self._world_size = _ranks(torch, rank, world_size)
        self._optimizer = optimizer
        if optimizer is not None and not hasattr(optimizer, "register_step_post_hook"):
            raise refuse_type("optimizer", optimizer, "must be a torch.optim.Optimizer")
        self._temporary = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="quantgate-capture-")
            directory = self._temporary.name
        self.directory = os.fspath(directory)
        self._manifest = os.path.join(self.directory, f"manifest.rank{self._rank}.json")
        if os.path.exists(self._manifest):
            raise refuse("directory", repr(self.directory), f"has a capture of rank {self._rank} already")
        self._copier, self._writer = Copier(torch), Writer(torch)
        self._lock = threading.RLock()
        self._state = "new"
        self._step, self._tick, self._bytes, self._microbatch = 0, 0, 0, -1
        self._calls: List[_Call] = []
        self._counts: Dict[CapturedModule, int] = {}
        self._pending: Dict[CapturedModule, Tuple[Optional[_Call], Any]] = {}
        self._accumulating: Dict[int, List[Tuple[_Call, str]]] = {}
        self._partial: set = set()  # Modules of which a call of this step was left out.
        self._records: List[Dict[str, Any]] = []
        self._left_out: List[str] = []
        self._fired: set = set()
        self._handles: List[Any] = []

    # --- The context.

    def __enter__(self) -> "Capture":
        if self._state != "new":
            raise _precondition("a capture is entered once")
        torch = self._torch
        self._state = "open"
        os.makedirs(self.directory, exist_ok=True)
        hook = _not_traced(torch)
        root = getattr(self._model, "_orig_mod", self._model)
        self._handles.append(root.register_forward_pre_hook(hook(self._begin_microbatch)))
        for captured in self._modules:
            module = captured.module
            # x is taken last of all that happens before the forward, y first of all that happens after it.
            before = functools.partial(self._before_forward, captured)
            after = functools.partial(self._after_forward, captured)
            self._handles.append(module.register_forward_pre_hook(hook(before), with_kwargs=True))
            self._handles.append(module.register_forward_hook(hook(after), prepend=True, with_kwargs=True))
            if "main_grad" not in self._what:
                continue
            for name, parameter in captured.parameters().items():
                if gradient_name(name, "dw") and getattr(parameter, "is_leaf", False) and parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._after_accumulation))
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_post_hook(lambda *_: self._end_step()))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._state = "closed"
        try:
            self._end_step()
            self._note_silent_modules()
            self._writer.add(self._write_manifest)
        finally:
            try:
                self._writer.close()
            except BaseException:
                if error is None:
                    raise
        if self._left_out:
            more = f" (and {len(self._left_out) - 1} more)" if len(self._left_out) > 1 else ""
            warnings.warn(f"quantgate.capture: left out: {self._left_out[0]}{more}", RuntimeWarning, stacklevel=2)

    def step(self) -> None:
        """Ends a training step; called after ``optimizer.step()``, where ``optimizer=`` was not given.

        Raises
        ------
        FailedPrecondition
            Where the optimizer counts the steps, or outside of the context.
        OSError
            Where the files of an earlier step could not be written.
        """
        if self._state != "open":
            raise _precondition("the capture is not open")
        if self._optimizer is not None:
            raise _precondition("the optimizer counts the steps")
        self._end_step()

    def verify(self, recipe: Optional[RecipeLike] = None, *, require: str = "bound", layers: str = "",
               backward_override: str = "", arithmetic: str = "", client: Any = None) -> CaptureReport:
        """Computes every captured layer of this rank's directory and judges what the steps gave.

        Parameters
        ----------
        recipe : recipe, optional
            By default the recipe that each module ran, ``bf16`` where it ran none.
        require : str
            ``"bound"``: within the bound derived for the arithmetic; ``"bitwise"``: the engine's bits.
        layers : str
            A regular expression (ECMAScript's) for whole paths of modules; by default all.
        backward_override, arithmetic : str
            As of ``quantgate.run``; by default f32 layers of bf16 are held to ``fp32`` where TF32 was off.
        client : quantgate.Client, optional
            Where it is computed; by default in this process.

        Raises
        ------
        FailedPrecondition
            While the capture is open.
        InvalidArgument
            Where no captured layer can be judged.
        """
        if self._state != "closed":
            raise _precondition("the capture has not ended; call verify behind the with block")
        return self.verify_directory(self.directory, recipe, require=require, layers=layers,
                                     backward_override=backward_override, arithmetic=arithmetic, client=client)

    @staticmethod
    def verify_directory(directory: "Union[str, os.PathLike[str]]", recipe: Optional[RecipeLike] = None, *,
                         require: str = "bound", layers: str = "", backward_override: str = "", arithmetic: str = "",
                         client: Any = None) -> CaptureReport:
        """``verify`` of a capture that was written before, with all its ranks, or of one of its files."""
        if require not in ("bound", "bitwise"):
            raise refuse("require", repr(require), "must be bound or bitwise")
        variant: Dict[str, Any] = {"backward_override": backward_override, "arithmetic": arithmetic}
        if recipe is not None:
            variant["recipe"] = read_recipe("recipe", recipe).to_dict()
        elif backward_override:
            raise refuse("backward_override", repr(backward_override), "needs a recipe")
        return CaptureReport(_connection(client).verify_capture(os.fspath(directory), json.dumps(variant), layers,
                                                                require == "bound", "quantgate.capture.verify(...)"))

    @staticmethod
    def diff(a: "Union[str, os.PathLike[str], Capture]", b: "Union[str, os.PathLike[str], Capture]", *,
             max_ulp: Optional[int] = None, client: Any = None) -> DiffReport:
        """Compares two captures call by call; ``first_divergence`` names the module and tensor at which they part.

        Parameters
        ----------
        a, b : path, or Capture
        max_ulp : int, optional
            Passes where no element is farther apart; by default every bit counts.
        """
        paths = [os.fspath(one.directory if isinstance(one, Capture) else one) for one in (a, b)]
        if max_ulp is not None:
            max_ulp = _at_least("max_ulp", max_ulp, 0)
        return DiffReport(_connection(client).diff_captures(paths[0], paths[1], max_ulp, "quantgate.capture.diff(...)"))

    # --- Forward.

    def _begin_microbatch(self, *_: Any) -> None:
        if not self._in_backward():
            self._microbatch += 1

    def _is_wanted(self) -> bool:
        return self._state == "open" and (self._steps is None or self._step in self._steps)

    def _in_backward(self) -> bool:
        """Whether autograd is running: a forward then is that of activation checkpointing."""
        current = getattr(self._torch._C, "_current_graph_task_id", None)
        return current is not None and current() != -1

    def _before_forward(self, captured: CapturedModule, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        with self._lock:
            self._pending.pop(captured, None)
            self._fired.add(captured)
            if not self._is_wanted():
                return
            x = _first_tensor(self._torch, (*args, *kwargs.values()))
            if self._in_backward():
                if any(call.awaits_recompute and call.captured is captured for call in self._calls):
                    self._pending[captured] = (None, None if x is None else self._try_copy(x, None)[0])
                return
            number = self._counts.get(captured, 0)
            self._counts[captured] = number + 1
            call = _Call(captured, self._step, number, max(self._microbatch, 0))
            call.left_out.update(captured.left_out)
            if "x" in self._what:
                self._take(call, "x", x)
            parameters = captured.parameters()
            call.parameter_names = list(parameters)
            for name, parameter in parameters.items():
                group = "bias" if name.split(".")[-1] in ("bias", "beta") or ".bias." in f".{name}." else "weight"
                if group in self._what:
                    self._take(call, name, parameter)
            self._pending[captured] = (call, None)

    def _after_forward(self, captured: CapturedModule, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any],
                       output: Any) -> None:
        with self._lock:
            call, recomputed = self._pending.pop(captured, (None, None))
            if self._in_backward():
                if recomputed is not None:
                    call = self._recomputed_call(captured, recomputed)
                    if call is not None:
                        self._follow_backward(call, args, kwargs, _first_tensor(self._torch, (output,)))
                return
            if call is None:
                return
            call.forward_order = self._next_tick()
            y = _first_tensor(self._torch, (output,))
            x = _first_tensor(self._torch, (*args, *kwargs.values()))
            if y is None or x is None:
                self._leave_out(call, "it has no tensor as input and output")
                return
            call.knobs = captured.knobs(self._torch, x, (*args, *kwargs.values()))
            if "y" in self._what:
                self._take(call, "y", y)
            if not self._reserve(call, x, y):
                self._leave_out(call, f"max_bytes is {self._max_bytes}")
                return
            self._calls.append(call)
            if y.requires_grad:
                self._follow_backward(call, args, kwargs, y)
            else:
                # A reentrant checkpoint runs the forward without a graph, and again in backward.
                call.awaits_recompute = not self._torch.is_grad_enabled()

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick - 1

    def _reserve(self, call: _Call, x: Any, y: Any) -> bool:
        """Counts what the call has and what its backward may add."""
        expected = sum(copy.nbytes for copy in call.copies.values())
        if y.requires_grad or not self._torch.is_grad_enabled():
            share = 1.0
            if self._rows is not None and y.ndim and y.numel():
                share = min(1.0, self._rows * y.shape[-1] / y.numel())
            expected += int(y.numel() * y.element_size() * share) * ("dy" in self._what)
            expected += int(x.numel() * x.element_size() * share) * ("dx" in self._what)
            for name, parameter in call.captured.parameters().items():
                if gradient_name(name, "dw"):
                    size = parameter.numel() * parameter.element_size()
                    wide = max(size, parameter.numel() * 4)
                    expected += size * ("dw" in self._what) + 2 * wide * ("main_grad" in self._what)
        if self._bytes + expected > self._max_bytes:
            return False
        self._bytes += expected
        return True

    def _leave_out(self, call: _Call, why: str) -> None:
        self._left_out.append(f"step {call.step}, {call.captured.path or 'the model'}, call {call.call}: {why}")
        self._partial.add(call.captured)

    def _recomputed_call(self, captured: CapturedModule, x: Copy) -> Optional[_Call]:
        """The call whose forward a checkpoint has repeated: the last with the same x."""
        waiting = [call for call in self._calls if call.awaits_recompute and call.captured is captured]
        if not waiting:
            return None
        same = [call for call in waiting if self._has_input(call, x)]
        call = (same or waiting)[-1]
        if not same and "x" in call.copies:
            call.left_out["recomputation"] = "the checkpoint repeated the forward with another x"
        call.awaits_recompute = False
        return call

    def _has_input(self, call: _Call, x: Copy) -> bool:
        known = call.copies.get("x")
        if known is None or known.shape != x.shape or known.dtype != x.dtype:
            return False
        mine, again = (one.host().reshape(-1, *one.host().shape[-1:]) for one in (known, x))
        if known.sampled_rows is not None:
            again = again[known.sampled_rows]
        return self._torch.equal(mine.contiguous().view(self._torch.uint8), again.contiguous().view(self._torch.uint8))

    # --- Backward.

    def _follow_backward(self, call: _Call, args: Tuple[Any, ...], kwargs: Dict[str, Any], y: Any) -> None:
        """Hooks on the nodes of autograd's graph. They see the gradients of this call alone: hooks on tensors would see the
        sum over all uses of x or of the weight."""
        node, index = y.grad_fn, y.output_nr
        x = _first_tensor(self._torch, (*args, *kwargs.values()))
        # What is written in place to a view leaves the view's own node out of the graph, not that of its base.
        base = y._base if y._is_view() else None
        if base is not None and base is not x and base is not x._base and base.grad_fn is not None and (
                base.numel() == y.numel() and base.is_contiguous() and y.is_contiguous()):
            node, index = base.grad_fn, base.output_nr
        if node is None:
            call.left_out["dy"] = "y is no result of an operation of autograd"
            return
        shape = y.shape
        weights = {name: weight for name, weight in call.captured.parameters().items() if gradient_name(name, "dw")}
        node.register_prehook(lambda grads: self._begin_backward(call, weights, grads[index], shape))
        targets = {"dx": x} if "dx" in self._what else {}
        if not call.captured.fuses_wgrad():
            targets.update({gradient_name(name, "dw"): weight for name, weight in weights.items() if "dw" in self._what})
        elif "main_grad" in self._what:
            node.register_hook(lambda *_: self._take_fused(call, weights))
        inputs = [one for one in _tensors(self._torch, (*args, *kwargs.values())) if one.requires_grad]
        for name, edges in _gradient_edges(self._torch, y.grad_fn, targets, inputs).items():
            if len(edges) != 1:
                call.left_out[name] = "it is used at several places of the module" if edges else "not found in autograd's graph"
                continue
            (source, place), expected = edges[0], targets[name].shape
            source.register_hook(functools.partial(self._take_gradient, call, name, place, expected))

    def _begin_backward(self, call: _Call, weights: Dict[str, Any], dy: Any, shape: Any) -> None:
        with self._lock:
            if not call.is_open:
                return
            if call.backward_order is not None:
                call.left_out["second backward"] = "the first one's gradients are recorded"
                return
            call.backward_order = self._next_tick()
            if "dy" in self._what:
                if dy is not None and dy.shape != shape and dy.numel() == shape.numel():
                    dy = dy.reshape(shape)
                self._take(call, "dy", dy)
            if "main_grad" not in self._what:
                return
            for name, weight in weights.items():
                gradient = gradient_name(name, "main_grad")
                if not weight.requires_grad or gradient in call.left_out:
                    continue
                buffer = getattr(weight, "main_grad", None)
                before = buffer if buffer is not None else weight.grad
                if before is not None:
                    self._take(call, gradient_name(name, "main_grad_before"), before)
                if call.captured.fuses_wgrad():
                    continue
                waiting = self._accumulating.setdefault(id(weight), [])
                waiting.append((call, gradient))
                if buffer is not None and len(waiting) == 1:
                    # Who adds to main_grad does so behind this hook, at the latest when backward ends.
                    self._torch.autograd.Variable._execution_engine.queue_callback(
                        functools.partial(self._take_accumulated, weight))

    def _take_gradient(self, call: _Call, name: str, place: int, shape: Any, gradients: Tuple[Any, ...], _: Any) -> None:
        with self._lock:
            if not call.is_open or name in call.copies:
                return
            gradient = gradients[place]
            if gradient is not None and gradient.shape != shape:
                call.left_out[name] = f"autograd gave it as {list(gradient.shape)}"
                return
            self._take(call, name, gradient)

    def _take_fused(self, call: _Call, weights: Dict[str, Any]) -> None:
        with self._lock:
            for name, weight in weights.items() if call.is_open else ():
                gradient = gradient_name(name, "main_grad")
                if weight.requires_grad and gradient not in call.copies and gradient not in call.left_out:
                    self._take(call, gradient, getattr(weight, "main_grad", None))

    def _after_accumulation(self, weight: Any) -> None:
        if getattr(weight, "main_grad", None) is None:
            self._take_accumulated(weight)

    def _take_accumulated(self, weight: Any) -> None:
        """main_grad, of the last of the calls whose gradients were added at once."""
        with self._lock:
            waiting = [(call, name) for call, name in self._accumulating.pop(id(weight), []) if call.is_open]
            if not waiting:
                return
            *others, (last, name) = waiting
            for call, _ in others:
                call.left_out[name] = f"added together with that of call {last.call}"
                call.copies.pop(name.replace("main_grad", "main_grad_before"), None)
            buffer = getattr(weight, "main_grad", None)
            last.knobs["main_grad_calls"] = len(waiting)
            if last.captured in self._partial:
                last.left_out[name] = "a call of the step was left out, whose gradient may be in it"
            else:
                self._take(last, name, buffer if buffer is not None else weight.grad)

    # --- Copies and files.

    def _try_copy(self, tensor: Any, rows: Any) -> Tuple[Optional[Copy], str]:
        try:
            return self._copier.copy(tensor, rows), ""
        except NotCopied as reason:
            return None, str(reason)

    def _take(self, call: _Call, name: str, tensor: Any) -> None:
        """Takes the bits that the tensor has now."""
        if tensor is None:
            call.left_out[name] = "there was none"
            return
        rows: Optional[Callable[[int], Optional[List[int]]]] = None
        if self._rows is not None and name in ("x", "y", "dx", "dy"):
            wanted = self._rows

            def rows(count: int) -> Optional[List[int]]:
                if count <= wanted:
                    return None
                return chosen_rows(self._seed, call.step, call.captured.path, call.call, count, wanted)

        copy, reason = self._try_copy(tensor, rows)
        if copy is None:
            call.left_out[name] = reason
        else:
            call.copies[name] = copy

    def _end_step(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
            for call in calls:
                call.is_open = False
            self._step += 1
            self._tick, self._microbatch = 0, -1
            self._counts.clear()
            self._pending.clear()
            self._accumulating.clear()
            self._partial.clear()
        if calls:
            self._writer.add(functools.partial(self._write_step, calls))

    def _write_step(self, calls: List[_Call]) -> None:
        for call in sorted(calls, key=lambda one: one.forward_order):
            name = f"{call.captured.path or '_model'}.{call.call}.safetensors"
            record = call.record(f"step{call.step}/rank{self._rank}/{name}")
            alone = {"version": 1, "rank": self._rank, "world_size": self._world_size, **record}
            write_tensors(os.path.join(self.directory, *record["file"].split("/")), call.copies, alone, self._torch)
            call.copies = {}
            self._records.append(record)
        self._write_manifest()

    def _write_manifest(self) -> None:
        manifest = {"version": 1, "rank": self._rank, "world_size": self._world_size, "captures": self._records,
                    "left_out": self._left_out}
        text = json.dumps(manifest, indent=1).encode()
        write_whole(self._manifest, [lambda file: file.write(text)])

    def _note_silent_modules(self) -> None:
        silent = [captured.path or "the model" for captured in self._modules if captured not in self._fired]
        if silent:
            self._left_out.append(f"{', '.join(silent)}: no hook fired; a module that was compiled before the capture was "
                                  "entered, or that is not called, has none")


def _connection(client: Any) -> Any:
    return _engine.Client.local("cpu", 0) if client is None else client._connect()


def _precondition(rule: str) -> Exception:
    return make("FAILED_PRECONDITION", f"capture: {rule}", "capture", "", rule)


def _what(what: Any) -> frozenset:
    if not isinstance(what, str):
        raise refuse_type("what", what, f"must be text, of {','.join(WHAT)}")
    names = [name.strip() for name in what.split(",")]
    for name in names:
        if name not in WHAT:
            raise refuse("what", repr(what), f"{name!r} must be one of {', '.join(WHAT)}")
    return frozenset(names)


def _at_least(argument: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise refuse_type(argument, value, "must be an integer")
    if value.__index__() < least:
        raise refuse(argument, value, f"must be {least} or more")
    return value.__index__()


def _steps(steps: Any) -> Optional[frozenset]:
    if steps is None:
        return None
    if hasattr(steps, "__index__"):
        steps = [steps]
    try:
        return frozenset(_at_least(f"steps[{i}]", step, 0) for i, step in enumerate(steps))
    except TypeError as error:
        if str(error).startswith("steps["):
            raise
        raise refuse_type("steps", steps, "must be an integer, integers, or None") from None


def _ranks(torch: Any, rank: Optional[int], world_size: Optional[int]) -> Tuple[int, int]:
    known = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if known else int(os.environ.get("RANK", "0"))
    if world_size is None:
        world_size = torch.distributed.get_world_size() if known else int(os.environ.get("WORLD_SIZE", "1"))
    rank, world_size = _at_least("rank", rank, 0), _at_least("world_size", world_size, 1)
    if rank >= world_size:
        raise refuse("rank", rank, f"must be below world_size, {world_size}")
    return rank, world_size


def _not_traced(torch: Any) -> Callable[[Any], Any]:
    """Keeps torch.compile from tracing a hook: it runs between two compiled parts."""
    compiler = getattr(torch, "compiler", None)
    return getattr(compiler, "disable", None) or (lambda function: function)


def _tensors(torch: Any, values: Iterable[Any]) -> List[Any]:
    """The tensors among values, within tuples, lists and dicts too."""
    found: List[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found.extend(_tensors(torch, value))
        elif isinstance(value, dict):
            found.extend(_tensors(torch, value.values()))
    return found


def _first_tensor(torch: Any, values: Iterable[Any]) -> Any:
    return next(iter(_tensors(torch, values)), None)


def _gradient_edges(torch: Any, start: Any, targets: Dict[str, Any], inputs: List[Any]) -> Dict[str, List[Tuple[Any, int]]]:
    """The edges of autograd's graph, between ``start`` and the inputs of a module, on which the gradients of ``targets``
    arrive: nodes with the places of the gradients among what they give.

    A cast is passed over, since autocast shares that of a weight between calls: the gradient is the one before the cast back.
    """
    nodes: Dict[Tuple[Any, int], str] = {}
    for name, tensor in targets.items():
        if tensor.requires_grad:
            nodes[_gradient_edge(torch, tensor)] = name
    edges: Dict[str, List[Tuple[Any, int]]] = {name: [] for name in nodes.values()}
    ends = {edge for edge in nodes} | {_gradient_edge(torch, one) for one in inputs}
    parents: Dict[Any, List[Tuple[Any, int]]] = {}
    if any(start is end for end, _ in ends):
        return edges
    seen, stack = set(), [start]
    while stack and len(seen) < _GRAPH_NODES_MAX:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for place, (following, index) in enumerate(node.next_functions):
            if following is None:
                continue
            name = nodes.get((following, index))
            if name is not None:
                edges[name].append((node, place))
            if (following, index) in ends:
                continue
            parents.setdefault(following, []).append((node, place))
            stack.append(following)
    if stack:
        return {name: [] for name in edges}
    for name, found in edges.items():
        while len(found) == 1 and found[0][0].name() == "ToCopyBackward0" and found[0][0] in parents:
            found = edges[name] = parents[found[0][0]]
    return edges


def _gradient_edge(torch: Any, tensor: Any) -> Tuple[Any, int]:
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    find = getattr(torch.autograd.graph, "get_gradient_edge", None)
    if find is not None:
        edge = find(tensor)
        return edge.node, edge.output_nr
    with torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0], 0
