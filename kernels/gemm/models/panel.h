// The packed form of GEMM operands and the kernels that multiply it, with a set of kernels for each
// instruction set.
//
// How a kernel computes a fused step without integers: with E the step's largest exponent, an
// accumulator that starts at 2^(E - F + p) (p: the mantissa bits of the type that holds it) has a
// unit in the last place of 2^(E - F). So under rounding toward zero one fused multiply-add
// truncates the exact product to that grid and adds it, which is the step's q_t. Truncation is of
// magnitudes, so positive and negative products go to two accumulators of opposite sign, whose sum
// is exact. Bounds, in units of the grid: each |q_t| < 2^(F+2), so with L products and the fp32
// accumulator all of one sign the sum stays below (L + 1) * 2^(F+2):
//   narrow F=13, L<=32, p=23 (float):  33 * 2^15 < 2^23, so the accumulator stays in its binade;
//   wide   F<=25, L<=32, p=52 (double): 33 * 2^27 < 2^52, likewise.
// Groups of NVFP4 (F=35): 16 products of E2M1 numbers are a whole number of quarters, at most
// 16 * 144 of them, exact in float; times both scales' significands below 2, a group's term is
// below 2^(10+2) and its q_t below 2^(F+12), so 4 of them and the accumulator, 2^(F+2), stay below
// 2^50 < 2^52.
#pragma once

#include <cstdint>

#include "kernels/base/execution.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// For FP8 products at F=13: 8-bit significands, exact in float.
struct NarrowPanel {
  using Value = float;
  using Exponent = int8_t;
  static constexpr int kColumns = 64;
  static constexpr int kOutMantissa = 13;
  /// Below the exponent of every product of FP8 numbers (-32); twice this value still fits the
  /// type.
  static constexpr Exponent kExponentOfZero = -64;
};

/// For all other products, block-scaled ones too: up to 22 bits times powers of two, exact in
/// double.
struct WidePanel {
  using Value = double;
  using Exponent = int16_t;
  static constexpr int kColumns = 32;
  static constexpr int kOutMantissa = 23;
  static constexpr Exponent kExponentOfZero = -16384;
};

/// Decodes codes of one dtype to packed values and their exponents as in Unpack. NaN and infinity
/// become zero (special_outputs.h gives the outputs that they reach). f32 is rounded to tf32 first;
/// codes of kF4E2M1x2 come one in each byte.
template <class Panel>
using DecodeRowKernel = void (*)(const void* codes, DType dtype, int64_t count,
                                 typename Panel::Value* values,
                                 typename Panel::Exponent* exponents);

/// As DecodeRowKernel for depth * kColumns codes in [depth][kColumns] order; each k gets kColumns
/// values with the negative ones replaced by zero, then kColumns with the positive ones replaced by
/// zero.
template <class Panel>
using DecodeColumnsKernel = void (*)(const void* codes, DType dtype, int depth,
                                     typename Panel::Value* values,
                                     typename Panel::Exponent* exponents);

/// Advances rows (even) x kColumns accumulators by `steps` fused steps. `a` is in the order in
/// which a kernel reads it, step after step and row after row, so that the processor can prefetch
/// it.
template <class Panel>
struct PanelTask {
  /// [steps][a_rows][step], at the panel's first step and the task's first row.
  const typename Panel::Value* a;
  const typename Panel::Exponent* a_exponents;
  int64_t a_rows;
  int64_t rows;
  const typename Panel::Value* b;  ///< [steps * step][2][kColumns], see DecodeColumnsKernel.
  const typename Panel::Exponent* b_exponents;  ///< [steps * step][kColumns].
  int steps;
  int step;             ///< L: 16 or 32 (narrow); 4, 8, 16 or 32 (wide).
  int align_bits;       ///< F: 13 (narrow); up to 25 (wide).
  float* accumulators;  ///< [rows][kColumns], aligned to 64 bytes.
};

/// Must run under ScopedRoundTowardZero.
template <class Panel>
using MultiplyKernel = void (*)(const PanelTask<Panel>& task);

template <class Panel>
struct PanelKernels {
  DecodeRowKernel<Panel> decode_row;
  DecodeColumnsKernel<Panel> decode_columns;
  MultiplyKernel<Panel> multiply;
};

/// For NVFP4: E2M1 values in groups of kGroup, kGroups groups in each step, each group under the
/// product of two scales. A scale of zero has the value 0 and the exponent kExponentOfZero.
struct GroupPanel {
  static constexpr int kColumns = 32;
  static constexpr int kGroup = 16;
  static constexpr int kGroups = 4;
  static constexpr int kStep = kGroup * kGroups;
  static constexpr int32_t kExponentOfZero = -16384;
};

struct GroupScale {
  double value;
  int32_t exponent;
};

struct GroupTask {
  const float* a;  ///< [steps][a_rows][kStep], at the panel's first step and the task's first row.
  const GroupScale* a_scales;  ///< [steps][a_rows][kGroups]
  int64_t a_rows;
  int64_t rows;                ///< Even.
  const float* b;              ///< [steps * kStep][kColumns]
  const double* b_scales;      ///< [steps * kGroups][kColumns]
  const int32_t* b_exponents;  ///< [steps * kGroups][kColumns]
  int steps;
  int align_bits;
  float* accumulators;  ///< [rows][kColumns], aligned to 64 bytes.
};
/// Must run under ScopedRoundTowardZero.
using GroupKernel = void (*)(const GroupTask& task);

/// totals[r][j] = fma(parts[r][j], f32(row_scales[r] * column_scales[j]), totals[r][j]), or with
/// `twice` fma(f32(parts[r][j] * row_scales[r]), column_scales[j], totals[r][j]).
struct PromoteTask {
  const float* parts;  ///< [rows][kColumns of NarrowPanel]
  int64_t rows;
  const float* row_scales;
  const float* column_scales;
  bool twice;
  float* totals;
};
using PromoteKernel = void (*)(const PromoteTask& task);

/// Sequential fp32 FMA: accumulators[r][j] = fma(a[r][k], b[k][j], accumulators[r][j]) for k in
/// increasing order.
struct Fp32PanelTask {
  const float* a;  ///< [rows][a_stride]
  int64_t a_stride;
  int64_t rows;
  const float* b;  ///< [depth][kFp32Columns]
  int depth;
  float* accumulators;  ///< [rows][kFp32Columns]
};
inline constexpr int kFp32Columns = 64;
using Fp32Kernel = void (*)(const Fp32PanelTask& task);

struct KernelTable {
  PanelKernels<NarrowPanel> narrow;
  PanelKernels<WidePanel> wide;
  Fp32Kernel fp32;
  GroupKernel groups;
  PromoteKernel promote;
};

extern const KernelTable kKernelsScalar;
extern const KernelTable kKernelsAvx2;
extern const KernelTable kKernelsAvx512;

inline const KernelTable& KernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kKernelsAvx512;
    case Isa::kAvx2:
      return kKernelsAvx2;
    case Isa::kScalar:
      break;
  }
  return kKernelsScalar;
}

}  // namespace quantgate
