// Rates of norms, element-wise operations and optimizers on a GPU; bytes_per_second counts what
// must be read and written once, to compare with BM_DeviceCopy.
#include "kernels/ops/elementwise/elementwise_cuda.h"
#include "kernels/ops/norm/norm_cuda.h"
#include "kernels/ops/optimizer/optimizer_cuda.h"
#include "kernels/tensor/device/tensor_cuda.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

constexpr int64_t kElements = int64_t{1} << 28;

Tensor Source(DType dtype, Shape shape, Distribution distribution = Distribution::kNormal) {
  return ValueOrDie(
      GenerateCuda(BenchmarkDevice(),
                   {.distribution = distribution, .dtype = dtype, .shape = std::move(shape)}));
}

NormForwardDesc Forward(NormKind kind, DType dtype, int64_t columns) {
  NormForwardDesc desc;
  desc.options.kind = kind;
  desc.x = Source(dtype, {kElements / columns, columns});
  desc.gamma = Source(dtype, {columns});
  if (kind == NormKind::kLayerNorm) desc.beta = desc.gamma;
  desc.out = dtype;
  return desc;
}

void BM_NormForward(benchmark::State& state, NormKind kind, DType dtype) {
  const NormForwardDesc desc = Forward(kind, dtype, state.range(0));
  TimeOnDevice(state, [&] { return NormForwardCuda(BenchmarkDevice(), desc).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * 2 * DTypeBytes(dtype));
}

/// dx, dgamma and dbeta: x and dz are counted once, although rows and columns each read them.
void BM_NormBackward(benchmark::State& state, NormKind kind, DType dtype) {
  const NormForwardDesc forward = Forward(kind, dtype, state.range(0));
  const NormForwardResult z = ValueOrDie(NormForwardCuda(BenchmarkDevice(), forward));
  NormBackwardDesc desc;
  desc.x = forward.x;
  desc.dz = z.y;
  desc.gamma = forward.gamma;
  desc.mean = z.mean;
  desc.rstd = z.rstd;
  desc.options = forward.options;
  desc.wanted.dbeta = kind == NormKind::kLayerNorm;
  TimeOnDevice(state, [&] { return NormBackwardCuda(BenchmarkDevice(), desc).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * 3 * DTypeBytes(dtype));
}

void BM_Add(benchmark::State& state, DType dtype) {
  const Tensor a = Source(dtype, {kElements}), b = Source(dtype, {kElements});
  TimeOnDevice(state, [&] { return AddCuda(BenchmarkDevice(), a, b, dtype).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * 3 * DTypeBytes(dtype));
}

void BM_Adam(benchmark::State& state, DType gradient) {
  AdamDesc desc;
  desc.master = Source(DType::kF32, {kElements});
  desc.gradient = Source(gradient, {kElements});
  desc.m = Source(DType::kF32, {kElements});
  desc.v = Source(DType::kF32, {kElements}, Distribution::kAllZero);
  desc.options.weight_decay = 0.01f;
  TimeOnDevice(state, [&] { return AdamStepCuda(BenchmarkDevice(), desc).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * (24 + DTypeBytes(gradient)));
}

void BM_SplitMaster(benchmark::State& state) {
  const Tensor master = Source(DType::kF32, {kElements});
  TimeOnDevice(state, [&] { return SplitMasterCuda(BenchmarkDevice(), master).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * 8);
}

void Timed(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.05)->Repetitions(5);
  bench->ReportAggregatesOnly();
}
void TimedByColumns(benchmark::internal::Benchmark* bench) {
  Timed(bench->ArgName("columns")->Arg(1024)->Arg(4096)->Arg(16384));
}
BENCHMARK(BM_DeviceCopy)->Arg(int64_t{1} << 30)->Apply(Timed);
BENCHMARK_CAPTURE(BM_NormForward, layernorm_bf16, NormKind::kLayerNorm, DType::kBF16)
    ->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_NormForward, rmsnorm_bf16, NormKind::kRmsNorm, DType::kBF16)
    ->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_NormForward, layernorm_f32, NormKind::kLayerNorm, DType::kF32)
    ->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_NormBackward, layernorm_bf16, NormKind::kLayerNorm, DType::kBF16)
    ->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_NormBackward, rmsnorm_bf16, NormKind::kRmsNorm, DType::kBF16)
    ->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_Add, bf16, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Add, f32, DType::kF32)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Adam, bf16, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Adam, f32, DType::kF32)->Apply(Timed);
BENCHMARK(BM_SplitMaster)->Apply(Timed);

}  // namespace
}  // namespace quantgate
