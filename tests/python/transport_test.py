"""Verbs over an object of Python that carries the messages: here to a connection in this process."""

import json

import numpy as np
import pytest

import quantgate as qg
from quantgate import _engine, _errors

REQUESTS = {"Engine/Compare": "CompareRequest", "Engine/Diagnose": "DiagnoseRequest", "Tensors/Put": "PutTensorRequest",
            "Blobs/FindMissing": "FindMissingRequest", "Info/ListRecipes": "ListRecipesRequest",
            "Info/GetCapabilities": "GetCapabilitiesRequest", "Info/ListArithmetics": "ListArithmeticsRequest"}


class Loopback:
    """What a transport over grpcio does, without a network."""

    def __init__(self):
        self.peer = _engine.Client.local("cpu", 0)
        self.methods = []
        self.uploaded = 0

    def unary(self, method, request):
        self.methods.append(method)
        return self.peer.call(method, _engine.request_json(REQUESTS[method], request))

    def upload(self, sha256, data):
        stored, size = self.peer.upload(_engine.wrap(np.array(data), "u8"))
        assert stored == sha256
        self.uploaded += size

    def cancel(self):
        self.peer.cancel()


class Through(qg.Client):
    def __init__(self, transport):
        self.transport = transport

    def _connect(self):
        return _engine.Client.remote(self.transport, "loopback")


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
        def unary(self, method, request):
            raise _errors.from_status(14, "no route to host")

    with pytest.raises(qg.Unavailable, match="no route to host") as raised:
        Through(Broken()).info()
    assert isinstance(raised.value, ConnectionError) and raised.value.code == "UNAVAILABLE"


def test_details_of_a_status_are_its_field_value_and_rule():
    detail = _engine.encode("ErrorDetail", json.dumps({"field": "recipe", "value": "x", "rule": "must be known"}))
    error = _errors.from_status(3, "recipe is x: must be known", detail)
    assert (error.field, error.value, error.rule) == ("recipe", "x", "must be known")
    assert isinstance(error, qg.InvalidArgument)

    class Refusing(Loopback):
        def unary(self, method, request):
            raise error

    with pytest.raises(qg.InvalidArgument) as raised:
        Through(Refusing()).info()
    assert raised.value.rule == "must be known"
