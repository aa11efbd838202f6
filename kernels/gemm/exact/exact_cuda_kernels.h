// The kernels of ExactGemmCuda and StartCheckBoundCuda and how they are launched: operands are
// packed as fp64 numbers once, their rows bounded, their dot products put into an fp64 matrix, a
// strip of rows at a time, and that certified, rounded or compared.
//
// The dot products are those of exact_tile.h bit for bit: fused multiply-adds in the order of k
// from +0 over each 256 of it, these sums added in their order, which is what FP64 tensor cores do
// (docs/tensor-cores.md section 5).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/gemm/bound/error_bound_element.h"
#include "kernels/gemm/cuda_operand.h"
#include "kernels/gemm/exact/exact_kernels.h"
#include "kernels/numerics/cast.h"

namespace quantgate {

// ---- Operands.

/// Rows and columns of a tile of outputs; packed operands have whole tiles.
inline constexpr int kExactTileRows = 128;
/// Packed operands have k in multiples of this, padded with zeros.
inline constexpr int kExactPackedDepth = 32;

/// An operand as fp64 numbers: its elements times their block scales, or magnitudes that stand for
/// them (AbsoluteGemm).
struct ExactCudaOperand {
  CudaOperand operand;
  bool absolute = false;
  double floor = 0, scale_floor = 0, product_floor = 0;  ///< Where absolute; bound_check.h.

  QG_HOST_DEVICE bool is_scaled() const { return operand.scales != nullptr; }

  /// An element and its block's scale, which is of no account where there are none.
  QG_HOST_DEVICE double Combine(double value, double scale) const {
    if (!absolute) return is_scaled() ? value * scale : value;
    const double magnitude = error_bound::Magnitude(value);
    const double raised = magnitude == 0 ? 0 : magnitude + floor;
    if (!is_scaled()) return raised;
    const double scaled = raised * (error_bound::Magnitude(scale) + scale_floor);
    return scaled == 0 ? 0 : scaled + product_floor;
  }

  QG_HOST_DEVICE float Decode(uint32_t code) const {
    return VisitFormatIn(OperandFormats{}, operand.format, [&]<class Format>() {
      return DecodeFloat<Format>(static_cast<typename Format::Storage>(code));
    });
  }

  /// Element (row, k_index); +0 beyond the operand.
  QG_HOST_DEVICE double At(int64_t row, int64_t k_index) const {
    if (row >= operand.rows || k_index >= operand.k) return 0;
    const double scale = is_scaled() ? operand.ScaleAt(row, k_index) : 1.0;
    return Combine(Decode(operand.CodeAt(row, k_index)), scale);
  }
};

/// An operand and where it goes.
struct ExactPackedOperand {
  ExactCudaOperand source;
  int64_t row_tiles;
  void* packed;  ///< [row_tiles][k_padded / 8] of 128 x 8, of uint32_t or double.
};
/// Packs both operands in the order in which the fragments of mma.sync m16n8k8 are read: where
/// element (row, k) lies is ExactPackedIndex.
struct ExactPackTask {
  ExactPackedOperand operands[2];
  int64_t k_padded;
  bool narrow;  ///< Every element's upper 32 bits are the element: only these are kept.
};
cudaError_t LaunchExactPack(const ExactPackTask& task, cudaStream_t stream);
/// One thread an element: what the other one must equal.
cudaError_t LaunchExactPackPlain(const ExactPackTask& task, cudaStream_t stream);

/// Of row and k in their tile of 128 x 8: 16 rows after another, and of these the four elements of
/// each lane (PTX ISA, fragments of mma.m16n8k8 with .f64) together, or by pairs that are 16 bytes.
QG_HOST_DEVICE constexpr int ExactFragmentIndex(int row, int k, bool narrow) {
  const int lane = row % 8 * 4 + k % 4;
  const int upper_row = row % 16 / 8, upper_k = k / 4;
  const int index =
      narrow ? lane * 4 + upper_k * 2 + upper_row : upper_k * 64 + lane * 2 + upper_row;
  return row / 16 * 128 + index;
}
QG_HOST_DEVICE constexpr int64_t ExactPackedIndex(int64_t row, int64_t k, int64_t k_padded,
                                                  bool narrow) {
  const int64_t tile = row / kExactTileRows * (k_padded / 8) + k / 8;
  return tile * (kExactTileRows * 8) + ExactFragmentIndex(static_cast<int>(row % kExactTileRows),
                                                          static_cast<int>(k % 8), narrow);
}

#if defined(__CUDACC__)
/// A lane's part of a packed operand (ExactFragmentIndex), four elements of 16 rows x 8 k: (r, k),
/// (r + 8, k), (r, k + 4), (r + 8, k + 4).
__device__ inline void LoadFragment(const uint32_t* packed, double (&values)[4]) {
  const uint4 words = *reinterpret_cast<const uint4*>(packed);
  values[0] = __hiloint2double(static_cast<int>(words.x), 0);
  values[1] = __hiloint2double(static_cast<int>(words.y), 0);
  values[2] = __hiloint2double(static_cast<int>(words.z), 0);
  values[3] = __hiloint2double(static_cast<int>(words.w), 0);
}
__device__ inline void LoadFragment(const double* packed, double (&values)[4]) {
  const auto* in = reinterpret_cast<const double2*>(packed);
  const double2 low = in[0], high = in[32];
  values[0] = low.x;
  values[1] = low.y;
  values[2] = high.x;
  values[3] = high.y;
}
#endif

/// A packed operand, to be read.
struct ExactPacked {
  const void* words;
  int64_t rows, k_padded;
  bool narrow;

  QG_HOST_DEVICE double At(int64_t row, int64_t k_index) const {
    const int64_t index = ExactPackedIndex(row, k_index, k_padded, narrow);
    if (!narrow) return static_cast<const double*>(words)[index];
    return std::bit_cast<double>(uint64_t{static_cast<const uint32_t*>(words)[index]} << 32);
  }
};

/// ExactRowBounds of an operand: sums of squares in the order of k.
struct ExactBoundedRows {
  ExactPacked packed;
  double* norm;                   ///< [rows]
  double* lowest_bit;             ///< [rows]
  unsigned long long* ratio_max;  ///< Zeroed: bits of the largest norm / lowest_bit.
};
struct ExactRowBoundsTask {
  ExactBoundedRows operands[2];  ///< Alike in k_padded and narrow.
  double inflation;
};
cudaError_t LaunchExactRowBounds(const ExactRowBoundsTask& task, cudaStream_t stream);

// ---- Dot products.

/// row_tiles x column_tiles tiles of dot products; `sums` has whole tiles too.
struct ExactProductsTask {
  const void* a;  ///< Packed, from its first tile of rows.
  const void* b;
  int64_t row_tiles, column_tiles, k_padded;
  bool narrow;
  double* sums;  ///< [row_tiles * 128][column_tiles * 128]
};
/// By FP64 tensor cores.
cudaError_t LaunchExactProducts(const ExactProductsTask& task, cudaStream_t stream);
/// One thread an output: what the other one must equal.
cudaError_t LaunchExactProductsPlain(const ExactProductsTask& task, cudaStream_t stream);

// ---- Outputs.

/// Everything but the dot products that makes outputs; null pointers stand for neutral values.
struct ExactOutputTerms {
  float alpha = 1, beta = 0;
  const float* a_scales = nullptr;  ///< Of whole sums, nv16's amaxes included.
  const float* b_scales = nullptr;
  int a_scale_stride = 0, b_scale_stride = 0;  ///< 0: one for all rows.
  const void* c = nullptr;                     ///< [m][n]
  FormatId c_format = kFormatId<Float32>;
  const void* bias = nullptr;  ///< [n]
  FormatId bias_format = kFormatId<Float32>;
  const float* d_scale = nullptr;
  int64_t divisor = 1;  ///< GlobalDivisor.

  QG_HOST_DEVICE static float Decode(const void* data, FormatId format, int64_t index) {
    return VisitFormatIn(OperandFormats{}, format, [&]<class Format>() {
      return DecodeFloat<Format>(static_cast<const typename Format::Storage*>(data)[index]);
    });
  }
  QG_HOST_DEVICE float AScale(int64_t row) const {
    return a_scales == nullptr ? 1.0f : a_scales[row * a_scale_stride];
  }
  QG_HOST_DEVICE float BScale(int64_t column) const {
    return b_scales == nullptr ? 1.0f : b_scales[column * b_scale_stride];
  }
  QG_HOST_DEVICE float C(int64_t index) const {
    return beta == 0 ? 0.0f : Decode(c, c_format, index);
  }
  QG_HOST_DEVICE float Bias(int64_t column) const {
    return bias == nullptr ? 0.0f : Decode(bias, bias_format, column);
  }
  QG_HOST_DEVICE float DScale() const { return d_scale == nullptr ? 1.0f : *d_scale; }
};

/// Rows [begin, begin + rows) of outputs n wide, and their dot products.
struct ExactStrip {
  int64_t begin, rows, n;
  const double* sums;
  int64_t stride;
};

/// Counted on the device; zeroed before.
struct ExactCounts {
  unsigned long long ratio_max_a, ratio_max_b;  ///< Of ExactRowBoundsTask; in the first of several.
  unsigned long long wide_dots;
  unsigned long long wide_epilogues;
  unsigned long long doubts;  ///< Of this strip.
};

struct ExactRoundTask {
  ExactStrip strip;
  ExactPacked a, b;
  int64_t k;
  bool has_block_scales;
  ExactOutputTerms terms;
  const double* norm_a;
  const double* lowest_bit_a;
  const double* norm_b;
  const double* lowest_bit_b;
  double relative_error;
  ExactOutput output;
  void* d;            ///< [m][n]
  uint32_t* amax;     ///< Zeroed; FP8 outputs only.
  int64_t* doubtful;  ///< Room for rows * n: indices of outputs within the strip, in no order.
  ExactCounts* counts;
};
/// Rounds what the fp64 result proves and notes the others; counts->doubts is zero before.
cudaError_t LaunchExactCertify(const ExactRoundTask& task, cudaStream_t stream);
/// Rounds the others, by wide integers.
cudaError_t LaunchExactRedo(const ExactRoundTask& task, cudaStream_t stream);

// ---- Bounds.

struct BoundTotals {
  unsigned long long violation_count;
  unsigned long long worst_ratio;  ///< Bits of a double.
};

struct BoundCheckTask {
  ExactStrip strip;  ///< Sums of AbsoluteGemm.
  ExactOutputTerms terms;
  AbsoluteScaling scaling;
  error_bound::ElementBound element;
  const void* subject;  ///< [m][n]
  FormatId subject_format;
  const float* exact;   ///< [m][n]
  BoundTotals* totals;  ///< Zeroed before the first strip.
};
cudaError_t LaunchBoundCheck(const BoundCheckTask& task, cudaStream_t stream);

}  // namespace quantgate
