#include "kernels/validate/reference/ideal_scale.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/hadamard.h"

namespace quantgate {
namespace {

struct Block {
  int64_t row_begin, row_end, column_begin, column_end;
};

template <class F>
void RoundBlock(const float* in, int64_t stride, const Block& block, float* out) {
  float amax = 0;
  for (int64_t row = block.row_begin; row < block.row_end; ++row) {
    for (int64_t column = block.column_begin; column < block.column_end; ++column) {
      const float magnitude = std::fabs(in[row * stride + column]);
      if (magnitude > amax) amax = magnitude;  // False for NaN.
    }
  }
  const float ideal = amax / MaxFinite<F>();
  const float scale = ideal > 0 && std::isfinite(ideal) ? ideal : 1.0f;
  for (int64_t row = block.row_begin; row < block.row_end; ++row) {
    for (int64_t column = block.column_begin; column < block.column_end; ++column) {
      const int64_t at = row * stride + column;
      out[at] = DecodeFloat<F>(EncodeFloat<F>(in[at] / scale)) * scale;
    }
  }
}

using RoundFunction = void (*)(const float*, int64_t, const Block&, float*);

RoundFunction RoundFunctionFor(DType element) {
  switch (element) {
    case DType::kF8E5M2:
      return RoundBlock<E5M2>;
    case DType::kF6E2M3:
      return RoundBlock<E2M3>;
    case DType::kF6E3M2:
      return RoundBlock<E3M2>;
    case DType::kF4E2M1x2:
      return RoundBlock<E2M1>;
    default:
      return RoundBlock<E4M3>;
  }
}

}  // namespace

absl::StatusOr<Tensor> WithIdealScales(const Tensor& matrix, const QuantizerSpec& spec,
                                       bool along_rows, const ExecutionContext& context) {
  const int64_t rows = matrix.rows(), columns = matrix.columns();
  QG_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(DType::kF32, matrix.shape()));
  const bool is_per_tensor = spec.traits().scales == ScaleKind::kTensor;
  const bool is_per_line = spec.traits().scales == ScaleKind::kLine;
  const int64_t length =
      is_per_line ? std::max<int64_t>(along_rows ? columns : rows, 1) : BlockLength(spec.format);
  const int64_t other = spec.block_dim == 2 ? length : 1;
  const int64_t block_rows = is_per_tensor ? std::max<int64_t>(rows, 1)
                             : along_rows  ? other
                                           : length;
  const int64_t block_columns = is_per_tensor ? std::max<int64_t>(columns, 1)
                                : along_rows  ? length
                                              : other;
  const RoundFunction round = RoundFunctionFor(spec.element);
  const int64_t bands = (rows + block_rows - 1) / block_rows;
  ParallelFor(context, bands, 1, [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band) {
      for (int64_t column = 0; column < columns; column += block_columns) {
        round(matrix.as<float>(), columns,
              {band * block_rows, std::min(rows, (band + 1) * block_rows), column,
               std::min(columns, column + block_columns)},
              out.as<float>());
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return out;
}

absl::StatusOr<Tensor> WithHadamard(const Tensor& matrix, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(DType::kF32, matrix.shape()));
  const int64_t groups = matrix.element_count() / kHadamardLength;
  ParallelFor(context, groups, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const float* in = matrix.as<float>() + group * kHadamardLength;
      for (int j = 0; j < kHadamardLength; ++j) {
        double sum = 0;
        for (int i = 0; i < kHadamardLength; ++i) {
          sum += IsHadamardNegative(i, j) ? -double(in[i]) : double(in[i]);
        }
        out.as<float>()[group * kHadamardLength + j] = static_cast<float>(sum * 0.25);
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return out;
}

}  // namespace quantgate
