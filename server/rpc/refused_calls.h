// Calls that are refused before any code of a method runs: their request is malformed, or the
// server does not have their method. gRPC alone would end both as UNIMPLEMENTED without a text.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <vector>

#include "server/metrics/metrics.h"

namespace quantgate {

using InterceptorFactories =
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>;

/// For the builder of a server: ends calls with a malformed request with INVALID_ARGUMENT that
/// names the message, and counts them as other calls. `metrics` must outlive the server.
InterceptorFactories MakeMalformedCallAnswers(Metrics& metrics);

/// For the builder of a server: ends calls of unknown methods with UNIMPLEMENTED that names the
/// method, and counts them together. It and `metrics` must outlive the server.
std::unique_ptr<grpc::CallbackGenericService> MakeUnknownMethods(Metrics& metrics);

}  // namespace quantgate
