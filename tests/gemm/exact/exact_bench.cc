// Exact GEMM rates beside OpenBLAS DGEMM and SGEMM in the same run. items_per_second is
// multiply-adds per second.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/gemm/exact/exact.h"
#include "tests/gemm/scaled_operand.h"

namespace quantgate {
namespace {

constexpr int kSize = 1024;
constexpr int64_t kMultiplyAdds = int64_t(kSize) * kSize * kSize;

template <typename T>
void BM_OpenBlas(benchmark::State& state) {
  openblas_set_num_threads(static_cast<int>(state.range(0)));
  std::vector<T> a(kSize * kSize, T(0.5)), b(kSize * kSize, T(0.25)), c(kSize * kSize);
  for (auto _ : state) {
    if constexpr (sizeof(T) == 8) {
      cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kSize, kSize, kSize, 1.0, a.data(),
                  kSize, b.data(), kSize, 0.0, c.data(), kSize);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kSize, kSize, kSize, 1.0f, a.data(),
                  kSize, b.data(), kSize, 0.0f, c.data(), kSize);
    }
    benchmark::DoNotOptimize(c.data());
  }
  state.SetItemsProcessed(state.iterations() * kMultiplyAdds);
}

void Threads(benchmark::internal::Benchmark* bench) {
  bench->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(BM_OpenBlas<float>)->Apply(Threads);
BENCHMARK(BM_OpenBlas<double>)->Apply(Threads);

/// A cubic exact GEMM; ranges: isa, threads. The label is the result's note.
void BM_Exact(benchmark::State& state, DType a, DType b, DType out, CodePattern pattern,
              ScaleMode a_scaling = ScaleMode::kNone, ScaleMode b_scaling = ScaleMode::kNone) {
  ExecutionContext context;
  context.isa = static_cast<Isa>(state.range(0));
  context.threads = static_cast<int>(state.range(1));
  if (context.isa > BestIsa())
    return state.SkipWithError("this processor lacks the instruction set");
  GemmDesc desc;
  desc.a = MakeOperand(a, a_scaling, kSize, kSize, false, pattern, ScalePattern::kUsual, 1);
  desc.b = MakeOperand(b, b_scaling, kSize, kSize, false, pattern, ScalePattern::kUsual, 2);
  desc.out_dtype = out;
  desc.arithmetic.family = ArithmeticFamily::kExact;
  if (IsFp8(a) && IsFp8(b) && a_scaling == ScaleMode::kNone) {
    desc.a.scaling = desc.b.scaling = ScaleMode::kTensor;
    desc.a.scale_inv = Tensor::FromScalar(0.0123f).value();
    desc.b.scale_inv = Tensor::FromScalar(0.0456f).value();
  }
  for (auto _ : state) {
    const auto result = ExactGemm(desc, context);
    if (!result.ok()) return state.SkipWithError(std::string(result.status().message()).c_str());
    state.SetLabel(result->note);
  }
  state.SetItemsProcessed(state.iterations() * kMultiplyAdds);
}

void EveryPath(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"isa", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const int threads : {1, 2}) bench->Args({static_cast<int>(Isa::kAvx512), threads});
  for (const Isa isa : {Isa::kAvx2, Isa::kScalar}) bench->Args({static_cast<int>(isa), 1});
}
BENCHMARK_CAPTURE(BM_Exact, e4m3, DType::kF8E4M3, DType::kF8E4M3, DType::kF32, CodePattern::kFinite)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, e4m3_to_bf16, DType::kF8E4M3, DType::kF8E4M3, DType::kBF16,
                  CodePattern::kFinite)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, e5m2_e4m3, DType::kF8E5M2, DType::kF8E4M3, DType::kF32,
                  CodePattern::kFinite)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, bf16, DType::kBF16, DType::kBF16, DType::kF32, CodePattern::kNear)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, bf16_wide, DType::kBF16, DType::kBF16, DType::kF32,
                  CodePattern::kFinite)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, f16, DType::kF16, DType::kF16, DType::kF32, CodePattern::kNear)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, f32, DType::kF32, DType::kF32, DType::kF32, CodePattern::kNear)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, e5m2, DType::kF8E5M2, DType::kF8E5M2, DType::kF32, CodePattern::kFinite)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, e2m3_e3m2, DType::kF6E2M3, DType::kF6E3M2, DType::kF32,
                  CodePattern::kFinite)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, e4m3_1x128, DType::kF8E4M3, DType::kF8E4M3, DType::kF32,
                  CodePattern::kFinite, ScaleMode::k1x128, ScaleMode::k128x128)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, mxfp8, DType::kF8E4M3, DType::kF8E4M3, DType::kF32,
                  CodePattern::kFinite, ScaleMode::kMx32, ScaleMode::kMx32)
    ->Apply(EveryPath);
BENCHMARK_CAPTURE(BM_Exact, nvfp4, DType::kF4E2M1x2, DType::kF4E2M1x2, DType::kF32,
                  CodePattern::kFinite, ScaleMode::kNv16, ScaleMode::kNv16)
    ->Apply(EveryPath);

/// The worst case: the second half of k takes the first away, so that every output is redone in
/// wide integers.
void BM_ExactCancelling(benchmark::State& state) {
  constexpr int kRows = 128;
  ExecutionContext context;
  context.threads = 1;
  GemmDesc desc;
  desc.a.data = MakeCodes(DType::kBF16, kRows, kSize, CodePattern::kFinite, 1);
  desc.b.data = MakeCodes(DType::kBF16, kRows, kSize, CodePattern::kFinite, 2);
  for (int64_t i = 0; i < desc.a.data.element_count(); ++i) {
    if (i % kSize < kSize / 2) continue;
    desc.a.data.as<uint16_t>()[i] = desc.a.data.as<uint16_t>()[i - kSize / 2] ^ 0x8000;
    desc.b.data.as<uint16_t>()[i] = desc.b.data.as<uint16_t>()[i - kSize / 2];
  }
  for (auto _ : state) state.SetLabel(ExactGemm(desc, context)->note);
  state.SetItemsProcessed(state.iterations() * kRows * kRows * kSize);
}
BENCHMARK(BM_ExactCancelling)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quantgate
