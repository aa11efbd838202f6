// PythonConnection: a server over whatever Python has to carry messages: grpcio, in
// quantgate.connect. An object of Python makes the calls; what has to be done again after one that
// broke is decided by RemoteConnection, for every client the same. The object's methods:
//
//   unary(method, request, timeout, is_farewell) -> response
//   stream(method, request, on_message, timeout, is_farewell)
//       calls on_message(message) for each; where that is False it ends the call
//   write(method, next_message, timeout) -> response
//       sends what next_message() gives, on any thread, up to None
//   pause(seconds) -> bool         False once cancel() was called
//   progress(what, done, size)     bytes of one blob; what: "upload" or "download"
//   cancel()                       from any thread: ends what is under way, and later calls
//
// Methods are "Engine/Quantize", messages are bytes of quantgate.v1, `timeout` is in seconds or
// None. A farewell is made also after cancel(). Each raises quantgate.Error for a failed call;
// anything else, such as an interrupt, ends the connection's work and is raised by the verb.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/connection.h"

namespace quantgate::python {

/// INVALID_ARGUMENT for an address that is neither "host:port" nor "unix:/path".
absl::StatusOr<std::unique_ptr<Connection>> ConnectThrough(nanobind::object transport,
                                                           const std::string& address,
                                                           const ConnectionOptions& options);

/// What a method of the object raised that is no quantgate.Error; null where none did, and for
/// other connections.
std::exception_ptr ThrownBy(const Connection& connection);

}  // namespace quantgate::python
