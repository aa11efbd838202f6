// Rates of what tensor_cuda.h does; bytes_per_second counts bytes read and written, to compare
// with BM_DeviceCopy.
#include "kernels/tensor/device/tensor_cuda.h"

#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

constexpr int64_t kBytes = int64_t{1} << 30;
constexpr int64_t kColumns = 8192;

Tensor Source(DType dtype, Distribution distribution = Distribution::kNormal) {
  const int64_t rows = kBytes / DTypeBytes(dtype) / kColumns;
  return ValueOrDie(
      GenerateCuda(BenchmarkDevice(),
                   {.distribution = distribution, .dtype = dtype, .shape = {rows, kColumns}}));
}

void BM_Generate(benchmark::State& state, Distribution distribution, DType dtype) {
  const GeneratorSpec spec = {
      .distribution = distribution, .dtype = dtype, .shape = {kBytes / DTypeBytes(dtype)}};
  TimeOnDevice(state, [&] { return GenerateCuda(BenchmarkDevice(), spec).status(); });
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void BM_Cast(benchmark::State& state, DType in, DType out) {
  const Tensor x = Source(in);
  TimeOnDevice(state, [&] { return CastTensorCuda(BenchmarkDevice(), x, out).status(); });
  state.SetBytesProcessed(state.iterations() * x.element_count() *
                          (DTypeBytes(in) + DTypeBytes(out)));
}

void BM_CastFromF64(benchmark::State& state, DType out) {
  const Tensor x =
      ValueOrDie(BenchmarkDevice().AllocateZeroed(DType::kF64, {kBytes / 8 / kColumns, kColumns}));
  TimeOnDevice(state, [&] { return CastTensorCuda(BenchmarkDevice(), x, out).status(); });
  state.SetBytesProcessed(state.iterations() * x.element_count() * (8 + DTypeBytes(out)));
}

void BM_Transpose(benchmark::State& state, DType dtype) {
  const Tensor x = Source(dtype);
  TimeOnDevice(state, [&] { return Transpose2dCuda(BenchmarkDevice(), x).status(); });
  state.SetBytesProcessed(state.iterations() * 2 * kBytes);
}

void BM_ColumnSums(benchmark::State& state, DType dtype) {
  const Tensor x = Source(dtype);
  TimeOnDevice(state, [&] { return ColumnSumsCuda(BenchmarkDevice(), x, dtype).status(); });
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void BM_Fingerprint(benchmark::State& state) {
  const Tensor x = Source(DType::kBF16);
  TimeOnDevice(state, [&] { return FingerprintsCuda(BenchmarkDevice(), {&x, 1}).status(); });
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void Timed(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.1)->Repetitions(5);
  bench->ReportAggregatesOnly();
}
BENCHMARK(BM_DeviceCopy)->Arg(kBytes)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Generate, zero_bf16, Distribution::kAllZero, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Generate, uniform_bf16, Distribution::kUniform, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Generate, normal_bf16, Distribution::kNormal, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Generate, normal_f32, Distribution::kNormal, DType::kF32)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Cast, f32_bf16, DType::kF32, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Cast, f32_e4m3, DType::kF32, DType::kF8E4M3)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Cast, f32_e2m3, DType::kF32, DType::kF6E2M3)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Cast, bf16_f32, DType::kBF16, DType::kF32)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Cast, bf16_e4m3, DType::kBF16, DType::kF8E4M3)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Cast, f16_f32, DType::kF16, DType::kF32)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Cast, e4m3_bf16, DType::kF8E4M3, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_CastFromF64, f32, DType::kF32)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Transpose, e4m3, DType::kF8E4M3)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Transpose, bf16, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_Transpose, f32, DType::kF32)->Apply(Timed);
BENCHMARK_CAPTURE(BM_ColumnSums, bf16, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_ColumnSums, f32, DType::kF32)->Apply(Timed);
BENCHMARK(BM_Fingerprint)->Apply(Timed);

}  // namespace
}  // namespace quantgate
