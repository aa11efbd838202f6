// Rates of comparisons; bytes_per_second counts both sides once.
#include <benchmark/benchmark.h>

#include <random>

#include "kernels/compare/error_report.h"
#include "kernels/compare/parity_report.h"

namespace quantgate {
namespace {

constexpr int64_t kRows = 2048, kColumns = 4096;

/// A tensor of normal finite codes, and one that differs from it by an ulp in every `every`-th
/// element (0: nowhere).
std::pair<Tensor, Tensor> MakePair(DType dtype, int64_t every) {
  Tensor subject = Tensor::Allocate(dtype, {kRows, kColumns}).value();
  Tensor reference = Tensor::Allocate(dtype, {kRows, kColumns}).value();
  std::mt19937 random(1);
  const int bytes = DTypeBytes(dtype);
  auto* s = subject.as<uint8_t>();
  auto* r = reference.as<uint8_t>();
  for (size_t i = 0; i < subject.byte_size(); ++i) {
    const bool is_top = i % bytes == static_cast<size_t>(bytes) - 1;
    s[i] = r[i] = static_cast<uint8_t>(is_top ? 0x38 | (random() & 0x83) : random() & 0x7E);
  }
  if (every > 0) {
    for (int64_t i = 0; i < subject.element_count(); i += every) s[i * bytes] ^= 1;
  }
  return {subject, reference};
}

ExecutionContext ContextOf(const benchmark::State& state) {
  ExecutionContext context;
  context.threads = static_cast<int>(state.range(0));
  return context;
}

void BM_CompareBits(benchmark::State& state, DType dtype, int64_t every) {
  const auto [subject, reference] = MakePair(dtype, every);
  for (auto _ : state) benchmark::DoNotOptimize(CompareBits(subject, reference, ContextOf(state)));
  state.SetBytesProcessed(state.iterations() * 2 * subject.byte_size());
}

void BM_MeasureError(benchmark::State& state, DType dtype) {
  const auto [subject, reference] = MakePair(dtype, 3);
  for (auto _ : state) benchmark::DoNotOptimize(MeasureError(subject, reference, ContextOf(state)));
  state.SetBytesProcessed(state.iterations() * 2 * subject.byte_size());
}

void BM_MeasureNearer(benchmark::State& state) {
  const auto [subject, reference] = MakePair(DType::kF32, 3);
  for (auto _ : state) {
    benchmark::DoNotOptimize(MeasureNearer(subject, reference, reference, ContextOf(state)));
  }
  state.SetBytesProcessed(state.iterations() * 3 * subject.byte_size());
}

void Threads(benchmark::internal::Benchmark* bench) {
  bench->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_CompareBits, f32_equal, DType::kF32, 0)->Apply(Threads);
BENCHMARK_CAPTURE(BM_CompareBits, bf16_equal, DType::kBF16, 0)->Apply(Threads);
BENCHMARK_CAPTURE(BM_CompareBits, e4m3_equal, DType::kF8E4M3, 0)->Apply(Threads);
BENCHMARK_CAPTURE(BM_CompareBits, f32_differing, DType::kF32, 3)->Apply(Threads);
BENCHMARK_CAPTURE(BM_CompareBits, bf16_differing, DType::kBF16, 3)->Apply(Threads);
BENCHMARK_CAPTURE(BM_CompareBits, e4m3_differing, DType::kF8E4M3, 3)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MeasureError, f32, DType::kF32)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MeasureError, bf16, DType::kBF16)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MeasureError, f16, DType::kF16)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MeasureError, e4m3, DType::kF8E4M3)->Apply(Threads);
BENCHMARK(BM_MeasureNearer)->Apply(Threads);

}  // namespace
}  // namespace quantgate
