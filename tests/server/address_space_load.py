#!/usr/bin/env python3
"""Starts a quantgated under bounds on its address space, asks it for what it does, and looks at how it ends.

  address_space_load.py --program build/release/bin/quantgated --client build/release/bin/quantgate --starts 60

Prints a line per bound; exit code 0 when no start ended by a signal, or with an empty log."""
import argparse
import collections
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile

MIB = 1 << 20


def first_line(process, seconds):
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else ""


def write_npy(path):
    """Zeros, f32[1024x1024]."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1024, 1024)}"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(4 * MIB))


def ask(client, address, directory):
    """The exit codes of a modest load of every service."""
    tensors = ["gen:normal,seed=1,shape=512x512,dtype=bf16", "gen:normal,seed=2,shape=512x512,dtype=bf16"]
    commands = (["info"], ["tensor", "put", os.path.join(directory, "x.npy")], ["tensor", "ls"],
                ["quantize", tensors[0], "--recipe", "mxfp8", "--role", "input"],
                ["gemm", "--a", tensors[0], "--b", tensors[1]],
                ["run", "--input", tensors[0], "--weight", tensors[1], "--grad-output", tensors[0], "--recipe", "fp8_current"],
                ["scenario", "run", "a-step-keeps-its-group"], ["session", "ls"])
    return [subprocess.run([client, "--server", address, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           timeout=120, check=False).returncode for command in commands]


def start(program, client, bound, directory):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))

    log_path = os.path.join(directory, "log")
    with open(log_path, "wb") as log:
        server = subprocess.Popen(
            [program, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--data-dir",
             os.path.join(directory, "data")], stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=limit)
    ready = first_line(server, 30)
    codes = []
    if ready.startswith("quantgated ready"):
        address = ready.split()[3].rstrip(",")
        if client:
            write_npy(os.path.join(directory, "x.npy"))
            codes = ask(client, address, directory)
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    with open(log_path, encoding="utf-8", errors="replace") as log:
        return bool(ready), server.returncode, codes, log.read().strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--client", help="quantgate, to ask for a load; without it servers only start")
    parser.add_argument("--least", type=int, default=200, help="MiB")
    parser.add_argument("--most", type=int, default=1024, help="MiB")
    parser.add_argument("--starts", type=int, default=60)
    arguments = parser.parse_args()
    bad = 0
    kinds = collections.Counter()
    for i in range(arguments.starts):
        bound = arguments.least + (arguments.most - arguments.least) * i // max(1, arguments.starts - 1)
        with tempfile.TemporaryDirectory() as directory:
            was_ready, code, codes, log = start(arguments.program, arguments.client, bound * MIB, directory)
        silent = code != 0 and not log
        bad += silent or code < 0
        kinds[("ready" if was_ready else "not ready", code)] += 1
        print(f"{bound} MiB: {'ready' if was_ready else 'not ready'}, exit code {code}, "
              f"clients {''.join(map(str, codes))}: {log.splitlines()[-1] if log else '(empty log)'}", flush=True)
    print(dict(kinds))
    print(f"{bad} of {arguments.starts} ended by a signal or without a word")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
