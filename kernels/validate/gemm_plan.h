// GemmPlan: the request of one GEMM, checked before any tensor is loaded, with the scalings of its
// operands found. Create is the last place that can say INVALID_ARGUMENT.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/gemm.h"
#include "kernels/validate/tensor_slot.h"

namespace quantgate {

/// An operand with its scales as files have them. Codes of three and more dims are flattened to
/// [rows][K]; the scaling says which dtype U8 stands for.
struct GemmOperandRequest {
  Tensor data;
  Tensor scale_inv;
  Tensor amax;
  std::optional<ScaleMode> scaling;  ///< Absent: found from the dtype and shape of scale_inv.
  std::optional<int> e4m3_max;       ///< Only for nv16; absent: 448.
  Tensor zero_point;                 ///< Codes of levels alone.
  std::optional<int> group;  ///< Codes of levels; absent: found from the shape of scale_inv.
};

struct GemmRequest {
  GemmOperandRequest a, b;
  GemmLayout layout = GemmLayout::kTN;
  Arithmetic arithmetic;
  bool every_algorithm = false;  ///< cublaslt: run and compare every algorithm that it suggests.
  float alpha = 1.0f, beta = 0.0f;
  Tensor c, bias, d_scale;
  bool in_place = false;
  DType out_dtype = DType::kF32;
};

class GemmPlan {
 public:
  /// Slots: "a.tensor", "a.scale_inv", "a.zero_point", "a.amax", the same of b, "c", "bias",
  /// "d_scale". Errors name these, or members of a GemmDesc.
  static absl::StatusOr<GemmPlan> Create(GemmRequest request);
  const GemmDesc& desc() const { return desc_; }
  const GemmShape& shape() const { return shape_; }
  bool every_algorithm() const { return every_algorithm_; }
  /// This plan with its tensors loaded.
  absl::StatusOr<GemmPlan> WithTensors(SlotLoader load) const;
  /// This plan, whose tensors are loaded, with codes of levels beside an operand in high precision
  /// dequantized to its dtype; desc() has outlines of them before.
  absl::StatusOr<GemmPlan> Dequantized(Engine& engine, const Cancellation* cancellation) const;

 private:
  GemmPlan(GemmDesc desc, GemmShape shape, bool every_algorithm)
      : desc_(std::move(desc)), shape_(shape), every_algorithm_(every_algorithm) {}
  GemmDesc desc_;
  std::optional<QuantizedTensor> levels_a_, levels_b_;  ///< What is to be dequantized.
  GemmShape shape_;
  bool every_algorithm_;
};

}  // namespace quantgate
