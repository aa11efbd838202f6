"""Files of cases in the safetensors format, in numpy alone: what a library made of the sources, and by which call.

Sources lie in sources.safetensors as NAME.source. A library's file has per case NAME.codes, NAME.scale and where there
are such NAME.zero_point, NAME.tensor_scale (of a whole tensor, under block scales) and NAME.table (values of codes).

The metadata "cases" is a list in JSON; per case: name, source (a tensor of sources.safetensors), rule (a function of
rules.py), arguments (of the rule), format (of the elements), block (tensor, row, column, ROWSxCOLUMNS, or in words),
packing of the codes, scale_is ("divides": x / scale made the codes, or "multiplies", or in words), call (what made it).
"library" and "version" are those of all cases of a file, "made_with" what the library computes with.
"""

import json
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "data" / "libraries"
WIDTHS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "I8": np.int8, "I32": np.int32,
          "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8}
SOURCE_DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


class Source:
    """A tensor to quantize: values as float32, and the dtype that it has."""

    def __init__(self, dtype, stored):
        self.dtype = SOURCE_DTYPES[dtype]
        if self.dtype == "bf16":
            self.values = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(stored.shape)
        else:
            self.values = stored.astype(np.float32)


def write(path, tensors, metadata):
    """tensors: name to (safetensors dtype, array). Wider elements first, so that each is aligned."""
    header, offset, body = {"__metadata__": metadata}, 0, []
    for name in sorted(tensors, key=lambda n: (-np.dtype(WIDTHS[tensors[n][0]]).itemsize, n)):
        dtype, array = tensors[name]
        raw = np.ascontiguousarray(array).astype(WIDTHS[dtype], copy=False).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        body.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(body))


def read(path):
    """(tensors: name to (safetensors dtype, array), metadata)"""
    raw = pathlib.Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__")
    tensors, covered = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        width = np.dtype(WIDTHS[entry["dtype"]])
        flat = np.frombuffer(raw[8 + length + begin:8 + length + end], width)
        tensors[name] = entry["dtype"], flat.reshape(entry["shape"])
        covered += end - begin
    if covered != len(raw) - 8 - length:
        raise ValueError(f"{path}: tensors cover {covered} of {len(raw) - 8 - length} bytes")
    return tensors, metadata


def sources():
    """Name to (safetensors dtype, array), as they are stored."""
    tensors, _ = read(FOLDER / "sources.safetensors")
    return {name.removesuffix(".source"): tensor for name, tensor in tensors.items()}


class Recorder:
    """Gathers the cases of one library and writes them into its file."""

    def __init__(self, library, version, made_with=""):
        self.library, self.version, self.made_with = library, version, made_with
        self.tensors, self.cases = {}, []

    def add(self, name, source, rule, made, *, format, block, call, scale_is="divides", packing="one a byte",
            **arguments):
        """made: kind of tensor ("codes", "scale", ...) to (safetensors dtype, array)."""
        if any(case["name"] == name for case in self.cases):
            raise ValueError(f"two cases are called {name}")
        for kind, tensor in made.items():
            self.tensors[f"{name}.{kind}"] = tensor
        self.cases.append(dict(name=name, source=f"{source}.source", rule=rule, arguments=arguments, format=format,
                               block=block, packing=packing, scale_is=scale_is, call=call))

    def write(self):
        name = self.library.replace("-", "_")
        path = FOLDER / f"{name}.safetensors"
        write(path, self.tensors, {
            "library": self.library, "version": self.version, "made_with": self.made_with,
            "origin": f"tests/vectors/libraries/make_{name}.py: the library's own calls, on a CPU",
            "cases": json.dumps(self.cases)})
        print(f"{self.library} {self.version}: {len(self.cases)} cases, {path.stat().st_size} bytes")
