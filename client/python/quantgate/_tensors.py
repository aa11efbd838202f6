"""Tensors of numpy, torch, JAX and other libraries as the engine reads them, and back (docs/python.md section 3)."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import Any, Iterable, List, Optional, Tuple

import ml_dtypes
import numpy as np

from . import _engine
from ._errors import ResourceExhausted, refuse, refuse_precondition, refuse_type

_DLPACK_CUDA = 2  # kDLCUDA of dlpack.h.
_UINTS = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}

# The numpy dtype of each of the engine's, and which of them numpy arrays have by themselves.
_NUMPY = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64), "bf16": np.dtype(ml_dtypes.bfloat16), "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2), "f8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
for _name, _type in (("f8_e8m0", "float8_e8m0fnu"), ("f6_e2m3", "float6_e2m3fn"), ("f6_e3m2", "float6_e3m2fn")):
    if hasattr(ml_dtypes, _type):
        _NUMPY[_name] = np.dtype(getattr(ml_dtypes, _type))
_OF_NUMPY = {dtype: name for name, dtype in _NUMPY.items()}
# ml_dtypes' types with one code of four bits in a byte, and what they are packed to.
_UNPACKED = {np.dtype(getattr(ml_dtypes, name)): packed
             for name, packed in (("float4_e2m1fn", "f4_e2m1x2"), ("int4", "i4x2"), ("uint4", "u4x2"))
             if hasattr(ml_dtypes, name)}
# The names of torch's dtypes. FP4 is packed there too.
_TORCH = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "u8": "uint8", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "f8_e4m3fnuz": "float8_e4m3fnuz", "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0": "float8_e8m0fnu",
    "f4_e2m1x2": "float4_e2m1fn_x2",
}
_OF_TORCH = {f"torch.{torch_name}": name for name, torch_name in _TORCH.items()}


def dtype_name(argument: str, dtype: Any) -> str:
    """Our name of a dtype, which may be a name, or a dtype of numpy, ml_dtypes or torch."""
    if isinstance(dtype, str):
        text = dtype
    elif type(dtype).__module__ == "torch":
        text = str(dtype)
    else:
        try:
            known = _OF_NUMPY.get(np.dtype(dtype))
        except TypeError:
            known = None
        if known is None:
            raise refuse_type(argument, dtype, "must be the name of a dtype, or a dtype of numpy, ml_dtypes or torch")
        return known
    try:
        return _engine.dtype_name(text)
    except ValueError as error:
        raise refuse(argument, f'"{text}"', getattr(error, "rule", "") or str(error)) from None


class Cuda:
    """The GPU of a client's engine: what lies on it is read where it lies, and results stay on it.

    Order: the engine's stream waits for what other libraries have put on theirs, and every verb waits for the engine before it
    returns, so that results may be read, and arguments changed or freed, on any stream at once.
    """

    def __init__(self, engine: Any):
        self.engine = engine
        self.ordinal: int = engine.ordinal
        self._entered = threading.local()

    def check(self, argument: str, ordinal: int) -> None:
        """Refuses a tensor of another GPU."""
        if ordinal != self.ordinal:
            raise refuse(argument, f"on cuda:{ordinal}",
                         f'this client computes on cuda:{self.ordinal}: move it there, or use Local(device="cuda:{ordinal}")')

    def wait_for_torch(self) -> None:
        """Makes the engine wait for the work on torch's current stream so far."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        if torch.cuda.is_current_stream_capturing():
            raise refuse_precondition("stream", "capturing a CUDA graph", "a verb waits for the GPU, which no graph can hold")
        current = torch.cuda.current_stream(self.ordinal)
        torch.cuda.ExternalStream(self.engine.stream, device=self.ordinal).wait_stream(current)

    def __enter__(self) -> "Cuda":
        # The engine makes its GPU the current one, which for torch must stay what it was.
        torch = sys.modules.get("torch")
        guards = self._entered.__dict__.setdefault("guards", [])
        guards.append(torch.cuda.device(self.ordinal) if torch is not None and torch.cuda.is_initialized() else nullcontext())
        guards[-1].__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.guards.pop().__exit__(*exception)


class Kind:
    """A library whose tensors a result is to be."""

    name = "numpy"
    # Where results stay on the GPU.
    cuda: Optional[Cuda] = None

    def back(self, tensor: Any) -> Any:
        """The engine's tensor as an array of this library, without a copy on the CPU."""
        array = _engine.array_of(tensor)
        return array.view(_NUMPY.get(tensor.dtype, _UINTS[array.itemsize]))

    def kept(self, value: Any, tensor: Any) -> Any:
        """The engine's view of an array that ``back`` made of ``tensor``."""
        if tensor.ordinal < 0:
            return tensor
        return read("tensor", (value, tensor.dtype), self.cuda).tensor


NUMPY = Kind()


class _TorchKind(Kind):
    name = "torch"

    def __init__(self, device: Any, cuda: Optional[Cuda] = None):
        self._device = device
        self.cuda = cuda

    def back(self, tensor: Any) -> Any:
        import torch

        dtype = getattr(torch, _TORCH.get(tensor.dtype, ""), None)
        if tensor.ordinal >= 0:
            # In memory of torch's own: the engine's would be given anew in the order of its stream, not of torch's.
            size = _itemsize_of(tensor.dtype)
            made = torch.empty(tensor.shape, dtype=_torch_integer(size, torch), device=self._device)
            to = _engine.wrap_device(made.data_ptr(), tensor.shape, tensor.dtype, tensor.ordinal, made)
            self.cuda.wait_for_torch()
            self.cuda.engine.copy(tensor, to)
            return made if dtype is None or dtype == made.dtype else made.view(dtype)
        array = _engine.array_of(tensor)
        signed = np.dtype(f"i{array.itemsize}") if array.itemsize > 1 else np.dtype(np.uint8)
        result = torch.from_numpy(array.view(signed))
        if dtype is not None and dtype != result.dtype:
            result = result.view(dtype)
        return result if self._device.type == "cpu" else result.to(self._device)


class _JaxKind(Kind):
    name = "jax"

    def __init__(self, device: Any, cuda: Optional[Cuda] = None):
        self._device = device
        self.cuda = cuda

    def back(self, tensor: Any) -> Any:
        import jax

        if tensor.ordinal < 0:
            return jax.device_put(NUMPY.back(tensor), self._device)
        codes = jax.dlpack.from_dlpack(_engine.export_dlpack(tensor))
        # XLA refuses to read bytes as types of 6 bits: these come back as bytes.
        dtype = codes.dtype if tensor.dtype.startswith("f6_") else _NUMPY.get(tensor.dtype, codes.dtype)
        # A copy, since the engine's memory is given anew in the order of its stream, for which JAX does not wait.
        made = jax.lax.bitcast_convert_type(codes, dtype) if dtype != codes.dtype else jax.numpy.array(codes, copy=True)
        return made.block_until_ready()


class _NamespaceKind(Kind):
    """A library of the array API standard, which takes what numpy has by DLPack."""

    def __init__(self, namespace: Any, cuda: Optional[Cuda] = None):
        self._namespace = namespace
        self.name = getattr(namespace, "__name__", "array API")
        self.cuda = cuda

    def back(self, tensor: Any) -> Any:
        if tensor.ordinal >= 0:
            made = self._namespace.asarray(self._namespace.from_dlpack(_engine.export_dlpack(tensor)), copy=True)
            # The engine's memory is given anew once its stream has come past this copy.
            made.__dlpack__(stream=self.cuda.engine.stream)
            return made
        array = NUMPY.back(tensor)
        if array.dtype.kind not in "fiu" or array.dtype not in _OF_NUMPY or array.dtype.num > 23:
            return array  # DLPack of numpy has none of ml_dtypes' types.
        return self._namespace.from_dlpack(array)


class Given:
    """A tensor that was given: as the engine reads it, and the library that it is of."""

    __slots__ = ("tensor", "kind")

    def __init__(self, tensor: Any, kind: Kind):
        self.tensor = tensor
        self.kind = kind


def _dense(argument: str, array: np.ndarray) -> np.ndarray:
    """The array itself where it is row-major, aligned and in this machine's byte order, else such a copy."""
    if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return array
    try:
        return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True, subok=False)
    except MemoryError:
        text = f"{argument} is {array.dtype.name}{list(array.shape)}: it must be copied to be dense, and memory does not suffice"
        raise ResourceExhausted(text, "RESOURCE_EXHAUSTED", argument) from None


def _pack(argument: str, array: np.ndarray) -> np.ndarray:
    """Codes of four bits, one in a byte, as two in a byte, the even index in the low nibble."""
    if array.ndim == 0 or array.shape[-1] % 2 != 0:
        raise refuse(argument, f"{array.dtype.name}{list(array.shape)}", "two codes share a byte: its last dim must be even")
    codes = np.ascontiguousarray(array).view(np.uint8) & 0x0F
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _wrapped(argument: str, array: np.ndarray, name: str, kind: Kind) -> Given:
    return Given(_engine.wrap(array.view(_UINTS[array.itemsize]), name), kind)


def _itemsize_of(name: str) -> int:
    return _NUMPY[name].itemsize if name in _NUMPY else 1


def _as_dtype(argument: str, array: np.ndarray, dtype: Optional[str], kind: Kind) -> Given:
    """The bytes of a dense array, read as another dtype where one is given."""
    if dtype is not None:
        size = _itemsize_of(dtype)
        if size != array.itemsize:
            try:
                array = array.view(_UINTS[array.itemsize]).view(_UINTS[size])
            except (TypeError, ValueError):
                raise refuse(argument, f"{array.dtype.name}{list(array.shape)}",
                             f"its last dim is no whole number of {dtype}") from None
        return _wrapped(argument, array, dtype, kind)
    name = _OF_NUMPY.get(array.dtype)
    if name is None:
        packed = _UNPACKED.get(array.dtype)
        if packed is not None:
            return _wrapped(argument, np.ascontiguousarray(_pack(argument, array)), packed, kind)
        raise TypeError(f"{argument} is an array of {array.dtype.name}: the engine has no such dtype")
    return _wrapped(argument, array, name, kind)


def _is_masked(array: np.ndarray) -> bool:
    # Not numpy.ma by its name, which numpy imports then: without that module there is no such array.
    masked = sys.modules.get("numpy.ma")
    return isinstance(array, getattr(masked, "MaskedArray", ()))


def _read_numpy(argument: str, array: np.ndarray, dtype: Optional[str], kind: Kind = NUMPY) -> Given:
    if _is_masked(array):
        raise TypeError(f"{argument} is a masked array: give its data or filled()")
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TypeError(f"{argument} is an array of {array.dtype}: the engine has no such dtype")
    return _as_dtype(argument, _dense(argument, array), dtype, kind)


def _torch_state(argument: str, tensor: Any, torch: Any) -> None:
    """Refuses what has no values that can be read."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"{argument} is a torch tensor of layout {tensor.layout}: must be dense; give to_dense()")
    if tensor.is_nested:
        raise TypeError(f"{argument} is a nested torch tensor: must be one dense tensor")
    if tensor.is_quantized:
        raise TypeError(f"{argument} is a quantized torch tensor ({tensor.dtype}): give its codes (int_repr()) or values")
    if tensor.device.type == "meta":
        raise ValueError(f"{argument} is a torch tensor on device meta: it has no values")
    if hasattr(tensor, "to_local"):
        raise TypeError(f"{argument} is a distributed torch tensor: give its to_local() or full_tensor()")
    if tensor.numel() > 0:
        last = tensor.storage_offset() + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
        if tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size():
            raise ValueError(f"{argument} is a torch tensor of shape {list(tensor.shape)} whose storage has "
                             f"{tensor.untyped_storage().nbytes()} bytes: its memory was freed")


def _torch_integer(size: int, torch: Any) -> Any:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]


def _torch_array(argument: str, tensor: Any, torch: Any) -> np.ndarray:
    """An array of unsigned integers over a dense torch tensor on the CPU."""
    return tensor.view(_torch_integer(tensor.element_size(), torch)).numpy().view(_UINTS[tensor.element_size()])


def _shape_as(argument: str, given: str, shape: List[int], itemsize: int, dtype: str) -> List[int]:
    """The shape of dense elements of ``itemsize`` bytes that are read as another dtype."""
    size = _itemsize_of(dtype)
    if size == itemsize:
        return shape
    if not shape or shape[-1] * itemsize % size != 0:
        raise refuse(argument, f"{given}{shape}", f"its last dim is no whole number of {dtype}")
    return [*shape[:-1], shape[-1] * itemsize // size]


def _read_torch(argument: str, tensor: Any, dtype: Optional[str], cuda: Optional[Cuda]) -> Given:
    torch = sys.modules["torch"]
    _torch_state(argument, tensor, torch)
    name = _OF_TORCH.get(str(tensor.dtype))
    if name is None:
        raise TypeError(f"{argument} is a torch tensor of {tensor.dtype}: the engine has no such dtype")
    on_cuda = cuda if tensor.device.type == "cuda" else None
    if on_cuda is not None:
        on_cuda.check(argument, tensor.device.index)
    kind = _TorchKind(tensor.device, on_cuda)
    try:
        values = tensor.detach()
        if values.is_neg():
            values = values.resolve_neg()
        if on_cuda is not None:
            values = values.contiguous()
            shape = list(values.shape)
            if dtype is not None:
                shape = _shape_as(argument, str(values.dtype), shape, values.element_size(), dtype)
            return Given(_engine.wrap_device(values.data_ptr(), shape, dtype or name, on_cuda.ordinal, values), kind)
        if values.device.type != "cpu":
            values = values.cpu()
        array = _torch_array(argument, values.contiguous(), torch)
    except RuntimeError as error:
        raise TypeError(f"{argument} is a torch tensor that cannot be read as memory: {error}") from error
    if dtype is None:
        return _wrapped(argument, array, name, kind)
    return _as_dtype(argument, array, dtype, kind)


def _jax_pointer(argument: str, array: Any, name: str, dtype: Optional[str], cuda: Cuda) -> Any:
    """A JAX array on the engine's GPU where it lies; None for one that is not dense there, as codes of four bits are not."""
    layout = getattr(getattr(array, "format", None), "layout", None)
    order = getattr(layout, "major_to_minor", None)
    if order is not None and tuple(order) != tuple(range(array.ndim)):
        return None
    shape = list(array.shape)
    if dtype is not None:
        shape = _shape_as(argument, name, shape, array.dtype.itemsize, dtype)
    array.block_until_ready()
    return _engine.wrap_device(array.unsafe_buffer_pointer(), shape, dtype or name, cuda.ordinal, array)


def _read_jax(argument: str, array: Any, dtype: Optional[str], cuda: Optional[Cuda]) -> Given:
    jax = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise TypeError(f"{argument} is a JAX tracer: it has no values inside a transformation")
    if array.is_deleted():
        raise ValueError(f"{argument} is a JAX array that was deleted or donated: its memory was freed")
    devices = array.devices()
    if len(devices) != 1:
        raise ValueError(f"{argument} is a JAX array over {len(devices)} devices: must be on one")
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"{argument} is a JAX array of {array.dtype}: the engine has no such dtype")
    device, = devices
    on_cuda = cuda if device.platform in ("gpu", "cuda") else None
    kind = _JaxKind(device, on_cuda)
    name = _OF_NUMPY.get(np.dtype(array.dtype))
    if on_cuda is not None:
        on_cuda.check(argument, device.local_hardware_id)
        tensor = None if name is None else _jax_pointer(argument, array, name, dtype, on_cuda)
        if tensor is not None:
            return Given(tensor, kind)
    return _read_numpy(argument, np.asarray(array), dtype, kind)


def _read_dlpack(argument: str, value: Any, dtype: Optional[str], cuda: Optional[Cuda]) -> Given:
    on_cuda = None
    if cuda is not None and hasattr(value, "__dlpack_device__"):
        device_type, ordinal = value.__dlpack_device__()
        if int(device_type) == _DLPACK_CUDA:
            on_cuda = cuda
            on_cuda.check(argument, int(ordinal))
    kind: Kind = NUMPY
    if hasattr(value, "__array_namespace__"):
        namespace = value.__array_namespace__()
        if hasattr(namespace, "from_dlpack"):
            kind = _NamespaceKind(namespace, on_cuda)
    try:
        if on_cuda is None:
            tensor = _engine.from_dlpack(value)
        else:  # The library makes the engine's stream wait for its own.
            tensor = _engine.from_dlpack(value.__dlpack__(stream=on_cuda.engine.stream), on_cuda.ordinal)
    except TypeError:
        raise refuse_type(argument, value, "its __dlpack__ gives no array that can be read") from None
    except ValueError as error:
        raise refuse(argument, getattr(error, "value", ""), getattr(error, "rule", str(error))) from None
    if dtype is None:
        return Given(tensor, kind)
    if on_cuda is not None:
        shape = _shape_as(argument, tensor.dtype, list(tensor.shape), _itemsize_of(tensor.dtype), dtype)
        return Given(_engine.wrap_device(tensor.address, shape, dtype, on_cuda.ordinal, tensor), kind)
    return _as_dtype(argument, _engine.array_of(tensor), dtype, kind)


def read(argument: str, value: Any, cuda: Optional[Cuda] = None) -> Given:
    """A tensor that was given as ``argument``, for the engine; with ``cuda``, what lies there is read where it lies.

    Raises
    ------
    TypeError
        For what is no tensor, and for dtypes that the engine does not have.
    ValueError
        For tensors without values that can be read.
    """
    dtype = None
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[1], (int, float)):
        value, dtype = value[0], dtype_name(argument, value[1])
    if isinstance(value, np.ndarray):
        return _read_numpy(argument, value, dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _read_torch(argument, value, dtype, cuda)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        return _read_jax(argument, value, dtype, cuda)
    if isinstance(value, np.generic):
        return _read_numpy(argument, np.asarray(value), dtype)
    if hasattr(value, "__dlpack__"):
        return _read_dlpack(argument, value, dtype, cuda)
    raise refuse_type(argument, value, "must be a tensor: of numpy, torch, JAX, or with __dlpack__")


def read_small(argument: str, value: Any, cuda: Optional[Cuda] = None) -> Optional[Given]:
    """As read, or None for None; numbers and lists of numbers are f32."""
    if value is None:
        return None
    if isinstance(value, (bool, str, bytes)):
        raise refuse_type(argument, value, "must be a tensor, a number or a list of numbers")
    if isinstance(value, (int, float, list)) or (
            isinstance(value, tuple) and all(isinstance(item, (int, float)) for item in value)):
        try:
            array = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            raise refuse_type(argument, value, "must be a tensor, a number or a list of numbers") from None
        return _read_numpy(argument, array.reshape(1) if array.ndim == 0 else array, None)
    return read(argument, value, cuda)


def kind_of_name(argument: str, name: str) -> Kind:
    """The library that a result is asked to be of: numpy, torch or jax."""
    if name == "numpy":
        return NUMPY
    if name == "torch":
        import torch

        return _TorchKind(torch.device("cpu"))
    if name == "jax":
        import jax

        return _JaxKind(jax.devices()[0])
    raise refuse(argument, f'"{name}"', "must be numpy, torch or jax")


class Output:
    """``out=``: memory of the caller's that a result goes to."""

    __slots__ = ("tensor", "value")

    def __init__(self, tensor: Any, value: Any):
        self.tensor = tensor
        self.value = value

    def check_apart(self, argument: str, others: Iterable[Tuple[str, Any]]) -> None:
        """Refuses memory that is read, or written to, too."""
        begin, end = self.tensor.address, self.tensor.address + self.tensor.nbytes
        for name, other in others:
            if other.nbytes > 0 and begin < other.address + other.nbytes and other.address < end:
                raise refuse(argument, f"memory of {name}", "must share no memory with another tensor of the call")

    def check_takes(self, argument: str, result: Any, takes_bytes: bool = False) -> None:
        """Refuses a result, in host memory, of another dtype or shape; ``takes_bytes``: bytes are for any dtype of one byte."""
        mine = self.tensor
        is_bytes = takes_bytes and mine.dtype == "u8" and _itemsize_of(result.dtype) == 1
        if list(mine.shape) != list(result.shape) or (mine.dtype != result.dtype and not is_bytes):
            raise refuse(argument, _text_of(mine), f"must be {_text_of(result)}")

    def take(self, result: Any) -> Any:
        """Copies such a result here: the engine's view of this memory, of the result's dtype."""
        array = _engine.array_of(self.tensor)
        np.copyto(array, _engine.array_of(result))
        return self.tensor if self.tensor.dtype == result.dtype else _engine.wrap_out(array, result.dtype)


def _text_of(tensor: Any) -> str:
    return f"{tensor.dtype}[{'x'.join(map(str, tensor.shape))}]"


def read_out(argument: str, value: Any, cuda: Optional[Cuda] = None) -> Output:
    """Memory that a result is to be written to: a writable dense array of numpy, or of torch on the CPU or on ``cuda``."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) and not _is_masked(value):
        name = _OF_NUMPY.get(value.dtype.newbyteorder("="))
        if name is None:
            raise TypeError(f"{argument} is an array of {value.dtype.name}: the engine has no such dtype")
        if not value.flags.writeable:
            raise ValueError(f"{argument} is a read-only array: must be writable")
        if not value.flags.c_contiguous:
            raise refuse(argument, f"an array with strides {list(value.strides)}", "must be dense, row-major")
        if not value.dtype.isnative:
            raise refuse(argument, f"an array of {value.dtype.str}", "must have this machine's byte order")
        if not value.flags.aligned:
            raise refuse(argument, f"an unaligned array at {value.ctypes.data:#x}", f"must be aligned to {value.itemsize} bytes")
        return Output(_engine.wrap_out(value.view(_UINTS[value.itemsize]), name), value)
    if torch is None or not isinstance(value, torch.Tensor):
        raise refuse_type(argument, value, "must be a writable array of numpy, or a tensor of torch")
    _torch_state(argument, value, torch)
    name = _OF_TORCH.get(str(value.dtype))
    if name is None:
        raise TypeError(f"{argument} is a torch tensor of {value.dtype}: the engine has no such dtype")
    if value.requires_grad:
        raise ValueError(f"{argument} is a torch tensor that requires grad: must not")
    is_on_cuda = cuda is not None and value.device.type == "cuda"
    if value.device.type != "cpu" and not is_on_cuda:
        raise refuse(argument, f"on {value.device}", "must be on the CPU" if cuda is None else f"must be on cuda:{cuda.ordinal}")
    if not value.is_contiguous() or value.is_neg():
        raise refuse(argument, f"a tensor with strides {list(value.stride())}", "must be dense, row-major")
    if is_on_cuda:
        assert cuda is not None
        cuda.check(argument, value.device.index)
        return Output(_engine.wrap_device(value.data_ptr(), list(value.shape), name, cuda.ordinal, value), value)
    return Output(_engine.wrap_out(_torch_array(argument, value.detach(), torch), name), value)
