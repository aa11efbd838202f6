#include "server/rpc/convert_error.h"

#include <string>

#include "server/limits.h"
#include "server/wire/error_detail.h"

namespace quantgate {

grpc::Status StatusToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      CutText(std::string(status.message()), kStatusMessageBytesMax),
                      ErrorDetailToProto(error::DetailOf(status)).SerializeAsString());
}

}  // namespace quantgate
