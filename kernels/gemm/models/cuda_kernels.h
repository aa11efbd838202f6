// The kernels of GemmCuda and their launchers. Operands are packed once, and accumulators go to an
// fp32 matrix, which the epilogue turns into the output.
//
// How the fused kernels compute a step: panel.h derives why a fused multiply-add under rounding
// toward zero, onto 2^(E - F + p), truncates a product to the step's grid and adds it. Truncation
// is of magnitudes, so |a| * |b| is truncated, and the signs are applied afterwards, without
// branches:
//   narrow (FP8 at F = 13, float): one accumulator takes |a| * |b| of every product, the other
//     a+ * b+ and a- * b-, of which at most one is not zero; the sum of the step is twice the
//     second less the first. Both are exact by the bound of panel.h.
//   wide (F <= 25, double): each product is truncated onto the start value by itself. Its whole
//     number of units, below 2^(F+2) <= 2^27, is the lower word of the result; x ^ -1 is -x - 1, so
//     the words with the sign's mask xored in, and one for each negative product, sum to the step's
//     sum. 16 of them fit 32 bits: 16 * (2^27 - 1) < 2^31.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/cuda_operand.h"
#include "kernels/gemm/epilogue_step.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// The rows of packed operands are padded to a multiple of this, and k to one of kPackedDepth.
inline constexpr int kPackedRows = 128;
inline constexpr int kPackedDepth = 32;

// ---- Packing.

/// Packs elements as fp32 numbers, NaN and infinity as a zero of their sign.
struct PackProductsTask {
  CudaOperand operand;
  ScaleUse use;
  ProductOrder order;
  int64_t k_end;  ///< Elements from here on are in no sum and are packed as zeros.
  int64_t rows_padded, k_padded;
  float* values;    ///< [k_padded / 4][rows_padded][4]
  int16_t* shifts;  ///< [k_padded / kPackedDepth][rows_padded]; null unless use is kExponents.
  /// [rows][k_padded / 32][4]: sets of k, a bit each, that are NaN (or under a NaN scale),
  /// infinite, zero and negative.
  uint32_t* classes;
  /// [1 + rows], zeroed before: whether any row, and then whether each row, has a NaN or an
  /// infinity.
  uint32_t* special_rows;
};
cudaError_t LaunchPackProducts(const PackProductsTask& task, cudaStream_t stream);

/// Packs elements times their scales, rounded to fp32.
struct PackRealsTask {
  CudaOperand operand;
  float padding;  ///< -0 for one of the operands: fma(+0, -0, x) is x, -0 included.
  int64_t rows_padded, k_padded;
  float* values;  ///< [k_padded / 4][rows_padded][4]
};
cudaError_t LaunchPackReals(const PackRealsTask& task, cudaStream_t stream);

/// Packs FP4 codes as twice their values in int8, and the scales of their groups.
struct PackGroupsTask {
  CudaOperand operand;
  int64_t rows_padded, k_padded;  ///< k is padded to whole steps.
  uint32_t* values;               ///< [k_padded / 4][rows_padded], four values in each word.
  int32_t* scales;                ///< [k_padded / 16][rows_padded]: significand + 256 * exponent.
  uint32_t* special_rows;         ///< As in PackProductsTask.
};
cudaError_t LaunchPackGroups(const PackGroupsTask& task, cudaStream_t stream);

// ---- Accumulators [m][n].

/// A packed operand as the kernels read it.
struct PackedOperand {
  const float* values = nullptr;
  const int16_t* shifts = nullptr;    ///< Null: none.
  const uint32_t* classes = nullptr;  ///< As in PackProductsTask.
  int64_t rows = 0, rows_padded = 0;
  int64_t k_padded = 0;
  int exponent_min = 0;  ///< The format's smallest exponent, with which subnormals count.
};

/// Computes the accumulators of one slice of k, under rules without groups whose step divides 32
/// and whose F is at most 25.
struct FusedTask {
  FusedRule rule;
  PackedOperand a, b;
  CudaOperand a_scales, b_scales;  ///< Hold the factors of promoted sums, where the rule has them.
  int64_t m, n;
  int64_t begin, end;  ///< The slice of k, in multiples of kPackedDepth.
  float* accumulators;
};
cudaError_t LaunchFused(const FusedTask& task, cudaStream_t stream);

/// Computes the accumulators of NVFP4, in steps of 4 groups of 16.
struct GroupsTask {
  const uint32_t* a;
  const uint32_t* b;
  const int32_t* a_scales;
  const int32_t* b_scales;
  int64_t a_rows_padded, b_rows_padded;
  int64_t m, n, k_padded;
  int align_bits;
  float* accumulators;
};
cudaError_t LaunchGroups(const GroupsTask& task, cudaStream_t stream);

/// Computes accumulators by sequential fp32 FMA over k.
struct Fp32Task {
  const float* a;
  const float* b;
  int64_t a_rows_padded, b_rows_padded;
  int64_t m, n, k_padded;
  float* accumulators;
};
cudaError_t LaunchFp32(const Fp32Task& task, cudaStream_t stream);

/// Rows of k integers of 8 bits.
struct IntegerOperand {
  const uint8_t* codes = nullptr;
  bool is_signed = true;
  int64_t row_stride = 0, k_stride = 1;  ///< In elements.
  const float* scales = nullptr;         ///< Null: 1.
  const uint8_t* zeros = nullptr;        ///< Of the codes' signedness; null: 0.
  bool has_scale_per_row = false;        ///< Else one scale and one zero point for all rows.
};
/// Computes f32(f32(f32(acc) * scale_a) * scale_b), acc the sum over k of (a - zero_a) (b - zero_b)
/// in 64 bits (docs/quantizers.md section 11.4).
struct IntegerTask {
  IntegerOperand a, b;
  int64_t m, n, k;
  float* accumulators;
};
cudaError_t LaunchIntegers(const IntegerTask& task, int multiprocessors, cudaStream_t stream);

/// Two operands that are not packed.
struct OperandPair {
  CudaOperand a, b;
  ScaleUse use = ScaleUse::kNone;
};

/// Computes accumulators under any rule by DotUnder, with a thread for each output.
struct ScalarTask {
  FusedRule rule;
  OperandPair operands;
  float* accumulators;
};
cudaError_t LaunchScalar(const ScalarTask& task, cudaStream_t stream);

/// Replaces the outputs that a NaN or an infinity reaches, which the fused kernels took for zeros.
/// Without classes there is only NaN, which reaches whole rows and columns.
struct SpecialOutputsTask {
  FusedRule rule;
  OperandPair operands;
  const uint32_t* a_classes;
  const uint32_t* b_classes;
  int64_t words;  ///< Words of each set of a row.
  const uint32_t* a_special_rows;
  const uint32_t* b_special_rows;
  float* accumulators;
};
cudaError_t LaunchSpecialOutputs(const SpecialOutputsTask& task, cudaStream_t stream);

/// total[i] = total[i] + slice[i].
cudaError_t LaunchAddSlice(const float* slice, int64_t count, float* total, cudaStream_t stream);

// ---- Outputs.

struct EpilogueTask {
  int64_t m, n;
  const float* accumulators;
  void* d;  ///< May be the accumulators where it is f32.
  FormatId out_format;
  Combination combination;
  bool keeps_negative_zero;
  float alpha, beta;
  float reciprocal;         ///< The last factor of the coefficient; 1 except under nv16.
  const float* scale_a;     ///< [1], a per-tensor scale or an amax of nv16; null: 1.
  const float* scale_b;     ///< [1]; null: 1.
  const float* row_scales;  ///< [m], with column_scales: outer-vector scales; null: none.
  const float* column_scales;
  const float* row_amaxes;   ///< [m]: row-scaled nv16; null: none.
  const float* column_amax;  ///< [1], beside row_amaxes; null: 1.
  const void* c;
  FormatId c_format;
  const void* bias;  ///< [n]; null: none.
  FormatId bias_format;
  const float* d_scale;  ///< [1]; null: 1.
  uint32_t* amax;        ///< Receives the bits of the amax of an FP8 output; zeroed before.
};
cudaError_t LaunchEpilogue(const EpilogueTask& task, cudaStream_t stream);

/// Lowers *first, which is at least `count` before, to the index of the first of `count` scales
/// that is not a number of E8M0.
cudaError_t LaunchFindScaleOffE8M0(const float* scales, int64_t count, unsigned long long* first,
                                   cudaStream_t stream);

}  // namespace quantgate
