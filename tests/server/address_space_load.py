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
import subprocess
import sys
import tempfile

MIB = 1 << 20


def first_line(process, seconds):
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else ""


def ask(client, address, directory):
    """The exit codes of a modest load of every service."""
    codes = []
    for command in (["info"], ["tensor", "put", os.path.join(directory, "x.npy"), "--name", "x"], ["tensor", "list"],
                    ["quantize", "gen:normal:1:bf16:256x256", "--recipe", "mxfp8"],
                    ["gemm", "gen:normal:1:bf16:256x256", "gen:normal:2:bf16:256x256"],
                    ["verify", "--input", "gen:normal:1:bf16:512x512", "--weight", "gen:normal:2:bf16:512x512", "--recipe", "mxfp8"],
                    ["scenario", "run", "--server", address], ["session", "list"]):
        done = subprocess.run([client, *command, "--server", address] if "--server" not in command else [client, *command],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False)
        codes.append(done.returncode)
    return codes


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
