#!/usr/bin/env python3
"""Opens more connections to a quantgated than its descriptors allow, closes them, and measures when it serves again.

  connections_load.py --program build/release/bin/quantgated --limit 64 --connections 1124

Prints one line per stage; exit code 0 when a new connection was served within 5 seconds of the others' end."""
import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SERVED_WITHIN = 5.0


def start(program, limit, directory):
    def bound():
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    log = open(os.path.join(directory, "log"), "w", encoding="utf-8")
    server = subprocess.Popen(
        [program, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--data-dir",
         os.path.join(directory, "data")], stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=bound)
    ready = server.stdout.readline().split()
    port = int(ready[3].rstrip(",").rsplit(":", 1)[1])
    http = ready[-1].removesuffix("/metrics")
    return server, port, http


def page(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError as error:
        return 0, str(error)


def is_served(port):
    """Whether an HTTP/2 connection gets the server's settings, within a second."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(PREFACE)
            return len(connection.recv(9)) == 9
    except OSError:
        return False


def describe(server, http):
    descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
    status, _ = page(http + "/readyz")
    _, metrics = page(http + "/metrics")
    counts = [line.removeprefix("quantgate_") for line in metrics.splitlines()
              if line.startswith(("quantgate_connections", "quantgate_accept_failures"))]
    return f"{descriptors} descriptors, /readyz {status}, " + (", ".join(counts) or "no counts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1124)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with tempfile.TemporaryDirectory() as directory:
        server, port, http = start(arguments.program, arguments.limit, directory)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            print("at the start:", describe(server, http), flush=True)
            opened = []
            for _ in range(arguments.connections):
                connection = socket.socket()
                connection.settimeout(2)
                try:
                    connection.connect(("127.0.0.1", port))
                except OSError:
                    pass
                opened.append(connection)
            time.sleep(1)
            print(f"with {len(opened)} connections:", describe(server, http), flush=True)
            for connection in opened:
                connection.close()
            closed = time.monotonic()
            served = False
            while not served and time.monotonic() - closed < 4 * SERVED_WITHIN:
                served = is_served(port)
            seconds = time.monotonic() - closed
            print(f"after {seconds:.2f} s a new connection was", "served" if served else "NOT served", flush=True)
            while page(http + "/readyz")[0] != 200 and time.monotonic() - closed < 4 * SERVED_WITHIN:
                time.sleep(0.05)
            print(f"after {time.monotonic() - closed:.2f} s:", describe(server, http), flush=True)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        with open(os.path.join(directory, "log"), encoding="utf-8") as log:
            print("log:", log.read().strip() or "(empty)")
    return 0 if served and seconds <= SERVED_WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
