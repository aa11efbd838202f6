// Calls whose message is malformed. gRPC parses most of them before any code of a method runs, and
// would end them as UNIMPLEMENTED without a word.
#pragma once

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

}  // namespace quantgate
