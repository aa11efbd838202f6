#!/usr/bin/env python3
"""Opens streams that nobody reads on a quantgated of its own, and measures what they cost it and others.

  unread_streams_load.py --program build/release/bin/quantgated --streams 3000 --connections 24
  unread_streams_load.py ... --kind wait        streams of WaitRun, of one run with large events
  unread_streams_load.py ... --kind scenarios   streams of Scenarios.Run

A stream is left alone as gRPC's clients leave one that the program does not read: its connection is read, its window stays as
it is. Another process reads a blob before and meanwhile. Exit code 0 when memory, the others' time and the streams' end keep
their bounds."""
import argparse
import hashlib
import os
import random
import re
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

MIB = 1 << 20
RSS_MAX = 512 * MIB
RSS_LEFT_MAX = 64 * MIB
REAPED_WITHIN = 120.0
SLOWER_MAX = 2.0
SETTLE = 10.0
WINDOW_MAX = (1 << 31) - 1
WIDE_WINDOW = 1 << 30
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    """A protobuf field: an integer, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """{number: [values]} of a message, 64-bit and 32-bit fields as bytes."""
    at, found = 0, {}

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            value = number()
        else:
            size = {1: 8, 5: 4}.get(tag & 7)
            size = number() if size is None else size
            value = data[at:at + size]
            at += size
        found.setdefault(tag >> 3, []).append(value)
    return found


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def message(data):
    return b"\0" + struct.pack(">I", len(data)) + data


class Connection:
    """HTTP/2 as far as gRPC needs it (RFC 9113), with headers that use no compression (RFC 7541)."""

    def __init__(self, address, stream_window=65535):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.next_stream = 1
        self.ended = {}
        self.window, self.stream_windows, self.initial_window = 65535, {}, 65535
        self.messages = {}
        settings = struct.pack(">HI", 4, stream_window) if stream_window != 65535 else b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings) +
                            frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_MAX - 65535)))

    def open(self, method, keep=False):
        stream, self.next_stream = self.next_stream, self.next_stream + 2

        def text(value):
            return bytes([len(value)]) + value.encode()

        # Indexed: ":method: POST", ":scheme: http"; by indexed name: ":path", ":authority", "content-type" (15 + 16).
        block = (b"\x83\x86\x04" + text(method) + b"\x01" + text("test") + b"\x0f\x10" + text("application/grpc") +
                 b"\0" + text("te") + text("trailers"))
        self.socket.sendall(frame(HEADERS, 4, stream, block))
        self.stream_windows[stream] = self.initial_window
        if keep:
            self.messages[stream] = bytearray()
        return stream

    def send(self, stream, data, last):
        """Respects the server's windows."""
        while True:
            size = min(len(data), 16384, self.window, self.stream_windows[stream])
            if size > 0 or not data:
                self.socket.sendall(frame(DATA, 1 if last and size == len(data) else 0, stream, data[:size]))
                self.window -= size
                self.stream_windows[stream] -= size
                data = data[size:]
                if not data:
                    return
            else:
                self.receive()

    def call(self, method, request, keep=False):
        stream = self.open(method, keep)
        self.send(stream, message(request), True)
        return stream

    def receive(self):
        """What has come, waiting for it where nothing has; False at the connection's end."""
        data = self.socket.recv(4 * MIB)
        self.received += data
        at = 0
        while len(self.received) - at >= 9:
            size = int.from_bytes(self.received[at:at + 3], "big")
            if len(self.received) - at < 9 + size:
                break
            kind, flags = self.received[at + 3], self.received[at + 4]
            stream = int.from_bytes(self.received[at + 5:at + 9], "big")
            self.take(kind, flags, stream, self.received[at + 9:at + 9 + size])
            at += 9 + size
        del self.received[:at]
        return len(data) > 0

    def take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                if name == 4:
                    for one in self.stream_windows:
                        self.stream_windows[one] += value - self.initial_window
                    self.initial_window = value
            self.socket.sendall(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.socket.sendall(frame(PING, 1, 0, bytes(payload)))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self.window += more
            elif stream in self.stream_windows:
                self.stream_windows[stream] += more
        elif kind == HEADERS and stream in self.messages and b"grpc-message" in payload:
            print("a call failed:", payload[payload.index(b"grpc-message"):].decode(errors="replace"), flush=True)
        elif kind == DATA and stream in self.messages:
            self.messages[stream] += payload
            if payload:
                more = struct.pack(">I", len(payload))
                self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, stream, more))
        if kind == RST_STREAM or kind in (DATA, HEADERS) and flags & 1:
            self.ended.setdefault(stream, time.monotonic())

    def await_end(self, stream):
        while stream not in self.ended:
            if not self.receive():
                raise SystemExit("the connection ended")
        data, parts, at = self.messages.pop(stream, b""), [], 0
        while at < len(data):
            size = int.from_bytes(data[at + 1:at + 5], "big")
            parts.append(bytes(data[at + 5:at + 5 + size]))
            at += 5 + size
        return parts


def read_blob(address, digest, size):
    """Seconds to read the blob on a connection of its own. Of data only the frames' heads are looked at: it is the server's time
    that is asked for."""
    connection = Connection(address, WIDE_WINDOW)
    begin = time.monotonic()
    stream = connection.call("/quantgate.v1.Blobs/Read", field(1, digest))
    buffer = memoryview(bytearray(4 * MIB))
    have = data_bytes = 0
    while stream not in connection.ended:
        received = connection.socket.recv_into(buffer[have:])
        if received == 0:
            raise SystemExit("the connection ended")
        have += received
        at = 0
        while have - at >= 9:
            length = int.from_bytes(buffer[at:at + 3], "big")
            if have - at < 9 + length:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            data_bytes += length if kind == DATA else 0
            payload = b"" if kind == DATA else bytes(buffer[at + 9:at + 9 + length])
            connection.take(kind, flags, int.from_bytes(buffer[at + 5:at + 9], "big"), payload)
            at += 9 + length
        buffer[:have - at] = bytes(buffer[at:have])
        have -= at
    if data_bytes < size:
        raise SystemExit("the blob did not come whole")
    connection.socket.close()
    return time.monotonic() - begin


def upload(address, data):
    connection = Connection(address)
    digest = field(1, hashlib.sha256(data).digest()) + field(2, len(data))
    stream = connection.open("/quantgate.v1.Blobs/Write")
    connection.send(stream, message(field(1, field(1, "load") + field(2, digest))), False)
    for at in range(0, len(data), MIB):
        connection.send(stream, message(field(2, data[at:at + MIB])), at + MIB >= len(data))
    connection.await_end(stream)
    return digest


def generated(seed, *shape):
    kind = field(1, "bf16") + field(2, b"".join(varint(extent) for extent in shape))
    return field(3, field(1, "normal") + field(2, seed) + field(3, kind))


def run_once(address):
    """The id of a run whose events, its outputs among them, are as large as they get."""
    weight = field(1, "weight") + field(2, generated(2, 512, 256))
    step = field(1, field(1, "linear")) + field(2, generated(1, 512, 256)) + field(3, generated(3, 512, 512))
    variants = b"".join(
        field(2, field(1, field(1, name)) + (field(2, mode) if mode else b"") + field(3, arithmetic))
        for name in ("fp8_current", "fp8_block") for mode in ("", "high_precision", "dequantized")
        for arithmetic in ("sm90", "fp32", "exact"))
    spec = field(1, step + field(4, weight)) + variants
    connection = Connection(address)
    stream = connection.call("/quantgate.v1.Engine/Execute", field(1, spec), keep=True)
    events = connection.await_end(stream)
    if not events:
        raise SystemExit("the run failed")
    sizes = sorted(len(event) for event in events)
    print(f"the run has {len(events)} events, {sum(sizes)} bytes, the largest {sizes[-1]}", flush=True)
    return fields(events[0])[1][0]


class Server:
    def __init__(self, program, directory):
        self.log_path = os.path.join(directory, "log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [program, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--data-dir",
                 os.path.join(directory, "data")], stdout=subprocess.PIPE, stderr=log, text=True)
        ready = self.process.stdout.readline().split()
        self.address = ("127.0.0.1", int(ready[3].rstrip(",").rsplit(":", 1)[1]))
        self.metrics_url = ready[-1]

    def resident(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def metric(self, series):
        with urllib.request.urlopen(self.metrics_url, timeout=30) as answer:
            found = re.search(rf"^{re.escape(series)} (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


class Reader:
    """Another process that reads the blob again and again, as other clients are."""

    def __init__(self, server, digest, size, count):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--reader", f"{server.address[1]},{digest.hex()},{size},{count}"],
            stdout=subprocess.PIPE, text=True)

    def times(self, until=float("inf")):
        """Of the reads that began before that moment."""
        reads = [[float(word) for word in line.split()] for line in self.process.communicate()[0].splitlines()]
        return [seconds for begin, seconds in reads if begin < until]


class Watch:
    """Reads the connections, as gRPC does beneath streams that nobody reads, and looks at the server's memory."""

    def __init__(self, server, connections):
        self.server, self.connections = server, connections
        self.selector = selectors.DefaultSelector()
        for connection in connections:
            self.selector.register(connection.socket, selectors.EVENT_READ, connection)
        self.resident_max = self.inflight_max = 0
        self.looked = 0.0
        self.received_at = time.monotonic()

    def turn(self):
        for key, _ in self.selector.select(0.1):
            self.received_at = time.monotonic()
            if not key.data.receive():
                self.selector.unregister(key.fileobj)
        self.resident_max = max(self.resident_max, self.server.resident())
        if time.monotonic() - self.looked > 1:
            self.looked = time.monotonic()
            self.inflight_max = max(self.inflight_max, self.server.metric('quantgate_inflight_bytes{kind="send"}'))

    def ended(self):
        return sum(len(connection.ended) for connection in self.connections)


def measure(server, arguments):
    data = random.Random(1).randbytes(arguments.blob_mib * MIB)
    digest = upload(server.address, data)
    method, request = {
        "read": ("/quantgate.v1.Blobs/Read", field(1, digest)),
        "wait": ("/quantgate.v1.Engine/WaitRun", None),
        "scenarios": ("/quantgate.v1.Scenarios/Run", b""),
    }[arguments.kind]
    if request is None:
        request = field(1, run_once(server.address))
    alone = statistics.median(Reader(server, digest, len(data), arguments.reads).times())
    time.sleep(2)
    resident = server.resident()
    print(f"at the start: {resident / MIB:.0f} MiB, a reader takes {alone:.3f} s", flush=True)
    connections = [Connection(server.address) for _ in range(arguments.connections)]
    reader = Reader(server, digest, len(data), 1000)
    reader.process.stdout.readline()  # It has begun.
    begin = time.monotonic()
    for i in range(arguments.streams):
        connections[i % len(connections)].call(method, request)
    watch = Watch(server, connections)
    while time.monotonic() - watch.received_at < 0.5:
        watch.turn()
    reader.process.terminate()
    times = reader.times(watch.received_at)
    filling = statistics.fmean(times) / alone
    print(f"while they fill, {watch.received_at - begin:.2f} s long, a reader takes {filling:.2f} times as long, at most "
          f"{max(times) / alone:.2f}", flush=True)
    while time.monotonic() - begin < 5:
        watch.turn()
    print(f"after 5 s: {server.resident() / MIB:.0f} MiB, {watch.ended()} streams have ended", flush=True)
    reader = Reader(server, digest, len(data), arguments.reads)
    while reader.process.poll() is None:
        watch.turn()
    beside = statistics.median(reader.times())
    slower = beside / alone
    print(f"beside them a reader takes {beside:.3f} s, {slower:.2f} times as long", flush=True)
    while watch.ended() < arguments.streams and time.monotonic() - begin < 2 * REAPED_WITHIN:
        watch.turn()
    ends = sorted(end - begin for connection in connections for end in connection.ended.values())
    last = ends[-1] if len(ends) == arguments.streams else float("inf")
    settled = time.monotonic() + SETTLE
    while time.monotonic() < settled:
        watch.turn()
    left = server.resident() - resident
    print(f"at most {watch.resident_max / MIB:.0f} MiB, and {watch.inflight_max / MIB:.0f} MiB in quantgate_inflight_bytes; "
          f"{len(ends)} streams ended, from {ends[0] if ends else 0:.0f} s to {last:.0f} s; "
          f"{SETTLE:.0f} s later {left / MIB:+.0f} MiB", flush=True)
    refused = server.metric('quantgate_rejected_total{reason="bytes_budget"}')
    print(f"unread: {server.metric('quantgate_calls_unread_total'):.0f}, refused for room: {refused:.0f}", flush=True)
    return (watch.resident_max <= RSS_MAX and watch.inflight_max > 0 and last <= REAPED_WITHIN and left <= RSS_LEFT_MAX and
            max(filling, slower) <= SLOWER_MAX)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program")
    parser.add_argument("--kind", choices=("read", "wait", "scenarios"), default="read")
    parser.add_argument("--streams", type=int, default=3000)
    parser.add_argument("--connections", type=int, default=24)
    parser.add_argument("--blob-mib", type=int, default=64)
    parser.add_argument("--reads", type=int, default=5)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        port, digest, size, count = arguments.reader.split(",")
        for _ in range(int(count)):
            print(time.monotonic(), read_blob(("127.0.0.1", int(port)), bytes.fromhex(digest), int(size)), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        server = Server(arguments.program, directory)
        try:
            good = measure(server, arguments)
        finally:
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(60)
            except subprocess.TimeoutExpired:
                server.process.kill()
            with open(server.log_path, encoding="utf-8") as log:
                print("log:", log.read().strip() or "(empty)")
    print("within the bounds" if good else "NOT within the bounds")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
