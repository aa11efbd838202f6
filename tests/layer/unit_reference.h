// A linear unit composed by hand from the CPU operations, without the layer: each operand quantized
// on its own, in the one direction that its GEMM reads, and every GEMM turned to TN. What the
// overrides read follows the table of docs/quantizers.md section 9.
#pragma once

#include <array>

#include "kernels/gemm/gemm.h"
#include "kernels/quantize/recipe.h"

namespace quantgate {

class UnitReference {
 public:
  /// `scales` of delayed scaling: of input, weight, grad_output.
  UnitReference(const Recipe& recipe, DType activation, uint64_t seed, uint32_t first_call_id,
                std::array<float, 3> scales)
      : recipe_(recipe),
        activation_(activation),
        seed_(seed),
        first_call_id_(first_call_id),
        scales_(scales) {}

  /// x [M][K] in the activation dtype, or f32 where it goes to the quantizer unrounded; weight
  /// [N][K] and bias of any dtype, no bias: none.
  Tensor Fprop(const Tensor& x, const Tensor& weight, const Tensor& bias) const;
  /// dy [M][N] likewise.
  Tensor Dgrad(const Tensor& dy, const Tensor& weight) const;
  /// Accumulated into `main_grad` where there is one.
  Tensor Wgrad(const Tensor& dy, const Tensor& x, const Tensor& main_grad) const;

 private:
  QuantizedTensor Quantized(TensorRole role, const Tensor& source, Usage usage) const;
  GemmOperand Plain(const Tensor& matrix, Usage usage) const;
  GemmOperand Operand(TensorRole role, const Tensor& source, Usage usage, bool is_backward) const;
  Tensor Product(GemmRole gemm, GemmDesc desc) const;

  const Recipe& recipe_;
  const DType activation_;
  const uint64_t seed_;
  const uint32_t first_call_id_;
  const std::array<float, 3> scales_;
};

}  // namespace quantgate
