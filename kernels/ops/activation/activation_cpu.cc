#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/activation/activation_kernels.h"
#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

/// Elements that stay in the L1 cache from load to store.
constexpr int64_t kActivationRun = 1024;
constexpr int64_t kActivationGrain = 1 << 14;

ActivationKernels KernelsFor(const ActivationOptions& options, Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return Avx512ActivationKernels(options);
    case Isa::kAvx2:
      return Avx2ActivationKernels(options);
    case Isa::kScalar:
      break;
  }
  return ScalarActivationKernels(options);
}

/// Where a run of outputs lies: elements of the output, and of h the activated and the gate half.
struct RunPlace {
  int64_t count, output, activated, gate;
};

/// Calls body(place) for runs of at most kActivationRun elements of the output's `columns`, none
/// across rows of a gated input.
template <class Body>
absl::Status ForActivationRuns(const ExecutionContext& context, int64_t count, int64_t columns,
                               bool is_gated, const Body& body) {
  ParallelFor(context, count, kActivationGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t row = is_gated ? at / columns : 0;
      const int64_t row_end = is_gated ? (row + 1) * columns : count;
      const int64_t length = std::min({kActivationRun, end - at, row_end - at});
      body(RunPlace{length, at, at + row * columns, at + (row + 1) * columns});
      at += length;
    }
  });
  return context.CheckCancelled();
}

}  // namespace

absl::StatusOr<Tensor> ActivationForwardCpu(const Tensor& h, const ActivationOptions& options,
                                            DType out, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckActivationForward(h, options, out));
  QG_ASSIGN_OR_RETURN(Tensor y,
                      Tensor::Allocate(out, ActivationOutputShape(h.shape(), options.kind)));
  const RowKernels& rows = RowKernelsOf(context.isa);
  const ActivationKernels kernels = KernelsFor(options, context.isa);
  const bool is_gated = IsGated(options.kind);
  QG_RETURN_IF_ERROR(ForActivationRuns(
      context, y.element_count(), y.columns(), is_gated, [&](const RunPlace& place) {
        alignas(64) float x[kActivationRun], gate[kActivationRun], value[kActivationRun];
        LoadRow(rows, h, place.activated, place.count, x);
        if (is_gated) LoadRow(rows, h, place.gate, place.count, gate);
        kernels.forward(options, {.count = place.count, .x = x, .gate = gate, .value = value});
        StoreRow(rows, value, place.output, place.count, y);
      }));
  return y;
}

absl::StatusOr<Tensor> ActivationBackwardCpu(const Tensor& dy, const Tensor& h,
                                             const ActivationOptions& options, DType out,
                                             const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckActivationBackward(dy, h, options, out));
  QG_ASSIGN_OR_RETURN(Tensor dh, Tensor::Allocate(out, h.shape()));
  const RowKernels& rows = RowKernelsOf(context.isa);
  const ActivationKernels kernels = KernelsFor(options, context.isa);
  const bool is_gated = IsGated(options.kind);
  QG_RETURN_IF_ERROR(ForActivationRuns(
      context, dy.element_count(), dy.columns(), is_gated, [&](const RunPlace& place) {
        alignas(64) float x[kActivationRun], gate[kActivationRun], gradient[kActivationRun],
            x_gradient[kActivationRun], gate_gradient[kActivationRun];
        LoadRow(rows, h, place.activated, place.count, x);
        if (is_gated) LoadRow(rows, h, place.gate, place.count, gate);
        LoadRow(rows, dy, place.output, place.count, gradient);
        kernels.backward(options, {.count = place.count,
                                   .x = x,
                                   .gate = gate,
                                   .dy = gradient,
                                   .x_gradient = x_gradient,
                                   .gate_gradient = gate_gradient});
        StoreRow(rows, x_gradient, place.activated, place.count, dh);
        if (is_gated) StoreRow(rows, gate_gradient, place.gate, place.count, dh);
      }));
  return dh;
}

}  // namespace quantgate
