// Rates of activations on a GPU; bytes_per_second counts bytes read and written, to compare with
// BM_DeviceCopy.
#include "kernels/ops/activation/activation_cuda.h"
#include "kernels/tensor/device/tensor_cuda.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

constexpr int64_t kColumns = 16384;

Tensor Source(DType dtype, int64_t rows, int64_t columns) {
  return ValueOrDie(GenerateCuda(
      BenchmarkDevice(),
      {.distribution = Distribution::kNormal, .dtype = dtype, .shape = {rows, columns}}));
}

void BM_Forward(benchmark::State& state, ActivationKind kind, DType in, DType out) {
  const ActivationOptions options = {.kind = kind};
  const int64_t rows = state.range(0);
  const Tensor h = Source(in, rows, IsGated(kind) ? 2 * kColumns : kColumns);
  TimeOnDevice(state,
               [&] { return ActivationForwardCuda(BenchmarkDevice(), h, options, out).status(); });
  state.SetBytesProcessed(state.iterations() * (static_cast<int64_t>(h.byte_size()) +
                                                rows * kColumns * DTypeBytes(out)));
}

void BM_Backward(benchmark::State& state, ActivationKind kind, DType in, DType out) {
  const ActivationOptions options = {.kind = kind};
  const int64_t rows = state.range(0);
  const Tensor h = Source(in, rows, IsGated(kind) ? 2 * kColumns : kColumns);
  const Tensor dy = Source(in, rows, kColumns);
  TimeOnDevice(state, [&] {
    return ActivationBackwardCuda(BenchmarkDevice(), dy, h, options, out).status();
  });
  state.SetBytesProcessed(
      state.iterations() *
      (static_cast<int64_t>(h.byte_size() + dy.byte_size()) + h.element_count() * DTypeBytes(out)));
}

void Timed(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.02)->Repetitions(5);
  bench->ReportAggregatesOnly();
}
BENCHMARK(BM_DeviceCopy)->Arg(int64_t{1} << 28)->Arg(int64_t{1} << 25)->Apply(Timed);

/// 128 Mi outputs and 16 Mi.
void Sizes(benchmark::internal::Benchmark* bench) { bench->Arg(8192)->Arg(1024)->Apply(Timed); }

#define QG_BENCHMARK(direction, kind, dtype)                                            \
  BENCHMARK_CAPTURE(BM_##direction, kind##_##dtype, ActivationKind::kind, DType::dtype, \
                    DType::dtype)                                                       \
      ->Apply(Sizes)
#define QG_BENCHMARKS(kind)            \
  QG_BENCHMARK(Forward, kind, kBF16);  \
  QG_BENCHMARK(Forward, kind, kF32);   \
  QG_BENCHMARK(Backward, kind, kBF16); \
  QG_BENCHMARK(Backward, kind, kF32)
QG_BENCHMARKS(kRelu);
QG_BENCHMARKS(kGelu);
QG_BENCHMARKS(kSilu);
QG_BENCHMARKS(kSwiglu);
QG_BENCHMARKS(kClampedSwiglu);

}  // namespace
}  // namespace quantgate
