"""quantgated on a free port of the loopback interface, called through a stub made from proto/.

The stub is made by protoc and its plugin for gRPC's Python, so that all it takes are packages of the distribution:
`PACKAGES`, which deploy/install_packages.sh --tests installs.
"""

import hashlib
import importlib
import pathlib
import shutil
import subprocess
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGES = {"numpy": "python3-numpy", "grpc": "python3-grpcio", "google.protobuf": "python3-protobuf",
            "protoc": "protobuf-compiler", "grpc_python_plugin": "protobuf-compiler-grpc"}


def lacking():
    """The packages that this Python, or the PATH, has not."""
    names = []
    for need, package in PACKAGES.items():
        if need in ("protoc", "grpc_python_plugin"):
            is_there = shutil.which(need) is not None
        else:
            try:
                importlib.import_module(need)
                is_there = True
            except ImportError:
                is_there = False
        if not is_there:
            names.append(package)
    return names


def make_stub(folder):
    """Writes the modules of all protos into `folder`, which imports then find. Gives their names."""
    protos = sorted((ROOT / "proto/quantgate/v1").glob("*.proto"))
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                    f"--plugin=protoc-gen-grpc_python={shutil.which('grpc_python_plugin')}", *map(str, protos)], check=True)
    sys.path.insert(0, str(folder))
    return [f"quantgate.v1.{proto.stem}_pb2" for proto in protos]


def messages_of(module_names):
    """Every message, and every value of an enum, of these modules by its name."""
    found = types.SimpleNamespace()
    for name in module_names:
        module = importlib.import_module(name)
        for message in module.DESCRIPTOR.message_types_by_name:
            setattr(found, message, getattr(module, message))
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            for value in enum.values:
                setattr(found, value.name, value.number)
    return found


class Service:
    """A server with an empty data folder below `folder`, until `stop`. `pb` has the messages, `engine`, `sessions` and
    `blobs` the calls."""

    def __init__(self, program, folder):
        import grpc
        folder = pathlib.Path(folder)
        (folder / "stub").mkdir()
        modules = make_stub(folder / "stub")
        self.pb = messages_of(modules)
        self.process = subprocess.Popen([str(program), "--listen", "127.0.0.1:0", "--metrics-listen", "", "--data-dir",
                                         str(folder / "data")], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        ready = "quantgated ready on "
        if not line.startswith(ready):
            self.stop()
            raise RuntimeError(f"{program} is not ready, it said {line!r}")
        self.channel = grpc.insecure_channel(line[len(ready):].split()[0], [("grpc.enable_http_proxy", 0)])

        def stub(name):
            return getattr(importlib.import_module(f"quantgate.v1.{name.lower()}_service_pb2_grpc"), name + "Stub")(self.channel)
        self.engine, self.sessions, self.blobs = stub("Engine"), stub("Sessions"), stub("Blobs")

    def stop(self):
        """Gives the server's exit code."""
        if hasattr(self, "channel"):
            self.channel.close()
        self.process.terminate()
        self.process.communicate(timeout=60)
        return self.process.returncode

    def bytes_of(self, named):
        """The bytes of a NamedTensor, from the blob where they are not in the message; its digest is held to them."""
        if named.HasField("data"):
            return named.data
        data = b"".join(part.data for part in self.blobs.Read(self.pb.ReadRequest(digest=named.digest)))
        if hashlib.sha256(data).digest() != named.digest.sha256 or len(data) != named.digest.size:
            raise AssertionError(f"{named.name}: the blob has other bytes than its digest says")
        return data

    def execute(self, spec):
        """Runs a RunSpec. Gives the reports of its variants and that of the run."""
        variants = {}
        for event in self.engine.Execute(self.pb.ExecuteRequest(spec=spec)):
            if event.HasField("variant"):
                variants[event.variant.index] = event.variant.report
        if not event.HasField("finished") or event.finished.state != self.pb.RUN_STATE_SUCCEEDED:
            raise AssertionError(f"the run did not succeed: {event}")
        return [variants[index] for index in range(len(spec.variants))], event.finished.report

    def trace(self, request):
        """The events of a trace."""
        events = list(self.sessions.RunTrace(request))
        if events[-1].finished.state != self.pb.RUN_STATE_SUCCEEDED:
            raise AssertionError(f"the trace did not succeed: {events[-1]}")
        return events
