"""Copies of tensors to the host, and the files that they are written to (docs/capture.md section 4)."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import random
import tempfile
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

# torch's name, ours (docs/file-formats.md section 3) and that of safetensors.
_DTYPES = {
    "float64": ("f64", "F64"), "float32": ("f32", "F32"), "bfloat16": ("bf16", "BF16"), "float16": ("f16", "F16"),
    "float8_e4m3fn": ("f8_e4m3", "F8_E4M3"), "float8_e5m2": ("f8_e5m2", "F8_E5M2"),
    "float8_e4m3fnuz": ("f8_e4m3fnuz", "F8_E4M3FNUZ"), "float8_e5m2fnuz": ("f8_e5m2fnuz", "F8_E5M2FNUZ"),
    "float8_e8m0fnu": ("f8_e8m0", "F8_E8M0"), "uint8": ("u8", "U8"), "int8": ("i8", "I8"), "int16": ("i16", "I16"),
    "int32": ("i32", "I32"), "int64": ("i64", "I64"),
}


def dtype_of(torch: Any, dtype: Any) -> Tuple[str, str]:
    """Our name of a dtype and that of safetensors; empty where a file cannot have it."""
    return _DTYPES.get(str(dtype).replace("torch.", ""), ("", ""))


def chosen_rows(seed: int, step: int, path: str, call: int, count: int, wanted: int) -> List[int]:
    """``wanted`` of ``count`` rows, ascending: the same for the same arguments, in every version of Python."""
    text = f"{seed}/{step}/{path}/{call}/{count}/{wanted}"
    draw = random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))
    chosen: set = set()
    for last in range(count - wanted, count):  # Floyd's algorithm.
        row = int(draw.random() * (last + 1))
        chosen.add(last if row in chosen else row)
    return sorted(chosen)


class Copy:
    """The bits that a tensor had at one moment, on their way to the host or there."""

    def __init__(self, host: Any, ready: Any, source: Any, sampled_rows: Optional[List[int]], name: str):
        self._host = host
        self._ready = ready
        self.dtype, self.file_dtype = name, _DTYPES[str(host.dtype).replace("torch.", "")][1]
        self.shape = list(source.shape)
        self.strides = list(source.stride())
        self.stored_shape = list(host.shape)
        self.sampled_rows = sampled_rows
        self.nbytes = host.numel() * host.element_size()

    def host(self) -> Any:
        """The tensor on the host, once its copy is done."""
        if self._ready is not None:
            self._ready.synchronize()
            self._ready = None
        return self._host

    def write_to(self, file: Any, torch: Any) -> None:
        if self.nbytes > 0:
            file.write(memoryview(self.host().reshape(-1).view(torch.uint8).numpy()))

    def record(self) -> Dict[str, Any]:
        entry: Dict[str, Any] = {"dtype": self.dtype, "shape": self.shape, "strides": self.strides}
        if self.sampled_rows is not None:
            entry["sampled_rows"] = self.sampled_rows
        return entry


class NotCopied(Exception):
    """Why a tensor cannot be copied."""


class Copier:
    """Copies tensors. On CUDA the bits are taken on the device, in the order of the current stream, and brought to
    pinned memory by a stream of their own, for which nothing waits but the file."""

    def __init__(self, torch: Any):
        self._torch = torch
        self._streams: Dict[Any, Any] = {}
        self._modes = _modes_disabled(torch)

    def copy(self, tensor: Any, rows: Optional[Callable[[int], Optional[List[int]]]]) -> Copy:
        """``rows``: which rows of so many to take; None of it, or for it: all.

        Raises
        ------
        NotCopied
            For a tensor without plain bytes.
        """
        torch = self._torch
        name, _ = dtype_of(torch, tensor.dtype)
        if not name:
            raise NotCopied(f"no file has {tensor.dtype}")
        problem = _problem(torch, tensor)
        if problem:
            raise NotCopied(problem)
        with torch.no_grad(), self._modes():
            plain = tensor.detach()
            sampled = None
            if rows is not None and plain.ndim >= 1:
                width = plain.shape[-1]
                sampled = rows(plain.numel() // width if width else 0)
            if sampled is not None:
                flat = plain.reshape(-1, plain.shape[-1])
                # Types of one byte may have no index_select of their own.
                lines = flat if flat.element_size() > 1 else flat.view(torch.uint8)
                places = torch.tensor(sampled, dtype=torch.int64, device=flat.device)
                taken = lines.index_select(0, places).view(flat.dtype)
            else:
                taken = torch.empty(plain.shape, dtype=plain.dtype, device=plain.device)
                taken.copy_(plain)
            host, ready = self._to_host(taken)
        return Copy(host, ready, plain, sampled, name)

    def _to_host(self, taken: Any) -> Tuple[Any, Any]:
        torch = self._torch
        if taken.device.type == "cpu":
            return taken, None
        if taken.device.type != "cuda":
            return taken.to("cpu"), None
        device = taken.device
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device=device)
        side = self._streams[device]
        side.wait_stream(torch.cuda.current_stream(device))
        host = torch.empty(taken.shape, dtype=taken.dtype, device="cpu", pin_memory=True)
        with torch.cuda.stream(side):
            host.copy_(taken, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(side)
        taken.record_stream(side)  # Its memory is not reused before the copy is done.
        return host, ready


def _modes_disabled(torch: Any) -> Callable[[], Any]:
    """A context in which no dispatch mode of the caller's sees what is copied."""
    import contextlib

    try:
        from torch.utils._python_dispatch import _disable_current_modes
    except ImportError:
        return contextlib.nullcontext
    return _disable_current_modes


def _problem(torch: Any, tensor: Any) -> str:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and (
            type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__):
        return f"a {type(tensor).__name__} has no plain bytes"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return "a sparse, quantized or nested tensor has no plain bytes"
    if tensor.device.type == "meta":
        return "a meta tensor has no bytes"
    if tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0:
        return "its storage was freed"
    if tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph was being recorded"
    return ""


class Writer:
    """Writes files in a thread of its own, each whole or not at all."""

    def __init__(self, torch: Any):
        self._torch = torch
        self._jobs: "queue.Queue[Optional[Callable[[], None]]]" = queue.Queue()
        self._error: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None

    def add(self, job: Callable[[], None]) -> None:
        self.check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="quantgate-capture", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def check(self) -> None:
        """Raises what went wrong in the thread."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits until all is written."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self.check()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if self._error is None:
                try:
                    job()
                except BaseException as error:  # Told by check().
                    self._error = error


def write_whole(path: str, parts: Iterable[Callable[[Any], None]]) -> None:
    """Writes a file by way of a temporary one beside it and a rename."""
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=".quantgate-")
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                part(file)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_tensors(path: str, copies: Dict[str, Copy], record: Dict[str, Any], torch: Any) -> None:
    """Writes a safetensors file whose metadata has the record. Wider elements come first, so that all are aligned."""
    order = sorted(copies, key=lambda name: -copies[name].host().element_size())
    header: Dict[str, Any] = {"__metadata__": {"quantgate.capture": json.dumps(record)}}
    offset = 0
    for name in order:
        copy = copies[name]
        header[name] = {"dtype": copy.file_dtype, "shape": copy.stored_shape, "data_offsets": [offset, offset + copy.nbytes]}
        offset += copy.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    head = len(text).to_bytes(8, "little") + text
    write_whole(path, [lambda file: file.write(head), *(lambda file, one=copies[name]: one.write_to(file, torch)
                                                        for name in order)])
