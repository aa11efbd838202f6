// The vector kernels of NVFP4 groups and of scaled promotion, written once over the registers of an
// instruction set, like panel_kernels_body.h. panel.h derives why the sums are exact.
#pragma once

#include <cstdint>

#include "kernels/gemm/models/panel.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {

template <class V>
struct GroupSteps {
  static constexpr int kColumns = GroupPanel::kColumns;
  static constexpr int kStep = GroupPanel::kStep;
  static constexpr int kGroup = GroupPanel::kGroup;
  static constexpr int kGroups = GroupPanel::kGroups;
  static constexpr int kVectors = 2;
  static constexpr int kBlock = kVectors * V::kFloats;  // Columns.

  /// sums[g][r][j]: group g of row r times column j, for one block of columns.
  template <int kRows>
  static inline void Sum(const float* a, const float* b, float* sums) {
    for (int g = 0; g < kGroups; ++g) {
      typename V::Floats sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = V::ZeroFloat();
      }
      for (int i = 0; i < kGroup; ++i) {
        const float* const b_row = b + (g * kGroup + i) * kColumns;
        typename V::Floats columns[kVectors];
        for (int v = 0; v < kVectors; ++v) columns[v] = V::LoadFloat(b_row + v * V::kFloats);
        for (int r = 0; r < kRows; ++r) {
          const auto factor = V::SetFloat(a[r * kStep + g * kGroup + i]);
          for (int v = 0; v < kVectors; ++v) sum[r][v] = V::MulAdd(factor, columns[v], sum[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          V::StoreFloat(sums + (g * kRows + r) * kBlock + v * V::kFloats, sum[r][v]);
        }
      }
    }
  }

  /// Takes the fused step of V::kDoubles accumulators from their group sums, which are `stride`
  /// floats apart.
  static inline void Finish(const float* sums, int stride, const GroupScale* a_scales,
                            const double* b_scales, const int32_t* b_exponents, int align_bits,
                            float* accumulators) {
    const auto c = V::LoadHalf(accumulators);
    auto largest = V::MaxHalfInt32(V::ExponentOrNone(c), V::SetHalfInt32(kFusedExponentFloor));
    typename V::HalfFloats sum[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      sum[g] = V::LoadHalf(sums + g * stride);
      const auto exponent = V::AddHalfInt32(V::SetHalfInt32(a_scales[g].exponent),
                                            V::LoadHalfInt32(b_exponents + g * kColumns));
      largest = V::MaxHalfInt32(largest, V::NoneWhereZero(exponent, sum[g]));
    }
    const auto start =
        V::PowerOfTwoWide(V::AddHalfInt32(largest, V::SetHalfInt32(52 - align_bits)));
    const auto zero = V::ZeroDouble();
    const auto accumulator = V::ToDouble(c);
    auto positive = V::Add(start, V::Max(accumulator, zero));
    auto negative = V::Sub(V::Min(accumulator, zero), start);
    for (int g = 0; g < kGroups; ++g) {
      const auto scaled = V::Mul(V::ToDouble(sum[g]), V::SetDouble(a_scales[g].value));
      const auto scale = V::LoadDouble(b_scales + g * kColumns);
      positive = V::MulAdd(V::Max(scaled, zero), scale, positive);
      negative = V::MulAdd(V::Min(scaled, zero), scale, negative);
    }
    V::StoreTruncated(accumulators, V::Add(positive, negative));
  }

  template <int kRows>
  static inline void Rows(const GroupTask& task, int step, int64_t row, int column) {
    const int64_t a_offset = step * task.a_rows + row;
    const int64_t b_group = int64_t(step) * kGroups * kColumns + column;
    alignas(64) float sums[kGroups * kRows * kBlock];
    Sum<kRows>(task.a + a_offset * kStep, task.b + int64_t(step) * kStep * kColumns + column, sums);
    for (int r = 0; r < kRows; ++r) {
      const GroupScale* const a_scales = task.a_scales + (a_offset + r) * kGroups;
      for (int j = 0; j < kBlock; j += V::kDoubles) {
        Finish(sums + r * kBlock + j, kRows * kBlock, a_scales, task.b_scales + b_group + j,
               task.b_exponents + b_group + j, task.align_bits,
               task.accumulators + (row + r) * kColumns + column + j);
      }
    }
  }

  static void Multiply(const GroupTask& task) {
    for (int step = 0; step < task.steps; ++step) {
      for (int column = 0; column < kColumns; column += kBlock) {
        int64_t row = 0;
        for (; row + 4 <= task.rows; row += 4) Rows<4>(task, step, row, column);
        for (; row < task.rows; row += 2) Rows<2>(task, step, row, column);
      }
    }
  }
};

template <class V>
void PromoteScaled(const PromoteTask& task) {
  constexpr int kColumns = NarrowPanel::kColumns;
  for (int64_t row = 0; row < task.rows; ++row) {
    const auto row_scale = V::SetFloat(task.row_scales[row]);
    const float* const parts = task.parts + row * kColumns;
    float* const totals = task.totals + row * kColumns;
    for (int j = 0; j < kColumns; j += V::kFloats) {
      const auto part = V::LoadFloat(parts + j);
      const auto column_scale = V::LoadFloat(task.column_scales + j);
      const auto total = V::LoadFloat(totals + j);
      const auto sum = task.twice ? V::MulAdd(V::Mul(part, row_scale), column_scale, total)
                                  : V::MulAdd(part, V::Mul(row_scale, column_scale), total);
      V::StoreFloat(totals + j, sum);
    }
  }
}

}  // namespace quantgate
