// GemmPlan: one GEMM as somebody asks for it, its scalings found out, checked before anything is
// loaded. Create is the last place that can say INVALID_ARGUMENT.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/validate/tensor_slot.h"

namespace quantgate {

/// An operand with its scales as files have them: codes of three and more dims are flattened to
/// [rows][K], U8 is what the scaling says it is.
struct GemmOperandRequest {
  Tensor data;
  Tensor scale_inv;
  Tensor amax;
  std::optional<ScaleMode> scaling;  ///< Absent: what the dtype and shape of scale_inv say.
  std::optional<int> e4m3_max;       ///< Of nv16; absent: 448.
};

struct GemmRequest {
  GemmOperandRequest a, b;
  GemmLayout layout = GemmLayout::kTN;
  Arithmetic arithmetic;
  bool every_algorithm = false;  ///< Of cublaslt: each that its heuristic names, compared.
  float alpha = 1.0f, beta = 0.0f;
  Tensor c, bias, d_scale;
  bool in_place = false;
  DType out_dtype = DType::kF32;
};

class GemmPlan {
 public:
  /// Slots "a.tensor", "a.scale_inv", "a.amax", those of b, "c", "bias", "d_scale"; what is refused
  /// is named so, or by its place in a GemmDesc.
  static absl::StatusOr<GemmPlan> Create(GemmRequest request);
  const GemmDesc& desc() const { return desc_; }
  const GemmShape& shape() const { return shape_; }
  bool every_algorithm() const { return every_algorithm_; }
  absl::StatusOr<GemmPlan> WithTensors(SlotLoader load) const;

 private:
  GemmPlan(GemmDesc desc, GemmShape shape, bool every_algorithm)
      : desc_(std::move(desc)), shape_(shape), every_algorithm_(every_algorithm) {}
  GemmDesc desc_;
  GemmShape shape_;
  bool every_algorithm_;
};

}  // namespace quantgate
