// GEMM rates beside OpenBLAS SGEMM in the same run. items_per_second is multiply-adds per second.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace {

void BM_OpenBlasSgemm(benchmark::State& state) {
  const int size = static_cast<int>(state.range(0));
  openblas_set_num_threads(static_cast<int>(state.range(1)));
  std::vector<float> a(size * size, 0.5f), b(size * size, 0.25f), c(size * size);
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size, size, size, 1.0f, a.data(), size,
                b.data(), size, 0.0f, c.data(), size);
    benchmark::DoNotOptimize(c.data());
  }
  state.SetItemsProcessed(state.iterations() * int64_t(size) * size * size);
}
BENCHMARK(BM_OpenBlasSgemm)
    ->ArgNames({"n", "threads"})
    ->Args({1024, 1})
    ->Args({1024, 2})
    ->UseRealTime();

/// A cubic GEMM to bf16 under `arithmetic`; ranges: size, isa, threads.
void BM_Gemm(benchmark::State& state, DType a, DType b, const char* arithmetic,
             ScaleMode a_scaling = ScaleMode::kNone, ScaleMode b_scaling = ScaleMode::kNone) {
  const int64_t size = state.range(0);
  ExecutionContext context;
  context.isa = static_cast<Isa>(state.range(1));
  context.threads = static_cast<int>(state.range(2));
  if (context.isa > BestIsa())
    return state.SkipWithError("this processor lacks the instruction set");
  GemmDesc desc;
  desc.a =
      MakeOperand(a, a_scaling, size, size, false, CodePattern::kNear, ScalePattern::kUsual, 1);
  desc.b =
      MakeOperand(b, b_scaling, size, size, false, CodePattern::kNear, ScalePattern::kUsual, 2);
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  desc.out_dtype = DType::kBF16;
  for (auto _ : state) {
    auto result = GemmCpu(desc, context);
    if (!result.ok()) return state.SkipWithError(std::string(result.status().message()).c_str());
    benchmark::DoNotOptimize(result->d.data());
  }
  state.SetItemsProcessed(state.iterations() * size * size * size);
}

void EveryPath(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"n", "isa", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    for (const int threads : {1, 2}) bench->Args({1024, static_cast<int>(isa), threads});
  }
  bench->Args({256, static_cast<int>(Isa::kScalar), 1});
}
BENCHMARK_CAPTURE(BM_Gemm, e4m3_fast, DType::kF8E4M3, DType::kF8E4M3, "sm90:fast")
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, e4m3_split, DType::kF8E4M3, DType::kF8E4M3, "sm90:split")
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, e5m2_split, DType::kF8E5M2, DType::kF8E4M3, "sm90:split")
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, bf16, DType::kBF16, DType::kBF16, "sm90")->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, f16, DType::kF16, DType::kF16, "sm90")->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, tf32, DType::kF32, DType::kF32, "sm90")->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, bf16_as_fp32, DType::kBF16, DType::kBF16, "fp32")->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, e4m3_1x128, DType::kF8E4M3, DType::kF8E4M3, "sm90", ScaleMode::k1x128,
                  ScaleMode::k1x128)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, e4m3_1x128_128x128, DType::kF8E4M3, DType::kF8E4M3, "sm90",
                  ScaleMode::k1x128, ScaleMode::k128x128)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, mxfp8, DType::kF8E4M3, DType::kF8E4M3, "sm100", ScaleMode::kMx32,
                  ScaleMode::kMx32)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, mxfp8_e5m2, DType::kF8E5M2, DType::kF8E4M3, "sm100", ScaleMode::kMx32,
                  ScaleMode::kMx32)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, mxfp6_mxfp4, DType::kF6E3M2, DType::kF4E2M1x2, "sm100", ScaleMode::kMx32,
                  ScaleMode::kMx32)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, nvfp4, DType::kF4E2M1x2, DType::kF4E2M1x2, "sm100", ScaleMode::kNv16,
                  ScaleMode::kNv16)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, e4m3_sm100, DType::kF8E4M3, DType::kF8E4M3, "sm100")->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, e4m3_sm89, DType::kF8E4M3, DType::kF8E4M3, "sm89")->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, e4m3_mma, DType::kF8E4M3, DType::kF8E4M3, "sm90_mma_fp8")
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, f16_sm80, DType::kF16, DType::kF16, "sm80")->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Gemm, f16_sm70, DType::kF16, DType::kF16, "sm70")->Apply(EveryPath);

}  // namespace
}  // namespace quantgate
