// A GEMM as a request describes it: checked, its tensors still references.
#pragma once

#include <array>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/service_context.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {

struct GemmWork {
  TensorReference a, a_scale_inv, a_amax, b, b_scale_inv, b_amax, c, bias, d_scale;
  GemmDesc desc;
  bool every_algorithm = false;

  std::array<TensorReference*, 9> references() {
    return {&a, &a_scale_inv, &a_amax, &b, &b_scale_inv, &b_amax, &c, &bias, &d_scale};
  }
  std::array<Tensor*, 9> tensors(GemmDesc& to) const {
    return {&to.a.data, &to.a.scale_inv, &to.a.amax, &to.b.data, &to.b.scale_inv,
            &to.b.amax, &to.c,           &to.bias,   &to.d_scale};
  }
};

absl::StatusOr<GemmWork> CheckGemmRequest(ServiceContext& context, const v1::GemmRequest& request);

/// Loads the tensors into work.desc.
absl::Status LoadGemm(ServiceContext& context, Device& device, GemmWork& work,
                      const Cancellation& cancellation);
/// The same, into host memory.
absl::Status LoadGemmToHost(ServiceContext& context, Device& device, GemmWork& work,
                            const Cancellation& cancellation);

}  // namespace quantgate
