"""Assertions on quantizers, GEMMs and layers for tests, with the bits of the hardware as what is expected (docs/pytest.md).

Each compares what your code computed with what the engine computes from the same operands, and raises ``Mismatch``, an
``AssertionError``, where the criterion does not hold. Codes, scales and dequantized values must have the engine's bits
(``within="bits"``); results of GEMMs and layers must lie within the error bound that is derived for their arithmetic
(``within="bound"``), or have its bits where that is asked for. Tensors are what every verb takes (docs/python.md section 3).
Operands that are refused raise ``quantgate.Error`` or ``TypeError``, never a ``Mismatch``.

``client`` is whose engine computes: a ``quantgate.Client``; by default the one of ``use_client``, else that of pytest's option
``--quantgate-server``, else this process.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence, Union

__all__ = [
    "Mismatch", "assert_attention", "assert_chain", "assert_dequantized", "assert_gemm", "assert_grouped_linear",
    "assert_layernorm_linear", "assert_layernorm_mlp", "assert_linear", "assert_nearer", "assert_quantized", "assert_same_bits",
    "assert_transformer_layer", "backward_overrides", "default_client", "formats", "recipes", "use_client",
]

_client: Any = None


class Mismatch(AssertionError):
    """What an assertion found, in words, and as attributes.

    Attributes
    ----------
    cause : str
        What went wrong, where that is certain; empty where it is unknown.
    is_unknown : bool
        Whether a cause is missing for some of what differs.
    counts : dict of str to int
        By name, how many elements of each tensor differ from the expected ones.
    report : Report or None
        Both sides, as ``quantgate.diff`` or ``quantgate.verify`` reports them: ``report.save("why.html")``.
    assertion : str
        Its name.
    """

    def __init__(self, message: str, cause: str = "", is_unknown: bool = True, counts: Optional[Mapping[str, int]] = None,
                 report: Any = None, assertion: str = ""):
        super().__init__(message)
        self.cause = cause
        self.is_unknown = is_unknown
        self.counts = dict(counts or {})
        self.assertion = assertion
        self._report = report

    @property
    def report(self) -> Any:
        if callable(self._report):
            self._report = self._report()
        return self._report


def use_client(client: Any) -> Any:
    """Makes a client the one of all assertions; None: pytest's server, or this process, again. Returns what it was before."""
    global _client
    before, _client = _client, client
    return before


def default_client() -> Any:
    """The client that assertions without ``client=`` use."""
    import sys

    import quantgate

    if _client is not None:
        return _client
    plugin = sys.modules.get("quantgate._pytest")
    return (plugin.server_client() if plugin is not None else None) or quantgate._local


def assert_quantized(codes: Any, scale_inv: Any, source: Any, *, recipe: Any, role: str = "input", usage: str = "rowwise",
                     scale_layout: str = "logical", amax: Any = None, zero_point: Any = None, seed: int = 0, scale: Any = None,
                     amax_history: Any = None, check_padding: bool = True, within: str = "bits", client: Any = None) -> None:
    """Codes and scales are those that the recipe makes of the source, bit for bit.

    Parameters
    ----------
    codes : tensor
        Of ``source``'s shape, or as docs/file-formats.md section 2 has the format; bytes (``uint8``) are read as the format's.
    scale_inv : tensor
        What codes are multiplied by, in ``scale_layout``.
    source : tensor f32, bf16 or f16 [..., K]
    recipe : str, dict or Recipe
    role : str
        ``"input"``, ``"weight"`` or ``"grad_output"``.
    usage : str
        ``"rowwise"`` or ``"columnwise"``.
    scale_layout : str
        Of ``scale_inv`` (docs/file-formats.md section 2.1).
    amax, zero_point : tensor, optional
        Compared too where they are given; of nvfp4 ``amax`` is that of the tensor.
    seed : int
        Of stochastic rounding.
    scale, amax_history : f32 [1], f32 [L], optional
        The state of delayed scaling before this cast: both or neither.
    check_padding : bool
        Whether what a padded layout has beside its scales must be zero.

    Raises
    ------
    Mismatch
    """
    __tracebackhide__ = True
    from ._assertions import quantized

    quantized(codes, scale_inv, source, recipe, role, usage, scale_layout, amax, zero_point, seed, scale, amax_history,
              check_padding, within, client)


def assert_dequantized(values: Any, codes: Any, scale_inv: Any = None, *, usage: Optional[str] = None, amax: Any = None,
                       zero_point: Any = None, format: Optional[str] = None, scale_layout: Optional[str] = None,
                       within: str = "bits", client: Any = None) -> None:
    """Values are what codes and scales stand for, rounded once to the values' dtype, bit for bit.

    Parameters
    ----------
    values : tensor f32, bf16 or f16
    codes : Quantized, or tensor
    scale_inv : tensor
        Absent where codes are ``Quantized``.
    usage : str, optional
        ``"rowwise"`` or ``"columnwise"``; None: rowwise where it is present.
    format : str, optional
        ``"nvfp4:e4m3_max=256"``: what dtypes and shapes leave open.
    """
    __tracebackhide__ = True
    from ._assertions import dequantized

    dequantized(values, codes, scale_inv, usage, amax, zero_point, format, scale_layout, within, client)


def assert_gemm(d: Any, a: Any, b: Any, *, arithmetic: str = "auto", within: str = "bound", amax: Any = None, client: Any = None,
                **gemm: Any) -> None:
    """``d`` is alpha a b^T + beta c + bias, within the bound of an arithmetic, or with its bits.

    Parameters
    ----------
    d : tensor [M][N], f32, bf16, f16 or FP8
    a : tensor [M][K], or Quantized
    b : tensor [N][K], or Quantized
    arithmetic : str
        ``"auto"``: the tensor cores' of the operands; ``"sm90:split"``, ``"fp32"``, ``"exact"``, ...
    within : str
        ``"bound"``: |d - exact| is at most what the arithmetic can err by, element by element; ``"bits"``.
    amax : tensor f32 [1], optional
        FP8 outputs, with ``within="bits"``: compared too.
    **gemm
        The other arguments of ``quantgate.gemm``: ``layout``, ``a_scale_inv``, ``alpha``, ``bias``, ...
    """
    __tracebackhide__ = True
    from ._assertions import gemm_result

    gemm_result(d, a, b, arithmetic, within, amax, client, gemm)


def assert_linear(y: Any, x: Any, weight: Any, *, recipe: Any, dx: Any = None, dw: Any = None, db: Any = None,
                  main_grad: Any = None, outputs: Optional[Mapping[str, Any]] = None,
                  related: Optional[Mapping[str, Any]] = None, within: str = "bound", client: Any = None,
                  **options: Any) -> None:
    """Outputs of a linear layer are within the bound, or have the engine's bits.

    Only what is given is compared: y alone, or y and gradients. y may be None where gradients are given.

    Parameters
    ----------
    y, dx, dw, db, main_grad : tensor, optional
        Gradients need ``grad_output``; ``main_grad`` is that after accumulation, ``main_grads={"weight": ...}`` that before.
        ``db`` has no bound and must have the bits.
    outputs : dict of str to tensor, optional
        Further outputs by the engine's names.
    x : tensor [..., K]
    weight : tensor [N][K]
    recipe : str, dict or Recipe
    related : dict of str to tensor, optional
        Tensors that a mistake may have put in the place of others ("x_before"): looked at where an assertion fails.
    within : str
        ``"bound"`` or ``"bits"``.
    **options
        ``bias``, ``grad_output``, ``arithmetic``, ``backward_override``, ``parallel`` (``within="bits"``), ... as of
        ``quantgate.run``.
    """
    __tracebackhide__ = True
    from ._assertions import layer

    layer("linear", {"y": y, "dx": dx, "dw": dw, "db": db, "main_grad": main_grad}, outputs, related, x, weight, recipe, within,
          client, options)


def assert_layernorm_linear(y: Any, x: Any, weight: Any, *, recipe: Any, gamma: Any, dx: Any = None, dw: Any = None,
                            db: Any = None, dgamma: Any = None, dbeta: Any = None, norm_out: Any = None, main_grad: Any = None,
                            outputs: Optional[Mapping[str, Any]] = None, related: Optional[Mapping[str, Any]] = None,
                            within: str = "bound", client: Any = None, **options: Any) -> None:
    """As ``assert_linear``, of a norm and a linear layer; ``norm="rmsnorm"``, ``beta=``, ``return_norm_output=True``, ..."""
    __tracebackhide__ = True
    from ._assertions import layer

    given = {"y": y, "dx": dx, "dw": dw, "db": db, "dgamma": dgamma, "dbeta": dbeta, "norm_out": norm_out,
             "main_grad": main_grad}
    layer("layernorm_linear", given, outputs, related, x, weight, recipe, within, client, {**options, "gamma": gamma})


def assert_layernorm_mlp(y: Any, x: Any, parameters: Mapping[str, Any], *, recipe: Any, dx: Any = None,
                         outputs: Optional[Mapping[str, Any]] = None, related: Optional[Mapping[str, Any]] = None,
                         within: str = "bound", client: Any = None, **options: Any) -> None:
    """As ``assert_linear``, of a norm and an MLP.

    Parameters
    ----------
    parameters : dict of str to tensor
        ``gamma``, ``fc1.weight``, ``fc2.weight``, and as far as there are ``beta``, ``fc1.bias``, ``fc2.bias``.
    outputs : dict of str to tensor, optional
        Gradients of parameters by their names: ``fc1.dw``, ``dgamma``, ...
    **options
        ``activation``, ``norm``, ``grad_output``, ...
    """
    __tracebackhide__ = True
    from ._assertions import layer

    layer("layernorm_mlp", {"y": y, "dx": dx}, outputs, related, x, None, recipe, within, client,
          {**options, "parameters": parameters})


def assert_grouped_linear(y: Any, x: Any, weight: Any, *, m_splits: Sequence[int], recipe: Any, dx: Any = None, dw: Any = None,
                          db: Any = None, outputs: Optional[Mapping[str, Any]] = None,
                          related: Optional[Mapping[str, Any]] = None, within: str = "bound", client: Any = None,
                          **options: Any) -> None:
    """As ``assert_linear``, of experts.

    Parameters
    ----------
    weight : list of tensor, or tensor [E][N][K]
    m_splits : list of int
        The rows of x of each expert.
    dw, db : list of tensor, or of a stacked weight tensor, optional
    """
    __tracebackhide__ = True
    from ._assertions import layer

    given = {"y": y, "dx": dx}
    for name, value in (("dw", dw), ("db", db)):
        if isinstance(value, (list, tuple)):
            given.update({f"{name}.{expert}": gradient for expert, gradient in enumerate(value)})
        else:
            given[name] = value
    layer("grouped_linear", given, outputs, related, x, weight, recipe, within, client, {**options, "m_splits": m_splits})


def assert_chain(y: Any, x: Any, operations: Iterable[Mapping[str, Any]], *, recipe: Any,
                 parameters: Optional[Mapping[str, Any]] = None, dx: Any = None, outputs: Optional[Mapping[str, Any]] = None,
                 related: Optional[Mapping[str, Any]] = None, within: str = "bound", client: Any = None, **options: Any) -> None:
    """As ``assert_linear``, of a chain of operations, with parameters and their gradients by names (``proj.weight``)."""
    __tracebackhide__ = True
    from ._assertions import layer

    layer("chain", {"y": y, "dx": dx}, outputs, related, x, None, recipe, within, client,
          {**options, "operations": operations, "parameters": parameters})


def assert_attention(y: Any, x: Any, parameters: Mapping[str, Any], *, attention: Mapping[str, Any], recipe: Any,
                     dx: Any = None, outputs: Optional[Mapping[str, Any]] = None, related: Optional[Mapping[str, Any]] = None,
                     within: str = "bound", client: Any = None, **options: Any) -> None:
    """As ``assert_linear``, of attention with its projections (``qkv.weight``, ``proj.weight``)."""
    __tracebackhide__ = True
    from ._assertions import layer

    layer("attention", {"y": y, "dx": dx}, outputs, related, x, None, recipe, within, client,
          {**options, "attention": attention, "parameters": parameters})


def assert_transformer_layer(y: Any, x: Any, parameters: Mapping[str, Any], *, attention: Mapping[str, Any], recipe: Any,
                             dx: Any = None, outputs: Optional[Mapping[str, Any]] = None,
                             related: Optional[Mapping[str, Any]] = None, within: str = "bound", client: Any = None,
                             **options: Any) -> None:
    """As ``assert_linear``, of a transformer layer; parameters as docs/file-formats.md section 2 names them."""
    __tracebackhide__ = True
    from ._assertions import layer

    layer("transformer_layer", {"y": y, "dx": dx}, outputs, related, x, None, recipe, within, client,
          {**options, "attention": attention, "parameters": parameters})


def assert_same_bits(mine: Any, theirs: Any, *, client: Any = None) -> None:
    """Two tensors, or two dicts of tensors by name, are equal in dtype, shape and every bit: NaN and zeros' signs too."""
    __tracebackhide__ = True
    from ._assertions import same_bits

    same_bits(mine, theirs, client)


def assert_nearer(mine: Any, theirs: Any, *, exact_of: Any, client: Any = None) -> None:
    """``mine`` is nearer to the exact result than ``theirs`` in at least as many elements as it is further away.

    Parameters
    ----------
    mine, theirs : tensor of equal shape
    exact_of : tensor or dict
        The exact values (f32, or f64 on which nothing is rounded); or the arguments of ``quantgate.gemm``, ``{"a": ..., "b":
        ...}``, whose exact product is taken.
    """
    __tracebackhide__ = True
    from ._assertions import nearer

    nearer(mine, theirs, exact_of, client)


# --- Parameters of tests. Nothing here imports the engine unless every recipe is asked for.

def _text_of(recipe: Any) -> str:
    import hashlib
    import json

    if isinstance(recipe, str):
        text = recipe
    elif isinstance(recipe, Mapping):
        knobs = ",".join(f"{knob}={value if isinstance(value, str) else json.dumps(value)}"
                         for knob, value in (recipe.get("knobs") or {}).items())
        text = f"{recipe.get('name')}:{knobs}" if knobs else str(recipe.get("name"))
    else:
        text = str(recipe)
    if len(text) <= 60 and not set(text) & set("[]{}\"'"):
        return text
    return f"{text.partition(':')[0]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def recipes(*names: Any, argument: str = "recipe") -> Any:
    """``@recipes("mxfp8", "nvfp4")``: the test runs once under each, as its argument ``recipe``.

    Ids are the recipes as they are written; of JSON the name and 8 digits of a digest. Without names: every recipe that layers
    take, with its defaults.
    """
    import pytest

    if not names:
        import quantgate

        names = tuple(entry.name for entry in quantgate.info().recipes
                      if entry.name not in ("int8", "int4", "nf4", "bnb_fp4", "hybrid", "custom"))
    return pytest.mark.parametrize(argument, names, ids=[_text_of(name) for name in names])


def formats(*names: str, argument: str = "fp8_format") -> Any:
    """``@formats()``: once under each value of the knob ``fp8_format``, ``e4m3``, ``hybrid`` and ``e5m2``, or those given."""
    import pytest

    chosen = names or ("e4m3", "hybrid", "e5m2")
    return pytest.mark.parametrize(argument, chosen, ids=[str(name) for name in chosen])


def backward_overrides(*names: str, argument: str = "backward_override") -> Any:
    """``@backward_overrides()``: once under each of ``none``, ``high_precision`` and ``dequantized``, or those given."""
    import pytest

    chosen: Union[tuple, Sequence[str]] = names or ("none", "high_precision", "dequantized")
    return pytest.mark.parametrize(argument, chosen, ids=[str(name) for name in chosen])
