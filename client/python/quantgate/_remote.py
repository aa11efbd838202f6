"""Clients of a server, over grpcio (docs/python.md section 7)."""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, Optional

from . import _engine
from ._arguments import flag, integer, seconds, text
from ._client import Client
from ._errors import from_status, make, refuse_precondition

# As client/channel_connection.cc has them, and for its reasons; and a server that comes back is found soon, however long this
# process has tried before.
_CHANNEL_OPTIONS = [
    ("SingleThreadedUnaryStream", 1),  # grpc.experimental.ChannelOptions: streams are read by the thread that waits for them.
    ("grpc.max_receive_message_length", 64 << 20), ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200), ("grpc.dns_min_time_between_resolutions_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000), ("grpc.keepalive_time_ms", 330_000), ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.primary_user_agent", "quantgate-python"),
]
# Bytes of a blob, and seconds that it takes, from which on its progress is shown.
_LONG_BYTES = 16 << 20
_LONG_SECONDS = 1.0

# The process that used gRPC first: its library does not survive a fork.
_process: Optional[int] = None


def _check_process() -> None:
    if _process != os.getpid():
        raise refuse_precondition("connect", f"called in process {os.getpid()}, forked from {_process}, which had connected",
                                  "gRPC's library does not survive a fork; fork before the first connect, or spawn")


class _Transport:
    """The calls of one verb, as client/python/python_connection.h wants them."""

    def __init__(self, grpc: Any, channel: Any, address: str, shows_progress: bool):
        self._grpc = grpc
        self._channel = channel
        self._address = address
        self._shows_progress = shows_progress
        self._bar: Any = None
        self._lock = threading.Lock()
        self._calls: set = set()
        self._cancelled = threading.Event()

    def unary(self, method: str, request: bytes, timeout: Optional[float], is_farewell: bool) -> bytes:
        # Read as a stream of one message, which is the same on the wire: the caller's thread waits for it, and sees interrupts,
        # where grpcio would start a thread for a call that can be cancelled.
        answers: list = []
        self.stream(method, request, lambda message: answers.append(message) or True, timeout, is_farewell)
        return answers[0] if answers else b""

    def write(self, method: str, next_message: Callable[[], Optional[bytes]], timeout: Optional[float]) -> bytes:
        rpc = self._channel.stream_unary(f"/quantgate.v1.{method}")
        call = self._start(lambda: rpc.future(iter(next_message, None), timeout=timeout), False)
        try:
            return call.result()
        except (self._grpc.RpcError, self._grpc.FutureCancelledError):
            raise self._error_of(call) from None
        finally:
            self._end(call)
            self._close_bar()

    def stream(self, method: str, request: bytes, on_message: Callable[[bytes], bool], timeout: Optional[float],
               is_farewell: bool) -> None:
        rpc = self._channel.unary_stream(f"/quantgate.v1.{method}")
        call = self._start(lambda: rpc(request, timeout=timeout), is_farewell)
        try:
            for message in call:
                if not on_message(message):
                    return
        except self._grpc.RpcError:
            raise self._error_of(call) from None
        finally:
            self._end(call)
            self._close_bar()

    def progress(self, what: str, done: int, size: int) -> None:
        if not self._shows_progress or size < _LONG_BYTES:
            return
        if self._bar is None:
            try:
                from tqdm import tqdm
            except ImportError:
                self._shows_progress = False
                return
            self._bar = tqdm(total=size, unit="B", unit_scale=True, unit_divisor=1024, desc=f"{what} {self._address}",
                             delay=_LONG_SECONDS, leave=False, initial=done)
        self._bar.update(done - self._bar.n)

    def pause(self, seconds: float) -> bool:
        return not self._cancelled.wait(seconds)

    def cancel(self) -> None:
        self._cancelled.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def _close_bar(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _start(self, begin: Callable[[], Any], is_farewell: bool) -> Any:
        try:
            call = begin()
        except ValueError:  # What grpcio raises for a closed channel, and nothing else here.
            raise refuse_precondition("client", self._address, "was closed") from None
        if not is_farewell:
            with self._lock:
                self._calls.add(call)
            if self._cancelled.is_set():
                call.cancel()
        return call

    def _end(self, call: Any) -> None:
        """An interrupt may have ended the wait for a call that goes on."""
        if not call.done():
            call.cancel()
        with self._lock:
            self._calls.discard(call)

    def _error_of(self, call: Any) -> Exception:
        """The error of a call that failed: its status, and the ErrorDetail that comes with it."""
        number = call.code().value[0]
        message = call.details() or ""
        details = b""
        for key, value in call.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                details = value
        if not details and call.code() in (self._grpc.StatusCode.UNAVAILABLE, self._grpc.StatusCode.DEADLINE_EXCEEDED):
            message = f"{self._address}: {message}"
        return from_status(number, message, details)


class Remote(Client):
    """The verbs computed by a server; ``connect`` makes one.

    May be used by several threads at once, not in a process forked from the one that made it. A context manager: leaving it
    closes it.

    Attributes
    ----------
    address : str
    """

    _keeps = True

    def __init__(self, grpc: Any, address: str, options: Dict[str, Any], shows_progress: bool):
        self.address = address
        self._grpc = grpc
        self._options = options
        self._shows_progress = shows_progress
        self._channel: Any = None
        self._connect()  # Refuses an address that is none.
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)

    def _connect(self) -> Any:
        _check_process()
        transport = _Transport(self._grpc, self._channel, self.address, self._shows_progress)
        return _engine.Client.remote(transport, self.address, **self._options)

    def __repr__(self) -> str:
        return f"quantgate.connect({self.address!r})"

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is under way and closes the connection; closing a closed one is no error. Sessions stay open on the server,
        until their lease ends."""
        self._channel.close()


def connect(address: str, *, timeout: Optional[float] = None, attempts_max: int = 4, backoff: float = 0.1,
            progress: bool = True, tls_ca: Optional[str] = None, token_file: Optional[str] = None) -> Remote:
    """A client of the server at an address, with the verbs of the module. Connecting happens with the first verb.

    Parameters
    ----------
    address : str
        ``"host:port"`` or ``"unix:/path"``.
    timeout : float, optional
        Seconds for each verb, or step of a session, all its calls and transfers together; None: no end.
    attempts_max : int
        Tries of one call while the server is unavailable or asks to be called later; 1: no second one.
    backoff : float
        Seconds before the second try, doubled each time, times a random factor in [0.5, 1].
    progress : bool
        Shows transfers that take long, where tqdm is installed.
    tls_ca, token_file : str
        Reserved: servers have neither encryption nor authentication yet.

    Returns
    -------
    Remote

    Raises
    ------
    ImportError
        grpcio is not installed.
    InvalidArgument
        Names the argument that cannot be.
    Unimplemented
        ``tls_ca`` or ``token_file`` is given.
    FailedPrecondition
        In a process forked from one that had connected.
    """
    for name, value in (("tls_ca", tls_ca), ("token_file", token_file)):
        if value is not None:
            rule = "a server has neither encryption nor authentication yet"
            raise make("UNIMPLEMENTED", f'{name} is "{value}": {rule}', name, f'"{value}"', rule)
    text("address", address)
    options = {"timeout": None if timeout is None else seconds("timeout", timeout),
               "attempts_max": integer("attempts_max", attempts_max, 1, 1000), "backoff": seconds("backoff", backoff)}
    shows_progress = flag("progress", progress)
    try:
        import grpc
    except ImportError as error:
        raise ImportError("quantgate.connect needs grpcio, which is not installed: pip install 'quantgate[client]'") from error
    global _process
    if _process is None:
        _process = os.getpid()
    return Remote(grpc, address, options, shows_progress)
