#!/usr/bin/env python3
"""Probes of a server while many HTTP connections drip or say nothing, and what it shows idle.

usage: slow_connections.py QUANTGATED [CONNECTIONS]

Starts the program on loopback, opens CONNECTIONS (1,000) of which half send a byte a second, and times 100 probes.
"""

import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time


def ask(port, request, timeout=60):
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(request.encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
            head, _, body = answer.partition(b"\r\n\r\n")
            if b"close" not in head.lower() and b"Content-Length" in head:
                length = int(head.split(b"Content-Length: ")[1].split()[0])
                if request.startswith("HEAD") or len(body) >= length:
                    break
    return answer.decode(), time.monotonic() - start


def get(port, path, method="GET"):
    return ask(port, f"{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")


def threads_of(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(line.split()[1] for line in status if line.startswith("Threads:"))


def main():
    program = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as data:
        server = subprocess.Popen([program, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--data-dir", data],
                                  stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().split(":")[-1].split("/")[0])
            page, _ = get(port, "/metrics")
            body = page.partition("\r\n\r\n")[2]
            series = [line for line in body.splitlines() if line and not line.startswith("#")]
            zeros = sum(line.split()[-1] in ("0", "0.000000") for line in series)
            print(f"idle: {threads_of(server.pid)} threads; /metrics {len(body)} bytes, {len(series)} series, {zeros} of them 0")
            for path in ("/healthz", "/readyz", "/metrics"):
                print(f"HEAD {path}: {get(port, path, 'HEAD')[0].splitlines()[0]}")
            slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
            is_done = threading.Event()

            def drip():
                while not is_done.wait(1):
                    for connection in slow[::2]:
                        try:
                            connection.send(b"G")
                        except OSError:
                            pass

            dripping = threading.Thread(target=drip)
            dripping.start()
            took = []
            ends = time.monotonic() + 60
            for _ in range(100):
                try:
                    answer, seconds = get(port, "/readyz")
                    took.append(seconds if " 200 " in answer.split("\r\n")[0] else float("inf"))
                except OSError:
                    took.append(float("inf"))
                if time.monotonic() > ends:
                    break
            is_done.set()
            dripping.join()
            took.sort()
            print(f"{len(took)} probes under {count} slow connections: median {took[len(took) // 2] * 1e3:.1f} ms, "
                  f"longest {took[-1] * 1e3:.1f} ms")
            for connection in slow:
                connection.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
