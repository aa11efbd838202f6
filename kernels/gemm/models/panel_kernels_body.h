// The vector panel kernels, written once over the registers of an instruction set, which `V`
// supplies. V is local to the file that includes this, and so is each instantiation. panel.h
// derives why the sums are exact.
//
// A block is one register of exponents and the four registers of values that go with it: 64 floats
// or 32 doubles with 512 bits, 32 floats or 16 doubles with 256.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/models/panel.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {

/// FP8: F = 13, sums in float.
template <class V>
struct NarrowSteps {
  using Panel = NarrowPanel;
  using Sums = typename V::Floats;
  static constexpr int kLanes = V::kFloats;
  // The smallest of the type; products with a zero operand reach it.
  static constexpr int kExponentFloor = -128;

  static auto SetExponent(int8_t x) { return V::SetInt8(x); }
  static auto AddExponent(typename V::Integers x, typename V::Integers y) {
    return V::AddInt8(x, y);
  }
  static auto MaxExponent(typename V::Integers x, typename V::Integers y) {
    return V::MaxInt8(x, y);
  }
  static Sums Load(const float* p) { return V::LoadFloat(p); }
  static Sums Set(float x) { return V::SetFloat(x); }
  static Sums LoadAccumulators(const float* p) { return V::LoadFloat(p); }

  /// 2^(E - 13 + 23) for the accumulators at `c` and products of largest exponents `product_max`.
  static Sums Start(const float* c, const int8_t* product_max, int /*align_bits*/) {
    // A zero accumulator has exponent field 0 and so takes no part, since -127 is below every
    // product. A nonzero one is a multiple of the smallest product, 2^-32, so it is normal and its
    // exponent is above that of a product with a zero operand.
    const auto exponent =
        V::MaxInt32(V::ExponentOf(V::LoadFloat(c)), V::LoadWidenedInt8(product_max));
    return V::PowerOfTwo(V::AddInt32(exponent, V::SetInt32(-13 + 23)));
  }
  static Sums Zero() { return V::ZeroFloat(); }
  /// Truncates an exact sum toward zero to 13 fraction bits.
  static void Store(float* p, Sums sum) { V::StoreFloat(p, V::KeepThirteenBits(sum)); }
};

/// All other products: F up to 25, sums in double.
template <class V>
struct WideSteps {
  using Panel = WidePanel;
  using Sums = typename V::Doubles;
  static constexpr int kLanes = V::kDoubles;
  static constexpr int kExponentFloor = kFusedExponentFloor;

  static auto SetExponent(int16_t x) { return V::SetInt16(x); }
  static auto AddExponent(typename V::Integers x, typename V::Integers y) {
    return V::AddInt16(x, y);
  }
  static auto MaxExponent(typename V::Integers x, typename V::Integers y) {
    return V::MaxInt16(x, y);
  }
  static Sums Load(const double* p) { return V::LoadDouble(p); }
  static Sums Set(double x) { return V::SetDouble(x); }
  static Sums LoadAccumulators(const float* p) { return V::ToDouble(V::LoadHalf(p)); }

  /// 2^(E - F + 52).
  static Sums Start(const float* c, const int16_t* product_max, int align_bits) {
    const auto exponent =
        V::MaxHalfInt32(V::ExponentOrNone(V::LoadHalf(c)), V::LoadWidenedInt16(product_max));
    return V::PowerOfTwoWide(V::AddHalfInt32(exponent, V::SetHalfInt32(52 - align_bits)));
  }
  static Sums Zero() { return V::ZeroDouble(); }
  /// Truncates an exact sum toward zero to fp32 with gradual underflow; 2^128 is infinite.
  static void Store(float* p, Sums sum) { V::StoreTruncated(p, sum); }
};

/// The fused steps of a panel: S is NarrowSteps or WideSteps.
template <class V, class S, int kStep>
struct FusedSteps {
  using Panel = typename S::Panel;
  using Value = typename Panel::Value;
  using Exponent = typename Panel::Exponent;
  static constexpr int kColumns = Panel::kColumns;
  static constexpr int kRegisters = 4;
  static constexpr int kBlock = kRegisters * S::kLanes;  // Columns.
  // The rows whose largest exponents are found together before their sums, so that two long chains
  // of dependent instructions do not follow each other for each row.
  static constexpr int kExponentRows = 16;

  /// largest[r][j] = max over i of a[r][i] + b[i][j], for kRows rows of a and one block of columns.
  template <int kRows>
  static inline void LargestExponents(const Exponent* a, const Exponent* b, Exponent* largest) {
    typename V::Integers rows[kRows];
    for (int r = 0; r < kRows; ++r) rows[r] = S::SetExponent(S::kExponentFloor);
    for (int i = 0; i < kStep; ++i) {
      const auto b_exponent = V::LoadInteger(b + i * kColumns);
      for (int r = 0; r < kRows; ++r) {
        rows[r] =
            S::MaxExponent(rows[r], S::AddExponent(S::SetExponent(a[r * kStep + i]), b_exponent));
      }
    }
    for (int r = 0; r < kRows; ++r) V::StoreInteger(largest + r * kBlock, rows[r]);
  }

  /// The step's sums for kRows rows of a and one block of columns.
  template <int kRows>
  static inline void Sum(const Value* a, const Value* b, const Exponent* largest, int align_bits,
                         float* accumulators) {
    typename S::Sums positive[kRows][kRegisters];
    typename S::Sums negative[kRows][kRegisters];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kRegisters; ++v) {
        const float* const c = accumulators + r * kColumns + v * S::kLanes;
        const auto start = S::Start(c, largest + r * kBlock + v * S::kLanes, align_bits);
        positive[r][v] = V::Add(start, V::Max(S::LoadAccumulators(c), S::Zero()));
        negative[r][v] = V::Sub(V::Min(S::LoadAccumulators(c), S::Zero()), start);
      }
    }
    // Bit i: a[r][i] is negative. Found by one load for all i, since loads are the bottleneck.
    uint32_t signs[kRows];
    for (int r = 0; r < kRows; ++r) signs[r] = V::template Signs<kStep>(a + r * kStep);
    for (int i = 0; i < kStep; ++i) {
      for (int r = 0; r < kRows; ++r) {
        // The products of a negative a with the negative half of b are the positive ones.
        const int64_t swap = static_cast<int64_t>((signs[r] >> i) & 1) * kColumns;
        const Value* const to_positive = b + i * 2 * kColumns + swap;
        const Value* const to_negative = b + i * 2 * kColumns + (kColumns - swap);
        const auto factor = S::Set(a[r * kStep + i]);
        for (int v = 0; v < kRegisters; ++v) {
          positive[r][v] = V::MulAdd(factor, S::Load(to_positive + v * S::kLanes), positive[r][v]);
          negative[r][v] = V::MulAdd(factor, S::Load(to_negative + v * S::kLanes), negative[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kRegisters; ++v) {
        S::Store(accumulators + r * kColumns + v * S::kLanes,
                 V::Add(positive[r][v], negative[r][v]));
      }
    }
  }

  /// Prefetches the cache lines that the rows after this block will read, since `a` comes from
  /// beyond L2.
  static inline void FetchAhead(const void* begin, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
      __builtin_prefetch(static_cast<const char*>(begin) + i);
    }
  }

  /// One step of at most kExponentRows rows (even) and one block of columns.
  static inline void Rows(const PanelTask<Panel>& task, int step, int64_t row, int rows,
                          int column) {
    const int64_t a_offset = (step * task.a_rows + row) * kStep;
    const Exponent* const a_exponents = task.a_exponents + a_offset;
    const Value* const a = task.a + a_offset;
    const Exponent* const b_exponents =
        task.b_exponents + int64_t(step) * kStep * kColumns + column;
    const Value* const b = task.b + int64_t(step) * kStep * 2 * kColumns + column;
    float* const accumulators = task.accumulators + row * kColumns + column;
    alignas(64) Exponent largest[kExponentRows * kBlock];
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
      LargestExponents<4>(a_exponents + r * kStep, b_exponents, largest + r * kBlock);
    }
    if (r < rows) LargestExponents<2>(a_exponents + r * kStep, b_exponents, largest + r * kBlock);
    for (r = 0; r < rows; r += V::kRows) {
      FetchAhead(a + (r + kExponentRows) * kStep, V::kRows * kStep * sizeof(Value));
      FetchAhead(a_exponents + (r + 2 * kExponentRows) * kStep, 1);
      Sum<V::kRows>(a + r * kStep, b, largest + r * kBlock, task.align_bits,
                    accumulators + r * kColumns);
    }
  }

  static void Multiply(const PanelTask<Panel>& task) {
    for (int step = 0; step < task.steps; ++step) {
      for (int column = 0; column < kColumns; column += kBlock) {
        for (int64_t row = 0; row < task.rows; row += kExponentRows) {
          const int64_t rest = task.rows - row;
          Rows(task, step, row, rest < kExponentRows ? static_cast<int>(rest) : kExponentRows,
               column);
        }
      }
    }
  }
};

template <class V>
struct PanelBody {
  static void NarrowMultiply(const PanelTask<NarrowPanel>& task) {
    if (task.step == 32) return FusedSteps<V, NarrowSteps<V>, 32>::Multiply(task);
    FusedSteps<V, NarrowSteps<V>, 16>::Multiply(task);
  }

  static void WideMultiply(const PanelTask<WidePanel>& task) {
    switch (task.step) {
      case 32:
        return FusedSteps<V, WideSteps<V>, 32>::Multiply(task);
      case 16:
        return FusedSteps<V, WideSteps<V>, 16>::Multiply(task);
      case 8:
        return FusedSteps<V, WideSteps<V>, 8>::Multiply(task);
      default:
        return FusedSteps<V, WideSteps<V>, 4>::Multiply(task);
    }
  }

  // ---- fp32.

  template <int kRows, int kVectors>
  static inline void Fp32Block(const Fp32PanelTask& task, int64_t row, int column) {
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

  static void Fp32Multiply(const Fp32PanelTask& task) {
    constexpr int kVectors = 2;
    for (int column = 0; column < kFp32Columns; column += kVectors * V::kFloats) {
      int64_t row = 0;
      for (; row + 4 <= task.rows; row += 4) Fp32Block<4, kVectors>(task, row, column);
      for (; row < task.rows; ++row) Fp32Block<1, kVectors>(task, row, column);
    }
  }
};

}  // namespace quantgate
