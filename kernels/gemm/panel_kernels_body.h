// The vector panel kernels, written once over the registers of an instruction set. `V` supplies
// them; it is local to the file that includes this, so each instantiation is too. panel.h derives
// why the sums are exact.
//
// A block is one register of exponents and the four registers of values that go with it: 64 floats
// or 32 doubles with 512 bits, 32 or 16 with 256.
#pragma once

#include <cstdint>

#include "kernels/gemm/panel.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {

template <class V>
struct PanelBody {
  using Bytes = typename V::Integers;
  static constexpr int kRegisters = 4;

  // ---- FP8: F = 13, sums in float.

  /// One fused step of kRows rows and one block of columns.
  template <int kRows>
  static inline void NarrowStep(const PanelTask<NarrowPanel>& task, int64_t row, int step,
                                int column) {
    constexpr int kColumns = NarrowPanel::kColumns;
    constexpr int kStep = 32;
    using Floats = typename V::Floats;
    const int64_t a_offset = (step * task.a_rows + row) * kStep;
    const float* const a = task.a + a_offset;
    const int8_t* const a_exponents = task.a_exponents + a_offset;
    const float* const b = task.b + int64_t(step) * kStep * 2 * kColumns + column;
    const int8_t* const b_exponents = task.b_exponents + int64_t(step) * kStep * kColumns + column;
    float* const accumulators = task.accumulators + row * kColumns + column;

    // The largest exponent of each output's 32 products.
    Bytes product_max[kRows];
    for (int r = 0; r < kRows; ++r) product_max[r] = V::SetInt8(-128);
    for (int i = 0; i < kStep; ++i) {
      const Bytes b_exponent = V::LoadInteger(b_exponents + i * kColumns);
      for (int r = 0; r < kRows; ++r) {
        product_max[r] = V::MaxInt8(product_max[r],
                                    V::AddInt8(V::SetInt8(a_exponents[r * kStep + i]), b_exponent));
      }
    }
    Floats positive[kRows][kRegisters];
    Floats negative[kRows][kRegisters];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kRegisters; ++v) {
        const Floats c = V::LoadFloat(accumulators + r * kColumns + v * V::kFloats);
        // A zero has exponent field 0 and so takes no part: -127 is below every product. A non-zero
        // one is a multiple of the smallest product, 2^-32, so it is normal and above what a
        // product with a zero operand counts as.
        const auto exponent = V::MaxInt32(V::ExponentOf(c), V::WidenInt8(product_max[r], v));
        // 2^(E - 13 + 23).
        const Floats start = V::PowerOfTwo(V::AddInt32(exponent, V::SetInt32(-13 + 23)));
        positive[r][v] = V::Add(start, V::Max(c, V::ZeroFloat()));
        negative[r][v] = V::Sub(V::Min(c, V::ZeroFloat()), start);
      }
    }
    for (int i = 0; i < kStep; ++i) {
      for (int r = 0; r < kRows; ++r) {
        // The products of a negative a with the negative half of b are the positive ones.
        const float* const value = a + r * kStep + i;
        const int64_t swap = V::SignOf(value) * kColumns;
        const float* const to_positive = b + i * 2 * kColumns + swap;
        const float* const to_negative = b + i * 2 * kColumns + (kColumns - swap);
        const Floats factor = V::SetFloat(*value);
        for (int v = 0; v < kRegisters; ++v) {
          positive[r][v] =
              V::MulAdd(factor, V::LoadFloat(to_positive + v * V::kFloats), positive[r][v]);
          negative[r][v] =
              V::MulAdd(factor, V::LoadFloat(to_negative + v * V::kFloats), negative[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kRegisters; ++v) {
        // The sum is exact; the mask truncates it toward zero to 13 fraction bits.
        const Floats sum = V::Add(positive[r][v], negative[r][v]);
        V::StoreFloat(accumulators + r * kColumns + v * V::kFloats, V::KeepThirteenBits(sum));
      }
    }
  }

  static void NarrowMultiply(const PanelTask<NarrowPanel>& task) {
    for (int step = 0; step < task.steps; ++step) {
      for (int column = 0; column < NarrowPanel::kColumns; column += kRegisters * V::kFloats) {
        for (int64_t row = 0; row < task.rows; row += V::kRows) {
          NarrowStep<V::kRows>(task, row, step, column);
        }
      }
    }
  }

  // ---- bf16, fp16, tf32: F = 25, sums in double.

  template <int kRows, int kStep>
  static inline void WideStep(const PanelTask<WidePanel>& task, int64_t row, int step, int column) {
    constexpr int kColumns = WidePanel::kColumns;
    using Doubles = typename V::Doubles;
    const int64_t a_offset = (step * task.a_rows + row) * kStep;
    const double* const a = task.a + a_offset;
    const int16_t* const a_exponents = task.a_exponents + a_offset;
    const double* const b = task.b + int64_t(step) * kStep * 2 * kColumns + column;
    const int16_t* const b_exponents = task.b_exponents + int64_t(step) * kStep * kColumns + column;
    float* const accumulators = task.accumulators + row * kColumns + column;

    // The largest exponent of each output's products, and the floor.
    Bytes product_max[kRows];
    for (int r = 0; r < kRows; ++r) product_max[r] = V::SetInt16(kFusedExponentFloor);
    for (int i = 0; i < kStep; ++i) {
      const Bytes b_exponent = V::LoadInteger(b_exponents + i * kColumns);
      for (int r = 0; r < kRows; ++r) {
        product_max[r] = V::MaxInt16(
            product_max[r], V::AddInt16(V::SetInt16(a_exponents[r * kStep + i]), b_exponent));
      }
    }
    Doubles positive[kRows][kRegisters];
    Doubles negative[kRows][kRegisters];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kRegisters; ++v) {
        const auto c = V::LoadHalf(accumulators + r * kColumns + v * V::kDoubles);
        const auto exponent =
            V::MaxHalfInt32(V::ExponentOrNone(c), V::WidenInt16(product_max[r], v));
        // 2^(E - 25 + 52).
        const Doubles start =
            V::PowerOfTwoWide(V::AddHalfInt32(exponent, V::SetHalfInt32(-25 + 52)));
        const Doubles wide_c = V::ToDouble(c);
        positive[r][v] = V::Add(start, V::Max(wide_c, V::ZeroDouble()));
        negative[r][v] = V::Sub(V::Min(wide_c, V::ZeroDouble()), start);
      }
    }
    for (int i = 0; i < kStep; ++i) {
      for (int r = 0; r < kRows; ++r) {
        const double* const value = a + r * kStep + i;
        const int64_t swap = V::SignOf(value) * kColumns;
        const double* const to_positive = b + i * 2 * kColumns + swap;
        const double* const to_negative = b + i * 2 * kColumns + (kColumns - swap);
        const Doubles factor = V::SetDouble(*value);
        for (int v = 0; v < kRegisters; ++v) {
          positive[r][v] =
              V::MulAdd(factor, V::LoadDouble(to_positive + v * V::kDoubles), positive[r][v]);
          negative[r][v] =
              V::MulAdd(factor, V::LoadDouble(to_negative + v * V::kDoubles), negative[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kRegisters; ++v) {
        // The sum is exact; the conversion truncates toward zero with gradual underflow, and 2^128
        // is infinite.
        V::StoreTruncated(accumulators + r * kColumns + v * V::kDoubles,
                          V::Add(positive[r][v], negative[r][v]));
      }
    }
  }

  template <int kStep>
  static void WideMultiplyBy(const PanelTask<WidePanel>& task) {
    for (int step = 0; step < task.steps; ++step) {
      for (int column = 0; column < WidePanel::kColumns; column += kRegisters * V::kDoubles) {
        for (int64_t row = 0; row < task.rows; row += V::kRows) {
          WideStep<V::kRows, kStep>(task, row, step, column);
        }
      }
    }
  }

  static void WideMultiply(const PanelTask<WidePanel>& task) {
    if (task.step == 16) return WideMultiplyBy<16>(task);
    WideMultiplyBy<8>(task);
  }

  // ---- fp32.

  template <int kRows, int kVectors>
  static inline void Fp32Block(const Fp32Task& task, int64_t row, int column) {
    typename V::Floats sum[kRows][kVectors];
    float* const accumulators = task.accumulators + row * kFp32Columns + column;
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = V::LoadFloat(accumulators + r * kFp32Columns + v * V::kFloats);
      }
    }
    for (int k = 0; k < task.depth; ++k) {
      const float* const b = task.b + int64_t(k) * kFp32Columns + column;
      for (int r = 0; r < kRows; ++r) {
        const auto factor = V::SetFloat(task.a[(row + r) * task.a_stride + k]);
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = V::MulAdd(factor, V::LoadFloat(b + v * V::kFloats), sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        V::StoreFloat(accumulators + r * kFp32Columns + v * V::kFloats, sum[r][v]);
      }
    }
  }

  static void Fp32Multiply(const Fp32Task& task) {
    constexpr int kVectors = 2;
    for (int column = 0; column < kFp32Columns; column += kVectors * V::kFloats) {
      int64_t row = 0;
      for (; row + 4 <= task.rows; row += 4) Fp32Block<4, kVectors>(task, row, column);
      for (; row < task.rows; ++row) Fp32Block<1, kVectors>(task, row, column);
    }
  }
};

}  // namespace quantgate
