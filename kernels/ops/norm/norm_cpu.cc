#include <algorithm>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/norm.h"
#include "kernels/ops/norm/norm.h"
#include "kernels/ops/row_kernels.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/row_accumulator.h"

namespace quantgate {
namespace {

/// Elements of a piece of rows.
constexpr int64_t kGrainElements = 1 << 16;

int64_t GrainRows(int64_t columns) { return std::max<int64_t>(1, kGrainElements / columns); }

/// What all rows share, with the floats that it points to.
struct SharedRow {
  NormRow row;
  std::vector<float> gamma, beta;
};

void ShareRow(const Tensor& gamma, const Tensor& beta, const NormOptions& options,
              const RowKernels& kernels, SharedRow& shared) {
  const int64_t columns = gamma.element_count();
  shared.gamma.resize(static_cast<size_t>(columns));
  LoadRow(kernels, gamma, 0, columns, shared.gamma.data());
  for (float& value : shared.gamma) value = NormGamma(value, options.zero_centered_gamma);
  if (beta.has_value()) {
    shared.beta.resize(static_cast<size_t>(columns));
    LoadRow(kernels, beta, 0, columns, shared.beta.data());
  }
  shared.row = {.columns = columns,
                .gamma = shared.gamma.data(),
                .beta = beta.has_value() ? shared.beta.data() : nullptr,
                .inverse_count = NormInverseCount(columns),
                .epsilon = options.epsilon,
                .is_centered = options.kind == NormKind::kLayerNorm};
}

/// The statistics that forward gave of a row.
NormStatistics StatisticsAt(const NormBackwardDesc& desc, int64_t row) {
  const bool has_mean = desc.options.kind == NormKind::kLayerNorm;
  return {has_mean ? desc.mean.as<float>()[row] : 0.0f, desc.rstd.as<float>()[row]};
}

absl::StatusOr<Tensor> RowGradients(const NormBackwardDesc& desc, const ExecutionContext& context) {
  QG_ASSIGN_OR_RETURN(Tensor dx, Tensor::Allocate(desc.x.dtype(), desc.x.shape()));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  const int64_t columns = desc.x.columns();
  SharedRow shared;
  ShareRow(desc.gamma, Tensor(), desc.options, kernels, shared);
  ParallelFor(context, desc.x.rows(), GrainRows(columns), [&](int64_t begin, int64_t end) {
    std::vector<float> x(columns), dz(columns), scratch(columns);
    for (int64_t r = begin; r < end; ++r) {
      LoadRow(kernels, desc.x, r * columns, columns, x.data());
      LoadRow(kernels, desc.dz, r * columns, columns, dz.data());
      kernels.norm_backward(shared.row, StatisticsAt(desc, r), x.data(), dz.data(), scratch.data());
      if (desc.residual.has_value()) {
        LoadRow(kernels, desc.residual, r * columns, columns, scratch.data());
        kernels.add(scratch.data(), columns, dz.data());
      }
      StoreRow(kernels, dz.data(), r * columns, columns, dx);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return dx;
}

/// Sums of dz * xhat and of dz down some columns.
class ColumnGradients {
 public:
  ColumnGradients(const NormBackwardDesc& desc, const RowKernels& kernels, int64_t begin,
                  int64_t width)
      : desc_(desc),
        kernels_(kernels),
        begin_(begin),
        width_(width),
        gamma_(kAccumulatorColumns, width),
        beta_(kAccumulatorColumns, width) {}

  void AddAllRows() {
    const int64_t rows = desc_.x.rows();
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) {
      for (int64_t i = 0; i < 8; ++i) LoadTerms(r + i, i);
      if (desc_.wanted.dgamma) gamma_.AddEightRows(terms_);
      if (desc_.wanted.dbeta) beta_.AddEightRows(dz_);
    }
    for (; r < rows; ++r) {
      LoadTerms(r, 0);
      if (desc_.wanted.dgamma) gamma_.AddRow(terms_);
      if (desc_.wanted.dbeta) beta_.AddRow(dz_);
    }
  }

  void Sums(float* dgamma, float* dbeta) const {
    if (dgamma != nullptr) gamma_.Sum(dgamma + begin_);
    if (dbeta != nullptr) beta_.Sum(dbeta + begin_);
  }

 private:
  void LoadTerms(int64_t row, int64_t slot) {
    const int64_t at = row * desc_.x.columns() + begin_;
    if (row + kPrefetchRows < desc_.x.rows()) {
      const int64_t ahead = at + kPrefetchRows * desc_.x.columns();
      PrefetchRow(desc_.dz, ahead, width_);
      if (desc_.wanted.dgamma) PrefetchRow(desc_.x, ahead, width_);
    }
    float* dz = dz_ + slot * kAccumulatorColumns;
    float* terms = terms_ + slot * kAccumulatorColumns;
    LoadRow(kernels_, desc_.dz, at, width_, dz);
    if (!desc_.wanted.dgamma) return;
    LoadRow(kernels_, desc_.x, at, width_, terms);
    kernels_.norm_gamma_terms(StatisticsAt(desc_, row), dz, width_, terms);
  }

  static constexpr int64_t kPrefetchRows = 8;
  const NormBackwardDesc& desc_;
  const RowKernels& kernels_;
  const int64_t begin_, width_;
  RowAccumulator<F32Rows> gamma_, beta_;
  alignas(64) float terms_[8 * kAccumulatorColumns];
  alignas(64) float dz_[8 * kAccumulatorColumns];
};

/// dgamma and dbeta, those that are wanted.
absl::Status AddColumnGradients(const NormBackwardDesc& desc, const ExecutionContext& context,
                                NormGradients& gradients) {
  const int64_t columns = desc.x.columns();
  QG_ASSIGN_OR_RETURN(Tensor dgamma, Tensor::Allocate(DType::kF32, {columns}));
  QG_ASSIGN_OR_RETURN(Tensor dbeta, Tensor::Allocate(DType::kF32, {columns}));
  const RowKernels& kernels = RowKernelsOf(context.isa);
  ParallelFor(context, columns, kAccumulatorColumns, [&](int64_t begin, int64_t end) {
    ColumnGradients sums(desc, kernels, begin, end - begin);
    sums.AddAllRows();
    sums.Sums(desc.wanted.dgamma ? dgamma.as<float>() : nullptr,
              desc.wanted.dbeta ? dbeta.as<float>() : nullptr);
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  const DType out = desc.gamma.dtype();
  if (desc.wanted.dgamma) {
    QG_ASSIGN_OR_RETURN(gradients.dgamma, CastTensor(dgamma, out, context));
  }
  if (desc.wanted.dbeta) {
    QG_ASSIGN_OR_RETURN(gradients.dbeta, CastTensor(dbeta, out, context));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NormForwardResult> NormForwardCpu(const NormForwardDesc& desc,
                                                 const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckNorm(desc));
  const int64_t rows = desc.x.rows(), columns = desc.x.columns();
  const bool has_mean = desc.options.kind == NormKind::kLayerNorm;
  NormForwardResult result;
  QG_ASSIGN_OR_RETURN(result.y, Tensor::Allocate(desc.out, desc.x.shape()));
  QG_ASSIGN_OR_RETURN(result.rstd, Tensor::Allocate(DType::kF32, {rows}));
  if (has_mean) {
    QG_ASSIGN_OR_RETURN(result.mean, Tensor::Allocate(DType::kF32, {rows}));
  }
  const RowKernels& kernels = RowKernelsOf(context.isa);
  SharedRow shared;
  ShareRow(desc.gamma, desc.beta, desc.options, kernels, shared);
  ParallelFor(context, rows, GrainRows(columns), [&](int64_t begin, int64_t end) {
    std::vector<float> x(columns), scratch(columns);
    for (int64_t r = begin; r < end; ++r) {
      LoadRow(kernels, desc.x, r * columns, columns, x.data());
      NormStatistics statistics;
      kernels.norm_forward(shared.row, x.data(), scratch.data(), statistics);
      StoreRow(kernels, x.data(), r * columns, columns, result.y);
      StoreRow(kernels, &statistics.rstd, r, 1, result.rstd);
      if (has_mean) StoreRow(kernels, &statistics.mean, r, 1, result.mean);
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return result;
}

absl::StatusOr<NormGradients> NormBackwardCpu(const NormBackwardDesc& desc,
                                              const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckNorm(desc));
  NormGradients gradients;
  if (desc.wanted.dx) {
    QG_ASSIGN_OR_RETURN(gradients.dx, RowGradients(desc, context));
  }
  if (desc.wanted.dgamma || desc.wanted.dbeta) {
    QG_RETURN_IF_ERROR(AddColumnGradients(desc, context, gradients));
  }
  return gradients;
}

}  // namespace quantgate
