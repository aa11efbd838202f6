// Rates of norms, attention, element-wise operations and optimizers on a GPU; bytes_per_second
// counts what must be read and written once, to compare with BM_DeviceCopy.
#include "kernels/ops/ops_cuda.h"
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

/// Scores are read, probabilities written in fp32 and, of 16 bits, in their dtype.
void BM_Softmax(benchmark::State& state, DType dtype) {
  SoftmaxDesc desc;
  desc.scores = Source(dtype, {kElements / state.range(0), state.range(0)});
  TimeOnDevice(state, [&] { return SoftmaxForwardCuda(BenchmarkDevice(), desc).status(); });
  const int64_t bytes = dtype == DType::kF32 ? 8 : 4 + 2 * DTypeBytes(dtype);
  state.SetBytesProcessed(state.iterations() * kElements * bytes);
}

void BM_SoftmaxBackward(benchmark::State& state, DType dtype) {
  SoftmaxBackwardDesc desc;
  desc.gradient = Source(dtype, {kElements / state.range(0), state.range(0)});
  desc.probabilities = Source(DType::kF32, desc.gradient.shape());
  TimeOnDevice(state, [&] { return SoftmaxBackwardCuda(BenchmarkDevice(), desc).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * (4 + 2 * DTypeBytes(dtype)));
}

/// Heads of 128 columns at 2048 positions.
void BM_Rotate(benchmark::State& state, DType dtype) {
  RotaryDesc desc;
  desc.heads = Source(dtype, {kElements / (2048 * 128), 2048, 128});
  const RotaryTable table = ValueOrDie(MakeRotaryTable(1e4f, 2048, 128, dtype));
  desc.table = {ValueOrDie(BenchmarkDevice().ToDevice(table.cosines)),
                ValueOrDie(BenchmarkDevice().ToDevice(table.sines))};
  TimeOnDevice(state, [&] { return RotateCuda(BenchmarkDevice(), desc).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * 2 * DTypeBytes(dtype));
}

/// Positions and heads of 128 columns, in either order.
void BM_SwapDims(benchmark::State& state) {
  const Tensor source = Source(DType::kBF16, {kElements / (64 * 128), 64, 128});
  TimeOnDevice(state, [&] { return SwapDimsCuda(BenchmarkDevice(), source).status(); });
  state.SetBytesProcessed(state.iterations() * kElements * 4);
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
BENCHMARK_CAPTURE(BM_Softmax, bf16, DType::kBF16)->Arg(128)->Arg(2048)->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_Softmax, f32, DType::kF32)->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_SoftmaxBackward, bf16, DType::kBF16)
    ->Arg(128)
    ->Arg(2048)
    ->Apply(TimedByColumns);
BENCHMARK_CAPTURE(BM_Rotate, bf16, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Rotate, f32, DType::kF32)->Apply(Timed);
BENCHMARK(BM_SwapDims)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Add, bf16, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Add, f32, DType::kF32)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Adam, bf16, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Adam, f32, DType::kF32)->Apply(Timed);
BENCHMARK(BM_SplitMaster)->Apply(Timed);

}  // namespace
}  // namespace quantgate
