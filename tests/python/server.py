"""A quantgated on loopback, of which the tests' process is sure to be rid, and a wire to it that counts and breaks."""

import contextlib
import os
import pathlib
import re
import socket
import subprocess
import threading
import urllib.request

PROGRAM = os.environ.get("QUANTGATE_PROGRAM", "quantgate")
SERVER = os.environ.get("QUANTGATED_PROGRAM", str(pathlib.Path(PROGRAM).with_name("quantgated")))


class Server:
    """A process that ends after LIFE seconds at the latest, on a free port, with one thread: what is long enough to be
    interrupted does not depend on the number of CPUs."""

    LIFE = 900

    def __init__(self, data_dir, listen="127.0.0.1:0"):
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            ["timeout", "--kill-after=5", str(self.LIFE), SERVER, "--listen", listen, "--metrics-listen", "127.0.0.1:0",
             "--data-dir", str(data_dir), "--grace", "1", "--threads", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told = ""
        for line in self.process.stdout:
            told += line
            ready = re.search(r"quantgated ready on (\S+), metrics on (\S+)", line)
            if ready:
                self.address, self.metrics_url = ready.groups()
                break
        else:
            raise RuntimeError(f"{SERVER} did not start: {told}")
        # What it says later must not fill the pipe.
        self.reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.reader.start()

    def metric(self, series):
        """The value of a series, 0 where it is not there yet."""
        text = urllib.request.urlopen(self.metrics_url, timeout=10).read().decode()
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stdout.close()


@contextlib.contextmanager
def serving(data_dir, listen="127.0.0.1:0"):
    server = Server(data_dir, listen)
    try:
        yield server
    finally:
        server.stop()


class Wire:
    """A way to a server that counts bytes, and breaks when it is told to.

    Attributes
    ----------
    sent, received : int
        Bytes to and from the server.
    cut_at : dict of str to int
        Breaks every connection once "sent" or "received" is so many, once.
    """

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        self.sent = self.received = self.connections = 0
        self.cut_at = {}
        self.sockets = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            self.sockets |= {near, far}
            for source, sink, way in ((near, far, "sent"), (far, near, "received")):
                threading.Thread(target=self._pump, args=(source, sink, way), daemon=True).start()

    def _pump(self, source, sink, way):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                setattr(self, way, getattr(self, way) + len(data))
                if way in self.cut_at and getattr(self, way) >= self.cut_at[way]:
                    del self.cut_at[way]
                    self.cut()
                sink.sendall(data)
        self._shut(source, sink)

    @staticmethod
    def _shut(*ends):
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Breaks what is connected; what connects later is served."""
        self._shut(*self.sockets)
        self.sockets.clear()

    def close(self):
        self._shut(self.listener)
        self.listener.close()
        self.cut()
