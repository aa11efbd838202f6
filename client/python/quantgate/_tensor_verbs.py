"""The verbs of single tensors: quantize, dequantize, gemm and generate, in this process or by messages."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _engine
from ._arguments import SEED_MAX, flag, integer, real, text
from ._connection import Connection, json_number
from ._errors import InvalidArgument, refuse, refuse_absent, refuse_type
from ._quantized import PARTS, Quantized
from ._recipes import Recipe, RecipeLike, read_recipe
from ._requests import as_list
from ._tensors import NUMPY, Cuda, Given, Output, dtype_name, kind_of_name, read, read_out, read_small

_NO_GPU: Any = nullcontext()


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


class QuantizeCall(NamedTuple):
    """Arguments of quantize as they were checked; tensors are those of the engine.

    ``out`` is memory for the results by name; ``on_device``: results without such memory stay on the engine's GPU.
    """

    source: Any
    recipe: Recipe
    role: str
    rowwise: bool
    columnwise: bool
    seed: int
    scale: Any
    amax_history: Any
    scale_layout: str
    out: Optional[Dict[str, Output]]
    on_device: bool


class QuantizeAnswer(NamedTuple):
    """What quantize gives: tensors by name, in memory of ``out`` where there is such, and ``record`` as Quantized takes it."""

    tensors: List[Tuple[str, Any]]
    shape: Sequence[int]
    source_dtype: str
    description: bytes
    record: Any


class DequantizeCall(NamedTuple):
    """Arguments of dequantize as they were checked; ``out``, ``on_device``: as of ``QuantizeCall``."""

    tensors: List[Tuple[str, Any]]
    usage: str
    out_dtype: str
    description: bytes
    out: Optional[Output]
    on_device: bool


class GemmCall(NamedTuple):
    """Arguments of a GEMM as they were checked: tensors by the names of their slots, ``"a.scale_inv"``; empty texts and zeros
    where nothing was said."""

    slots: List[Tuple[str, Given]]
    layout: str
    alpha: float
    beta: float
    in_place: bool
    scalings: Tuple[str, str]
    groups: Tuple[str, str]
    e4m3_max: Tuple[int, int]

    def request(self, connection: Connection) -> Dict[str, Any]:
        """The ``GemmRequest``, without arithmetic and out_dtype."""
        request: Dict[str, Any] = {"a": {}, "b": {}, "layout": self.layout, "alpha": json_number(self.alpha),
                                   "beta": json_number(self.beta), "in_place": self.in_place}
        for slot, given in self.slots:
            side, _, part = slot.rpartition(".")
            (request[side] if side else request)[part] = connection.place_given(slot, given.tensor)
        for side, scaling, group, e4m3_max in zip("ab", self.scalings, self.groups, self.e4m3_max):
            request[side].update(scaling=scaling, group=group, e4m3_max=e4m3_max)
        return request


def gemm_slots(arguments: Mapping[str, Any], a: Any, b: Any,
                cuda: Optional[Cuda] = None) -> Tuple[List[Tuple[str, Given]], Dict[str, Any]]:
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


def gemm_call(a: Any, b: Any, cuda: Optional[Cuda], *, layout: str = "tn", a_scale_inv: Any = None, b_scale_inv: Any = None,
              a_scaling: Optional[str] = None, b_scaling: Optional[str] = None, a_amax: Any = None, b_amax: Any = None,
              a_zero_point: Any = None, b_zero_point: Any = None, a_group: Any = None, b_group: Any = None,
              a_e4m3_max: Optional[int] = None, b_e4m3_max: Optional[int] = None, alpha: float = 1.0, beta: float = 0.0,
              c: Any = None, in_place: bool = False, bias: Any = None, d_scale: Any = None) -> GemmCall:
    """The GEMM that keywords of ``gemm``, and of ``explain``, say; tensors on ``cuda`` are read where they lie."""
    arguments = {"a_scale_inv": a_scale_inv, "b_scale_inv": b_scale_inv, "a_amax": a_amax, "b_amax": b_amax,
                 "a_zero_point": a_zero_point, "b_zero_point": b_zero_point, "c": c, "bias": bias, "d_scale": d_scale}
    slots, said = gemm_slots(arguments, a, b, cuda)

    def said_of(side: str, scaling: Optional[str], group: Any, e4m3_max: Optional[int]) -> Tuple[str, str, int]:
        return ("" if scaling is None else text(f"{side}_scaling", scaling),
                str(said[side].get("group", "") if group is None else group),
                integer(f"{side}_e4m3_max", said[side].get("e4m3_max", 0) if e4m3_max is None else e4m3_max, 0, 448))

    of_a = said_of("a", a_scaling, a_group, a_e4m3_max)
    of_b = said_of("b", b_scaling, b_group, b_e4m3_max)
    return GemmCall(slots, text("layout", layout), real("alpha", alpha), real("beta", beta), flag("in_place", in_place),
                    (of_a[0], of_b[0]), (of_a[1], of_b[1]), (of_a[2], of_b[2]))


class TensorVerbs:
    """quantize, dequantize, gemm and generate: arguments are checked and results made here, in between a subclass computes.
    The four ``_compute_`` methods below do it by messages."""

    @property
    def _cuda(self) -> Optional[Cuda]:
        """The GPU whose tensors are read where they lie; None: they are copied to the host."""
        return None

    def _connect(self) -> Any:
        """A connection for one verb."""
        raise NotImplementedError

    def _compute_quantize(self, call: QuantizeCall) -> QuantizeAnswer:
        connection = Connection(self._connect, stored=False)
        request: Dict[str, Any] = {
            "tensor": connection.place_given("tensor", call.source), "recipe": call.recipe.to_dict(), "role": call.role,
            "rowwise": call.rowwise, "columnwise": call.columnwise, "seed": call.seed, "scale_layout": call.scale_layout}
        for name, tensor in (("scale", call.scale), ("amax_history", call.amax_history)):
            if tensor is not None:
                request[name] = connection.place_given(name, tensor)
        response = connection.call("Engine/Quantize", request)
        tensors = [_named(connection, named) for named in _engine.parts("QuantizeResponse", response, "tensors")]
        description, = _engine.parts("QuantizeResponse", response, "description")
        record, = _engine.parts("QuantizeResponse", response, "record")
        shape = json.loads(_engine.request_json("QuantizedDescription", description)).get("shape", [])
        if call.out is not None:
            tensors = _into(tensors, call.out)
        return QuantizeAnswer(tensors, [int(size) for size in shape], call.source.dtype, description,
                              lambda: _engine.decode("QuantizationRecord", record))

    def _compute_dequantize(self, call: DequantizeCall) -> Any:
        connection = Connection(self._connect, stored=False)
        request = {"tensors": {name: connection.place_given(f"quantized[{name!r}]", tensor) for name, tensor in call.tensors},
                   "usage": call.usage, "out_dtype": call.out_dtype,
                   "description": json.loads(_engine.request_json("QuantizedDescription", call.description))}
        response = connection.call("Engine/Dequantize", request)
        values = connection.client.fetch(*_engine.parts("DequantizeResponse", response, "data"))
        if call.out is None:
            return values
        call.out.check_takes("out", values)
        return call.out.take(values)

    def _compute_gemm(self, call: GemmCall, arithmetic: str, out_dtype: str, output: Optional[Output],
                      on_device: bool) -> GemmResult:
        """``d`` and ``amax`` of the result are the engine's; ``d`` is in the memory of ``output`` where there is such."""
        connection = Connection(self._connect, stored=False)
        request = {**call.request(connection), "arithmetic": arithmetic, "out_dtype": out_dtype}
        response = connection.call("Engine/Gemm", request)
        named, = _engine.parts("GemmResponse", response, "d")
        d = connection.client.fetch(named)
        if output is not None:
            output.check_takes("out", d)
            d = output.take(d)
        amax = _engine.parts("GemmResponse", response, "amax")
        told = json.loads(_engine.decode("GemmResponse", response))
        return GemmResult(d, connection.client.fetch(amax[0]) if amax else None,
                          told["arithmetic"], told["text"], told["note"], told["seconds"])

    def _compute_generate(self, distribution: str, shape: List[int], dtype: str, seed: int, scale: float) -> Any:
        connection = Connection(self._connect, stored=False)
        spec = {"distribution": distribution, "seed": seed, "scale": json_number(scale),
                "type": {"dtype": dtype, "shape": shape}}
        try:
            response = connection.call("Tensors/Generate", {"spec": spec, "request_id": _engine.new_request_id()})
        except InvalidArgument as error:
            raise error.under("spec.type.").under("spec.") from None
        record = json.loads(_engine.request_json("TensorRecord", response))
        named = {name: record[name] for name in ("type", "digest", "fingerprint") if name in record}
        return connection.client.fetch(_engine.encode("NamedTensor", json.dumps(named)))

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
            answer = self._compute_quantize(QuantizeCall(
                given.tensor, read_recipe("recipe", recipe), text("role", role), flag("rowwise", rowwise),
                flag("columnwise", columnwise), integer("seed", seed, 0, SEED_MAX), state[0] and state[0].tensor,
                state[1] and state[1].tensor, text("scale_layout", scale_layout), outputs, given.kind.cuda is not None))
            values = None if outputs is None else {name: outputs[name].value for name, _ in answer.tensors}
            return Quantized(answer.tensors, given.kind, answer.shape, answer.source_dtype, answer.description, answer.record,
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
        with cuda or _NO_GPU:
            return self._dequantize(quantized, usage, out_dtype, format, scale_layout, out, cuda)

    def _dequantize(self, quantized: Any, usage: Optional[str], out_dtype: Any, format: Optional[str],
                    scale_layout: Optional[str], out: Any, cuda: Optional[Cuda]) -> Any:
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
                described["scale_layout"] = text("scale_layout", scale_layout)
            description = _engine.encode("QuantizedDescription", json.dumps(described))
        else:
            raise refuse_type("quantized", quantized, "must be Quantized, or a dict of tensors by name")
        if usage not in (None, "", "rowwise", "columnwise"):
            raise refuse("usage", f'"{text("usage", usage)}"', "must be rowwise or columnwise")
        names = [name for name, _ in tensors]
        codes = f"{usage or ('rowwise' if 'rowwise_data' in names else 'columnwise')}_data"
        if codes not in names:
            raise refuse_absent(f'tensors["{codes}"]', "the codes are needed")
        given_tensors = [(name, given.tensor) for name, given in tensors]
        output = None if out is None else read_out("out", out, cuda)
        if output is not None:
            output.check_apart("out", given_tensors)
        values = self._compute_dequantize(DequantizeCall(
            given_tensors, usage or "", dtype_name("out_dtype", out_dtype), description, output,
            kind.cuda is not None and cuda is not None))
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
            Where d is written; the engine of this process writes it there at once.

        Returns
        -------
        GemmResult
        """
        cuda = self._cuda
        with cuda or _NO_GPU:
            call = gemm_call(a, b, cuda, layout=layout, a_scale_inv=a_scale_inv, b_scale_inv=b_scale_inv, a_scaling=a_scaling,
                             b_scaling=b_scaling, a_amax=a_amax, b_amax=b_amax, a_zero_point=a_zero_point,
                             b_zero_point=b_zero_point, a_group=a_group, b_group=b_group, a_e4m3_max=a_e4m3_max,
                             b_e4m3_max=b_e4m3_max, alpha=alpha, beta=beta, c=c, in_place=in_place, bias=bias, d_scale=d_scale)
            output = None if out is None else read_out("out", out, cuda)
            if output is not None:
                output.check_apart("out", [(slot, given.tensor) for slot, given in call.slots])
            kind = a._kind if isinstance(a, Quantized) else call.slots[0][1].kind
            result = self._compute_gemm(call, text("arithmetic", arithmetic), dtype_name("out_dtype", out_dtype), output,
                                        kind.cuda is not None and cuda is not None)
            result.d = kind.back(result.d) if output is None else output.value
            if result.amax is not None:
                result.amax = kind.back(result.amax)
            return result

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
        dims = [integer(f"shape[{i}]", size, 0, 2**62) for i, size in enumerate(as_list("shape", shape))]
        return library.back(self._compute_generate(
            text("distribution", distribution), dims, dtype_name("dtype", dtype), integer("seed", seed, 0, SEED_MAX),
            1.0 if scale is None else real("scale", scale)))


def _named(connection: Connection, named_tensor: bytes) -> Tuple[str, Any]:
    """Name and tensor of a NamedTensor."""
    return json.loads(_engine.decode("NamedTensor", named_tensor))["name"], connection.client.fetch(named_tensor)


def _direction(said: str) -> Dict[str, Any]:
    """``FORMAT[:element=DTYPE,block_dim=N,e4m3_max=N,group=N,hadamard=BOOL]`` as a QuantizedDirection."""
    name, _, rest = text("format", said).partition(":")
    direction: Dict[str, Any] = {"format": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in ("element", "block_dim", "e4m3_max", "group", "hadamard"):
            raise refuse("format", f'"{said}"', f'"{part}" must be element=, block_dim=, e4m3_max=, group= or hadamard=')
        if key in ("element", "group"):
            direction[key] = value
        elif key == "hadamard" and value in ("true", "false"):
            direction[key] = value == "true"
        elif key != "hadamard" and value.isdecimal():
            direction[key] = int(value)
        else:
            raise refuse("format", f'"{said}"', f'"{part}" must be {"true or false" if key == "hadamard" else "a number"}')
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


def _into(parts: List[Tuple[str, Any]], outputs: Mapping[str, Output]) -> List[Tuple[str, Any]]:
    """The parts of a quantized tensor in memory of the caller's, which must be for exactly these."""
    names = [name for name, _ in parts]
    rule = f"must be exactly {', '.join(names)}"
    for name, part in parts:
        if name not in outputs:
            raise refuse(f"out[{name!r}]", "absent", rule)
        outputs[name].check_takes(f"out[{name!r}]", part, takes_bytes=True)
    for name in sorted(outputs):
        if name not in names:
            raise refuse(f"out[{name!r}]", "given", rule)
    return [(name, outputs[name].take(part)) for name, part in parts]
