// The kernels of ExactGemmCuda and StartCheckBoundCuda and their launchers. Operands are packed
// once as fp64 numbers and their rows bounded. Then, a strip of rows at a time, their dot products
// go to an fp64 matrix, which is certified, rounded or compared.
//
// The dot products are those of exact_tile.h bit for bit: fused multiply-adds in the order of k,
// from +0 over each 256 elements, and the sums of these added in their order, which is what FP64
// tensor cores compute (docs/tensor-cores.md section 5).
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

/// The rows and the columns of a tile of outputs. Packed operands have whole tiles.
inline constexpr int kExactTileRows = 128;
/// The k of packed operands is padded with zeros to a multiple of this.
inline constexpr int kExactPackedDepth = 32;

/// An operand as fp64 numbers: its elements times their block scales, or magnitudes that stand for
/// them (AbsoluteGemm).
struct ExactCudaOperand {
  CudaOperand operand;
  bool absolute = false;
  double floor = 0, scale_floor = 0, product_floor = 0;  ///< Used where absolute (AbsoluteFloors).

  QG_HOST_DEVICE bool is_scaled() const { return operand.scales != nullptr; }

  /// The fp64 number of an element and its block's scale, which is ignored without block scales.
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

/// An operand and the memory to which it is packed.
struct ExactPackedOperand {
  ExactCudaOperand source;
  int64_t row_tiles;
  void* packed;  ///< [row_tiles][k_padded / 8] blocks of 128 x 8, of uint32_t or double.
};
/// Packs both operands in the order in which the fragments of mma.sync m16n8k8 are read. Element
/// (row, k) goes to ExactPackedIndex.
struct ExactPackTask {
  ExactPackedOperand operands[2];
  int64_t k_padded;
  bool narrow;  ///< Keeps only the upper 32 bits of elements, whose lower ones are all 0.
};
cudaError_t LaunchExactPack(const ExactPackTask& task, cudaStream_t stream);
/// The plain form, a thread for each element. LaunchExactPack must give the same.
cudaError_t LaunchExactPackPlain(const ExactPackTask& task, cudaStream_t stream);

/// The index of (row, k) in its block of 128 x 8: groups of 16 rows one after the other, and in a
/// group the four elements of each lane (PTX ISA, fragments of mma.m16n8k8 with .f64) together, or
/// in two pairs of 16 bytes where elements are doubles.
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

/// A packed operand as it is read.
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

/// The rows of an operand and their ExactRowBounds; squares are summed in the order of k.
struct ExactBoundedRows {
  ExactPacked packed;
  double* norm;                   ///< [rows]
  double* lowest_bit;             ///< [rows]
  unsigned long long* ratio_max;  ///< Bits of the largest norm / lowest_bit; zeroed before.
};
struct ExactRowBoundsTask {
  ExactBoundedRows operands[2];  ///< Equal in k_padded and narrow.
  double inflation;
};
cudaError_t LaunchExactRowBounds(const ExactRowBoundsTask& task, cudaStream_t stream);

// ---- Dot products.

/// row_tiles x column_tiles tiles of dot products; `sums` has whole tiles too.
struct ExactProductsTask {
  const void* a;  ///< The packed operand from the strip's first tile of rows on.
  const void* b;
  int64_t row_tiles, column_tiles, k_padded;
  bool narrow;
  double* sums;  ///< [row_tiles * 128][column_tiles * 128]
};
/// Uses FP64 tensor cores.
cudaError_t LaunchExactProducts(const ExactProductsTask& task, cudaStream_t stream);
/// The plain form, a thread for each output. LaunchExactProducts must give the same bits.
cudaError_t LaunchExactProductsPlain(const ExactProductsTask& task, cudaStream_t stream);

// ---- Outputs.

/// The terms of outputs beside the dot products. Null pointers stand for neutral values.
struct ExactOutputTerms {
  float alpha = 1, beta = 0;
  const float* a_scales = nullptr;  ///< Scales of whole sums, or amaxes of nv16; so are b_scales.
  const float* b_scales = nullptr;
  int a_scale_stride = 0, b_scale_stride = 0;  ///< 1, or 0 for one scale for all rows.
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

/// A strip: rows [begin, begin + rows) of outputs that are n wide, and their dot products.
struct ExactStrip {
  int64_t begin, rows, n;
  const double* sums;
  int64_t stride;
};

/// Counts that kernels make; zeroed before.
struct ExactCounts {
  /// As ExactBoundedRows::ratio_max; of several ExactCounts the first has them.
  unsigned long long ratio_max_a, ratio_max_b;
  unsigned long long wide_dots;
  unsigned long long wide_epilogues;
  unsigned long long doubts;  ///< Outputs of this strip that were not certified.
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
  int64_t* doubtful;  ///< Receives up to rows * n indices of outputs in the strip, in any order.
  ExactCounts* counts;
};
/// Rounds the outputs that the fp64 results prove and lists the others in `doubtful`.
/// counts->doubts must be zero before.
cudaError_t LaunchExactCertify(const ExactRoundTask& task, cudaStream_t stream);
/// Rounds the outputs in `doubtful`, by wide integers.
cudaError_t LaunchExactRedo(const ExactRoundTask& task, cudaStream_t stream);

// ---- Bounds.

struct BoundTotals {
  unsigned long long violation_count;
  unsigned long long worst_ratio;  ///< Bits of a double.
};

struct BoundCheckTask {
  ExactStrip strip;  ///< The sums are those of AbsoluteGemm.
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
