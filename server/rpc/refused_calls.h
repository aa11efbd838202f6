// Calls whose message is malformed. gRPC parses most of them before any code of a method runs, and
// would end them as UNIMPLEMENTED without a word.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <vector>

#include "server/metrics/metrics.h"

namespace quantgate {

using InterceptorFactories =
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>;

/// For the builder of a server: INVALID_ARGUMENT that names the message instead, and counted as
/// other calls are. `metrics` must outlive the server.
InterceptorFactories MakeMalformedCallAnswers(Metrics& metrics);

// Calls of methods that this server does not have: refused by name, and counted together.

/// For the builder of a server, which both it and `metrics` must outlive.
std::unique_ptr<grpc::CallbackGenericService> MakeUnknownMethods(Metrics& metrics);

}  // namespace quantgate
