// The services of quantgate.v1, ready to be registered with a server. They live as long as
// `context` and `runs` do.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>

#include "server/runs/runs.h"
#include "server/service_context.h"

namespace quantgate {

std::unique_ptr<grpc::Service> MakeInfoService(ServiceContext& context);
std::unique_ptr<grpc::Service> MakeBlobsService(ServiceContext& context);
std::unique_ptr<grpc::Service> MakeTensorsService(ServiceContext& context);
std::unique_ptr<grpc::Service> MakeEngineService(ServiceContext& context, Runs& runs);
std::unique_ptr<grpc::Service> MakeScenariosService(ServiceContext& context);
std::unique_ptr<grpc::Service> MakeSessionsService(ServiceContext& context, Runs& runs);

}  // namespace quantgate
