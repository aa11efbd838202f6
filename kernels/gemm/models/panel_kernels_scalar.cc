// Panel kernels in portable C++, on the same packed operands, with integer sums and no rounding
// mode.
#include <cmath>

#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/models/panel_decode.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {
namespace {

struct Scalar {};

/// 2^exponent in double, for exponents within its normal range.
double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<int64_t>(exponent + 1023) << 52);
}

constexpr int kLongestStep = 32;  // PanelTask::step.

/// One fused step of kColumns accumulators with `b`, the step's values as [step][kColumns].
/// Products, and products scaled by a power of two, are exact in double, and the conversion to an
/// integer truncates toward zero: exactly q_t.
template <class Panel>
void FusedStepOfRow(const PanelTask<Panel>& task, int64_t row, int step_index, const double* b,
                    float* accumulators) {
  constexpr int kColumns = Panel::kColumns;
  const int64_t a_offset = (step_index * task.a_rows + row) * task.step;
  const auto* a = task.a + a_offset;
  const auto* a_exponents = task.a_exponents + a_offset;
  const auto* b_exponents = task.b_exponents + int64_t(step_index) * task.step * kColumns;

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
    scale[j] = PowerOfTwo(task.align_bits - exponent_max[j]);
    const bool infinite = std::isinf(accumulators[j]);
    sum[j] = infinite ? 0 : static_cast<int64_t>(double(accumulators[j]) * scale[j]);
  }
  for (int k = 0; k < task.step; ++k) {
    if (a[k] == 0) continue;
    const double a_value = a[k];
    for (int j = 0; j < kColumns; ++j) {
      const double product = a_value * b[k * kColumns + j];
      sum[j] += static_cast<int64_t>(product * scale[j]);
    }
  }
  for (int j = 0; j < kColumns; ++j) {
    // An accumulator that overflowed stays infinite, since all products here are finite.
    if (std::isinf(accumulators[j])) continue;
    accumulators[j] = std::bit_cast<float>(
        TruncateToFloat32(sum[j], exponent_max[j] - task.align_bits, Panel::kOutMantissa));
  }
}

template <class Panel>
void Multiply(const PanelTask<Panel>& task) {
  constexpr int kColumns = Panel::kColumns;
  double b[kLongestStep * kColumns];
  for (int step = 0; step < task.steps; ++step) {
    for (int k = 0; k < task.step; ++k) {
      const auto* positive = task.b + (int64_t(step) * task.step + k) * 2 * kColumns;
      const auto* negative = positive + kColumns;
      for (int j = 0; j < kColumns; ++j) {
        b[k * kColumns + j] = double(positive[j]) + double(negative[j]);
      }
    }
    for (int64_t row = 0; row < task.rows; ++row) {
      FusedStepOfRow<Panel>(task, row, step, b, task.accumulators + row * kColumns);
    }
  }
}

void MultiplyFp32(const Fp32PanelTask& task) {
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

/// Advances one accumulator by one step of groups.
float GroupStep(const GroupTask& task, int step, int64_t row, int column, float accumulator) {
  if (std::isinf(accumulator)) return accumulator;  // All terms are finite.
  constexpr int kGroups = GroupPanel::kGroups, kColumns = GroupPanel::kColumns;
  const float* const a = task.a + (step * task.a_rows + row) * GroupPanel::kStep;
  const GroupScale* const a_scales = task.a_scales + (step * task.a_rows + row) * kGroups;
  const Unpacked c = Unpack<Float32>(std::bit_cast<uint32_t>(accumulator));
  int largest = c.kind == FloatClass::kFinite ? c.exponent : kFusedExponentFloor;
  double terms[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    float sum = 0;
    for (int i = g * GroupPanel::kGroup; i < (g + 1) * GroupPanel::kGroup; ++i) {
      sum += a[i] * task.b[(int64_t(step) * GroupPanel::kStep + i) * kColumns + column];
    }
    const int64_t at = (int64_t(step) * kGroups + g) * kColumns + column;
    terms[g] = double(sum) * a_scales[g].value * task.b_scales[at];
    const int exponent = a_scales[g].exponent + task.b_exponents[at];
    if (terms[g] != 0 && exponent > largest) largest = exponent;
  }
  const double scale = PowerOfTwo(task.align_bits - largest);
  int64_t sum = static_cast<int64_t>(double(accumulator) * scale);
  for (const double term : terms) sum += static_cast<int64_t>(term * scale);
  return std::bit_cast<float>(TruncateToFloat32(sum, largest - task.align_bits, 23));
}

void MultiplyGroups(const GroupTask& task) {
  for (int step = 0; step < task.steps; ++step) {
    for (int64_t row = 0; row < task.rows; ++row) {
      float* const accumulators = task.accumulators + row * GroupPanel::kColumns;
      for (int j = 0; j < GroupPanel::kColumns; ++j) {
        accumulators[j] = GroupStep(task, step, row, j, accumulators[j]);
      }
    }
  }
}

void PromoteScaled(const PromoteTask& task) {
  constexpr int kColumns = NarrowPanel::kColumns;
  for (int64_t i = 0; i < task.rows * kColumns; ++i) {
    const float row_scale = task.row_scales[i / kColumns];
    const float column_scale = task.column_scales[i % kColumns];
    if (task.twice) {
      const float scaled = task.parts[i] * row_scale;
      task.totals[i] = std::fma(scaled, column_scale, task.totals[i]);
    } else {
      const float scale = row_scale * column_scale;
      task.totals[i] = std::fma(task.parts[i], scale, task.totals[i]);
    }
  }
}

using Decode = PanelDecode<Scalar>;

}  // namespace

const KernelTable kKernelsScalar = {
    {Decode::NarrowRow, Decode::NarrowColumns, Multiply<NarrowPanel>},
    {Decode::WideRow, Decode::WideColumns, Multiply<WidePanel>},
    MultiplyFp32,
    MultiplyGroups,
    PromoteScaled,
};

}  // namespace quantgate
