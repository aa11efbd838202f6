// Calls of methods that this server does not have: refused by name, and counted together.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <memory>

#include "server/metrics/metrics.h"

namespace quantgate {

/// For the builder of a server, which both it and `metrics` must outlive.
std::unique_ptr<grpc::CallbackGenericService> MakeUnknownMethods(Metrics& metrics);

}  // namespace quantgate
