// The calls of the service Tensors. The caller keeps request and response until the work has ended.
#pragma once

#include "absl/status/statusor.h"
#include "quantgate/v1/tensors_service.pb.h"
#include "server/runs/call_context.h"

namespace quantgate {

absl::StatusOr<DeviceWork> PreparePutTensor(CallContext& context,
                                            const v1::PutTensorRequest& request,
                                            v1::TensorRecord& response);
absl::StatusOr<DeviceWork> PrepareGenerateTensor(CallContext& context,
                                                 const v1::GenerateTensorRequest& request,
                                                 v1::TensorRecord& response);
absl::StatusOr<DeviceWork> PrepareDescribeTensor(CallContext& context,
                                                 const v1::DescribeTensorRequest& request,
                                                 v1::TensorRecord& response);
absl::Status ListTensors(CallContext& context, const v1::ListTensorsRequest& request,
                         v1::ListTensorsResponse& response);

}  // namespace quantgate
