"""Verbs over an object of Python that carries the messages: here to a connection in this process."""

import base64
import json

import numpy as np
import pytest

import quantgate as qg
from quantgate import _engine, _errors

REQUESTS = {"Engine/Compare": "CompareRequest", "Engine/Diagnose": "DiagnoseRequest", "Tensors/Put": "PutTensorRequest",
            "Blobs/FindMissing": "FindMissingRequest", "Info/ListRecipes": "ListRecipesRequest",
            "Blobs/QueryWrite": "QueryWriteRequest",
            "Info/GetCapabilities": "GetCapabilitiesRequest", "Info/ListArithmetics": "ListArithmeticsRequest"}


class Loopback:
    """What a transport over grpcio does, without a network."""

    def __init__(self):
        self.peer = _engine.Client.local("cpu", 0)
        self.methods = []
        self.uploaded = 0

    def unary(self, method, request, timeout, is_farewell):
        self.methods.append(method)
        return self.peer.call(method, _engine.request_json(REQUESTS[method], request))

    def write(self, method, next_message, timeout):
        assert method == "Blobs/Write"
        parts = [json.loads(_engine.request_json("WriteRequest", message)) for message in iter(next_message, None)]
        data = b"".join(base64.b64decode(part.get("data", "")) for part in parts)
        stored, size = self.peer.upload(_engine.wrap(np.frombuffer(data, np.uint8), "u8"))
        assert stored == base64.b64decode(parts[0]["header"]["digest"]["sha256"]) and size == len(data)
        self.uploaded += size
        return _engine.encode("WriteResponse", json.dumps({"committed_size": size}))

    def progress(self, what, done, size):
        pass

    def cancel(self):
        self.peer.cancel()


class Through(qg.Client):
    def __init__(self, transport):
        self.transport = transport

    def _connect(self):
        return _engine.Client.remote(self.transport, "unix:loopback", attempts_max=1)


def test_verbs_are_the_same_over_a_transport():
    transport = Loopback()
    client = Through(transport)
    rng = np.random.default_rng(2)
    a = rng.standard_normal((512, 300)).astype(np.float32)  # Larger than what travels inside a request.
    b = a.copy()
    b[7, 11] *= 2
    for subject in (a, b):
        remote, local = client.diff({"a": a}, {"a": subject}), qg.diff({"a": a}, {"a": subject})
        assert remote.passed == local.passed == (subject is a)
        assert remote.comparisons[0].to_dict() == local.comparisons[0].to_dict()
    assert transport.uploaded >= 2 * a.nbytes and "Engine/Compare" in transport.methods
    assert [recipe.name for recipe in client.info().recipes] == [recipe.name for recipe in qg.info().recipes]


def test_errors_of_a_transport_are_raised():
    class Broken(Loopback):
        def unary(self, method, request, timeout, is_farewell):
            raise _errors.from_status(14, "no route to host")

    with pytest.raises(qg.Unavailable, match="no route to host") as raised:
        Through(Broken()).info()
    assert isinstance(raised.value, ConnectionError) and raised.value.code == "UNAVAILABLE"


def test_what_a_transport_raises_by_mistake_is_raised():
    class Mistaken(Loopback):
        def unary(self, method, request, timeout, is_farewell):
            raise ZeroDivisionError(method)

    with pytest.raises(ZeroDivisionError, match="Info/GetCapabilities"):
        Through(Mistaken()).info()


def test_details_of_a_status_are_its_field_value_and_rule():
    detail = _engine.encode("ErrorDetail", json.dumps({"field": "recipe", "value": "x", "rule": "must be known"}))
    error = _errors.from_status(3, "recipe is x: must be known", detail)
    assert (error.field, error.value, error.rule) == ("recipe", "x", "must be known")
    assert isinstance(error, qg.InvalidArgument)

    class Refusing(Loopback):
        def unary(self, method, request, timeout, is_farewell):
            raise error

    with pytest.raises(qg.InvalidArgument) as raised:
        Through(Refusing()).info()
    assert raised.value.rule == "must be known"
