// PythonConnection: a Connection whose calls an object of Python carries, so that the verbs work
// over whatever Python has: grpcio, in quantgate.connect. The object's methods, all with serialized
// messages of quantgate.v1:
//
//   unary(method, request) -> response                 "Engine/Quantize", bytes
//   stream(method, request, on_message)                calls on_message(bytes) for each message
//   upload(sha256, data)                               the blob of that digest, unless it is there
//   download(sha256, size) -> bytes
//   cancel()                                           ends what is under way, from any thread
//
// Each raises quantgate.Error for a failed call.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "client/connection.h"

namespace quantgate::python {

std::unique_ptr<Connection> ConnectThrough(nanobind::object transport, const std::string& address);

}  // namespace quantgate::python
