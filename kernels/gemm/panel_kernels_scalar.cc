// Panel kernels in portable C++: the same packed operands, integer sums, no rounding mode.
#include <cmath>

#include "kernels/gemm/panel.h"
#include "kernels/gemm/panel_decode.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {
namespace {

struct Scalar {};

/// 2^exponent in double, for exponents within its normal range.
double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<int64_t>(exponent + 1023) << 52);
}

/// One fused step of kColumns accumulators. Products, and products scaled by a power of two, are
/// exact in double, and the conversion to an integer truncates toward zero: exactly q_t.
template <class Panel, class Step>
void FusedStepOfRow(const PanelTask<Panel>& task, int64_t row, int step_index,
                    float* accumulators) {
  constexpr int kColumns = Panel::kColumns;
  const int64_t a_offset = (step_index * task.a_rows + row) * task.step;
  const auto* a = task.a + a_offset;
  const auto* a_exponents = task.a_exponents + a_offset;
  const int64_t k_begin = int64_t(step_index) * task.step;
  const auto* b = task.b + k_begin * 2 * kColumns;
  const auto* b_exponents = task.b_exponents + k_begin * kColumns;

  int exponent_max[kColumns];
  for (int j = 0; j < kColumns; ++j) {
    const Unpacked c = Unpack<Float32>(std::bit_cast<uint32_t>(accumulators[j]));
    exponent_max[j] = c.kind == FloatClass::kFinite ? c.exponent : kFusedExponentFloor;
  }
  for (int k = 0; k < task.step; ++k) {
    if (a[k] == 0) continue;
    for (int j = 0; j < kColumns; ++j) {
      const int exponent = a_exponents[k] + b_exponents[k * kColumns + j];
      if (exponent > exponent_max[j]) exponent_max[j] = exponent;
    }
  }
  double scale[kColumns];
  int64_t sum[kColumns];
  for (int j = 0; j < kColumns; ++j) {
    scale[j] = PowerOfTwo(Step::kAlignBits - exponent_max[j]);
    const bool infinite = std::isinf(accumulators[j]);
    sum[j] = infinite ? 0 : static_cast<int64_t>(double(accumulators[j]) * scale[j]);
  }
  for (int k = 0; k < task.step; ++k) {
    if (a[k] == 0) continue;
    const double a_value = a[k];
    const auto* positive = b + k * 2 * kColumns;
    const auto* negative = positive + kColumns;
    for (int j = 0; j < kColumns; ++j) {
      const double product = a_value * (double(positive[j]) + double(negative[j]));
      sum[j] += static_cast<int64_t>(product * scale[j]);
    }
  }
  for (int j = 0; j < kColumns; ++j) {
    // An accumulator that overflowed stays infinite: all products here are finite.
    if (std::isinf(accumulators[j])) continue;
    accumulators[j] = std::bit_cast<float>(
        TruncateToFloat32(sum[j], exponent_max[j] - Step::kAlignBits, Step::kOutMantissa));
  }
}

template <class Panel, class Step>
void Multiply(const PanelTask<Panel>& task) {
  for (int step = 0; step < task.steps; ++step) {
    for (int64_t row = 0; row < task.rows; ++row) {
      FusedStepOfRow<Panel, Step>(task, row, step, task.accumulators + row * Panel::kColumns);
    }
  }
}

void MultiplyFp32(const Fp32Task& task) {
  for (int64_t row = 0; row < task.rows; ++row) {
    float* accumulators = task.accumulators + row * kFp32Columns;
    for (int k = 0; k < task.depth; ++k) {
      const float a = task.a[row * task.a_stride + k];
      const float* b = task.b + int64_t(k) * kFp32Columns;
      for (int j = 0; j < kFp32Columns; ++j) {
        accumulators[j] = std::fma(a, b[j], accumulators[j]);
      }
    }
  }
}

using Decode = PanelDecode<Scalar>;

}  // namespace

const KernelTable kKernelsScalar = {
    {Decode::NarrowRow, Decode::NarrowColumns, Multiply<NarrowPanel, WgmmaFp8>},
    {Decode::WideRow, Decode::WideColumns, Multiply<WidePanel, Wgmma16Bit>},
    MultiplyFp32,
};

}  // namespace quantgate
