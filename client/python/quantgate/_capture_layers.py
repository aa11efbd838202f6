"""What modules of torch compute: their kind of layer, parameters and settings, read without importing their library."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._errors import refuse, refuse_type

# Of each kind the parameters by the engine's names, with the attributes that have them.
_NORM = (("gamma", "layer_norm_weight"), ("beta", "layer_norm_bias"))
_ATTRIBUTES: Dict[str, Sequence[Tuple[str, str]]] = {
    "linear": (("weight", "weight"), ("bias", "bias")),
    "layernorm_linear": (*_NORM, ("weight", "weight"), ("bias", "bias")),
    "layernorm_mlp": (*_NORM, ("fc1.weight", "fc1_weight"), ("fc1.bias", "fc1_bias"), ("fc2.weight", "fc2_weight"),
                      ("fc2.bias", "fc2_bias")),
    "grouped_linear": (),
}
KINDS = tuple(_ATTRIBUTES)

# Transformer Engine's classes, by their names; subclasses too.
_TRANSFORMER_ENGINE = {"Linear": "linear", "LayerNormLinear": "layernorm_linear", "LayerNormMLP": "layernorm_mlp",
                       "GroupedLinear": "grouped_linear"}
# Its recipes, by their classes' names.
_RECIPES = {"DelayedScaling": "fp8_delayed", "Float8CurrentScaling": "fp8_current", "Float8BlockScaling": "fp8_block",
            "MXFP8BlockScaling": "mxfp8", "NVFP4BlockScaling": "nvfp4"}
# Modules that only wrap another one, whose names would make paths differ between runs.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

KindLike = Union[None, str, Mapping[str, Optional[str]]]


class CapturedModule:
    """A module that is captured, with what is known of it.

    Attributes
    ----------
    path : str
        Its path in the model, without wrappers.
    kind : str
        Kind of layer; empty where none is known.
    left_out : dict of str to str
        Tensors that cannot be captured of this module, and why.
    """

    def __init__(self, path: str, module: Any, kind: str):
        self.path = path
        self.module = module
        self.kind = kind
        self.left_out: Dict[str, str] = {}
        self.class_name = f"{type(module).__module__}.{type(module).__qualname__}"

    def parameters(self) -> Dict[str, Any]:
        """Its parameters by the engine's names, or of an unknown kind by its own; absent and empty ones left out."""
        if self.kind == "grouped_linear":
            count = int(getattr(self.module, "num_gemms", 0))
            names = [(f"{name}.{i}", f"{name}{i}") for i in range(count) for name in ("weight", "bias")]
        elif self.kind:
            names = list(_ATTRIBUTES[self.kind])
        else:
            names = [(name, name) for name, _ in self.module.named_parameters(recurse=False)]
        found = {name: getattr(self.module, attribute, None) for name, attribute in names}
        return {name: value for name, value in found.items() if hasattr(value, "numel") and value.numel() > 0}

    def fuses_wgrad(self) -> bool:
        """Whether the weight's GEMM itself adds to ``main_grad``."""
        return bool(getattr(self.module, "fuse_wgrad_accumulation", False))

    def knobs(self, torch: Any, x: Any, arguments: Sequence[Any]) -> Dict[str, Any]:
        """What the module and torch are set to, at the end of a forward."""
        module = self.module
        knobs: Dict[str, Any] = {"training": bool(module.training), "device": str(x.device),
                                 "autocast": _autocast(torch, x.device.type), "tf32": _tf32(torch, x.device.type)}
        for name, attribute in (("epsilon", "eps"), ("zero_centered_gamma", "zero_centered_gamma"),
                                ("activation", "activation"), ("parallel_mode", "parallel_mode"), ("tp_size", "tp_size"),
                                ("sequence_parallel", "sequence_parallel"), ("fp8", "fp8")):
            value = getattr(module, attribute, None)
            if isinstance(value, (bool, int, float, str)):
                knobs[name] = value
        if isinstance(getattr(module, "normalization", None), str):
            knobs["norm"] = module.normalization.lower()
        if self.fuses_wgrad():
            knobs["fuses_wgrad_accumulation"] = True
        if self.kind == "grouped_linear":
            splits = next((one for one in arguments if isinstance(one, (list, tuple))), None)
            if splits is not None and all(isinstance(rows, int) for rows in splits):
                knobs["m_splits"] = list(splits)
        recipe = self._recipe()
        if recipe is not None:
            name = type(recipe).__name__
            knobs["recipe_class"] = name
            if knobs.get("fp8"):
                knobs["recipe"] = _RECIPES.get(name, "")
        return knobs

    def _recipe(self) -> Any:
        meta = getattr(self.module, "fp8_meta", None)
        return meta.get("recipe") if isinstance(meta, dict) else None


def _autocast(torch: Any, device: str) -> str:
    from ._capture_copies import dtype_of

    try:
        enabled = torch.is_autocast_enabled(device)
        return dtype_of(torch, torch.get_autocast_dtype(device))[0] if enabled else ""
    except (TypeError, AttributeError):  # Before torch 2.4.
        if device == "cuda":
            return dtype_of(torch, torch.get_autocast_gpu_dtype())[0] if torch.is_autocast_enabled() else ""
        return dtype_of(torch, torch.get_autocast_cpu_dtype())[0] if torch.is_autocast_cpu_enabled() else ""


def _tf32(torch: Any, device: str) -> bool:
    """Whether f32 GEMMs may round their operands."""
    try:
        if device == "cuda":
            return bool(torch.backends.cuda.matmul.allow_tf32)
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch has two ways to set it, and reads neither where both were used.
        return True


def _is_from_transformer_engine(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "transformer_engine"


def kind_of(module: Any, torch: Any) -> str:
    """The kind of layer that a module is, by its class; empty where none is known.

    ``torch.nn.Linear`` and its subclasses, and modules with a 2-D ``weight`` whose dims are their ``out_features`` and
    ``in_features``, are ``linear``: whether their forward is one is what ``verify`` asks.
    """
    for cls in type(module).__mro__:
        if _is_from_transformer_engine(cls) and cls.__name__ in _TRANSFORMER_ENGINE:
            kind = _TRANSFORMER_ENGINE[cls.__name__]
            return kind if _has_weights(module, kind) else ""
    if isinstance(module, torch.nn.Linear):
        return "linear"
    weight = getattr(module, "weight", None)
    sizes = (getattr(module, "out_features", None), getattr(module, "in_features", None))
    return "linear" if getattr(weight, "ndim", 0) == 2 and tuple(weight.shape) == sizes else ""


def _has_weights(module: Any, kind: str) -> bool:
    """A Linear of Transformer Engine may have its weight in parts with names of their own."""
    if kind == "grouped_linear":
        return hasattr(module, "num_gemms") and hasattr(module, "weight0")
    return all(hasattr(module, attribute) for name, attribute in _ATTRIBUTES[kind] if name.endswith("weight"))


def clean_path(path: str, is_wrapped: bool) -> str:
    """A module's path without the names that wrappers add."""
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    if is_wrapped and parts and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def _pattern(argument: str, text: str) -> "re.Pattern[str]":
    try:
        return re.compile(text)
    except re.error as error:
        raise refuse(argument, repr(text), f"no regular expression: {error}") from None


def _asked_kind(path: str, kind: KindLike) -> Optional[str]:
    """The kind that the caller gave; None where nothing was said."""
    if kind is None:
        return None
    if isinstance(kind, str):
        kind = {".*": kind}
    if not isinstance(kind, Mapping):
        raise refuse_type("kind", kind, "must be a kind of layer, or a dict of kinds by regular expressions")
    for pattern, value in kind.items():
        if value is not None and value not in KINDS:
            raise refuse("kind", repr(value), f"must be one of {', '.join(KINDS)}, or None")
        if _pattern("kind", pattern).fullmatch(path):
            return value or ""
    return None


def choose(model: Any, layers: Optional[str], kind: KindLike, torch: Any) -> List[CapturedModule]:
    """The modules to capture, in the order of ``named_modules``: those whose path ``layers`` matches, or all of a known kind."""
    if not isinstance(model, torch.nn.Module):
        raise refuse_type("model", model, "must be a torch.nn.Module")
    if layers is not None and not isinstance(layers, str):
        raise refuse_type("layers", layers, "must be a regular expression in text, or None")
    is_wrapped = type(model).__name__ in ("DistributedDataParallel", "DataParallel")
    pattern = None if layers is None else _pattern("layers", layers)
    chosen, paths = [], []
    for raw, module in model.named_modules():
        path = clean_path(raw, is_wrapped)
        if type(module).__name__ in ("OptimizedModule", "DistributedDataParallel", "DataParallel"):
            continue  # What it wraps comes next, under the same path.
        asked = _asked_kind(path, kind)
        known = kind_of(module, torch) if asked is None else asked
        if known and not _has_weights(module, known):
            raise refuse("kind", repr(known), f"{path} ({type(module).__name__}) does not have its weights")
        paths.append(path)
        if pattern.fullmatch(path) if pattern is not None else known:
            chosen.append(CapturedModule(path, module, known))
    if not chosen:
        named = [path for path in paths if path]
        shown = ", ".join(named[:8]) + (f", and {len(named) - 8} more" if len(named) > 8 else "")
        rule = f"matches no module; there are {shown}" if layers is not None else f"absent: no layer of a known kind in {shown}"
        raise refuse("layers", repr(layers), rule)
    _note_shared_weights(model, chosen)
    return chosen


def _note_shared_weights(model: Any, chosen: List[CapturedModule]) -> None:
    """A weight that other modules use too gathers gradients that are none of this module's."""
    owners: Dict[int, List[Any]] = {}
    for _, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)
    for captured in chosen:
        for name, parameter in captured.parameters().items():
            gradient = gradient_name(name, "main_grad")
            if gradient and len(owners.get(id(parameter), [])) > 1:
                captured.left_out[gradient] = "its weight is shared with another module"


def gradient_name(parameter: str, gradient: str) -> str:
    """``fc1.dw`` of ``fc1.weight``; empty where the parameter is no weight."""
    parts = parameter.split(".")
    if "weight" not in parts:
        return ""
    return ".".join(gradient if part == "weight" else part for part in parts)
