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

struct OperandKind {
  DType dtype;
  ScaleMode scaling = ScaleMode::kNone;
};

/// A GEMM to bf16 under `arithmetic`.
void TimeGemm(benchmark::State& state, const GemmShape& shape, GemmLayout layout, OperandKind a,
              OperandKind b, const char* arithmetic, const ExecutionContext& context) {
  if (context.isa > BestIsa())
    return state.SkipWithError("this processor lacks the instruction set");
  GemmDesc desc;
  desc.layout = layout;
  desc.a = MakeOperand(a.dtype, a.scaling, shape.m, shape.k, layout == GemmLayout::kNT,
                       CodePattern::kNear, ScalePattern::kUsual, 1);
  desc.b = MakeOperand(b.dtype, b.scaling, shape.n, shape.k, layout != GemmLayout::kTN,
                       CodePattern::kNear, ScalePattern::kUsual, 2);
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  desc.out_dtype = DType::kBF16;
  for (auto _ : state) {
    auto result = GemmCpu(desc, context);
    if (!result.ok()) return state.SkipWithError(std::string(result.status().message()).c_str());
    benchmark::DoNotOptimize(result->d.data());
  }
  state.SetItemsProcessed(state.iterations() * shape.m * shape.n * shape.k);
}

/// A cubic GEMM; ranges: size, isa, threads.
void BM_Gemm(benchmark::State& state, DType a, DType b, const char* arithmetic,
             ScaleMode a_scaling = ScaleMode::kNone, ScaleMode b_scaling = ScaleMode::kNone) {
  const int64_t size = state.range(0);
  const ExecutionContext context{.isa = static_cast<Isa>(state.range(1)),
                                 .threads = static_cast<int>(state.range(2))};
  TimeGemm(state, {size, size, size}, GemmLayout::kTN, {a, a_scaling}, {b, b_scaling}, arithmetic,
           context);
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

/// What one rank of eight multiplies in a layer of 2048 x 2048 on one thread, beside the whole, of
/// which its multiply-adds are an eighth; ranges: m, n, k.
void BM_RankGemm(benchmark::State& state, OperandKind both, GemmLayout layout,
                 const char* arithmetic) {
  TimeGemm(state, {state.range(0), state.range(1), state.range(2)}, layout, both, both, arithmetic,
           {.threads = 1});
}

void WholeAndParts(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "n", "k"})->UseRealTime()->Unit(benchmark::kMillisecond);
  bench->Args({2048, 2048, 2048});
  bench->Args({2048, 256, 2048})->Args({256, 2048, 2048})->Args({2048, 2048, 256});
}
#define QUANTGATE_RANK_BENCHMARK(name, kind, layout, arithmetic) \
  BENCHMARK_CAPTURE(BM_RankGemm, name, kind, layout, arithmetic)->Apply(WholeAndParts)
constexpr OperandKind kE4m3{DType::kF8E4M3}, kBf16{DType::kBF16},
    kMxfp8{DType::kF8E4M3, ScaleMode::kMx32};
QUANTGATE_RANK_BENCHMARK(e4m3_fast_tn, kE4m3, GemmLayout::kTN, "sm90:fast");
QUANTGATE_RANK_BENCHMARK(e4m3_split_tn, kE4m3, GemmLayout::kTN, "sm90:split");
QUANTGATE_RANK_BENCHMARK(bf16_tn, kBf16, GemmLayout::kTN, "sm90");
QUANTGATE_RANK_BENCHMARK(bf16_nn, kBf16, GemmLayout::kNN, "sm90");
QUANTGATE_RANK_BENCHMARK(bf16_nt, kBf16, GemmLayout::kNT, "sm90");
QUANTGATE_RANK_BENCHMARK(mxfp8_tn, kMxfp8, GemmLayout::kTN, "sm100");
QUANTGATE_RANK_BENCHMARK(mxfp8_nt, kMxfp8, GemmLayout::kNT, "sm100");

}  // namespace
}  // namespace quantgate
