// GemmCuda's rates; items_per_second is multiply-adds per second. BM_DeviceCopy is the ceiling of
// what memory gives, and 2.9e13 lane-instructions per second that of an H200's CUDA cores.
#include <benchmark/benchmark.h>

#include <string>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/models/accumulate_cuda.h"
#include "tests/gemm/scaled_operand.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

BENCHMARK(BM_DeviceCopy)->Arg(1 << 30)->UseManualTime();

/// A cubic GEMM to bf16 under `arithmetic`.
void BM_GemmCuda(benchmark::State& state, DType a, DType b, const char* arithmetic,
                 ScaleMode a_scaling = ScaleMode::kNone, ScaleMode b_scaling = ScaleMode::kNone,
                 CudaPath path = CudaPath::kTuned) {
  const int64_t size = state.range(0);
  CudaDevice& device = BenchmarkDevice();
  GemmDesc desc;
  desc.a =
      MakeOperand(a, a_scaling, size, size, false, CodePattern::kNear, ScalePattern::kUsual, 1);
  desc.b =
      MakeOperand(b, b_scaling, size, size, false, CodePattern::kNear, ScalePattern::kUsual, 2);
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  desc.out_dtype = DType::kBF16;
  desc =
      ValueOrDie(WithTensors(desc, [&](const Tensor& tensor) { return device.ToDevice(tensor); }));
  TimeOnDevice(state, [&] { return GemmCudaBy(path, device, desc, nullptr).status(); });
  state.SetItemsProcessed(state.iterations() * size * size * size);
}

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("n")->Arg(2048)->Arg(4096)->UseManualTime()->Unit(benchmark::kMillisecond);
}
void SmallSize(benchmark::internal::Benchmark* bench) {
  bench->ArgName("n")->Arg(512)->UseManualTime()->Unit(benchmark::kMillisecond);
}
using enum DType;
using enum ScaleMode;
BENCHMARK_CAPTURE(BM_GemmCuda, e4m3_fast, kF8E4M3, kF8E4M3, "sm90:fast")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, e4m3_split, kF8E4M3, kF8E4M3, "sm90:split")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, e4m3_1x128_128x128, kF8E4M3, kF8E4M3, "sm90", k1x128, k128x128)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, e4m3_sm89, kF8E4M3, kF8E4M3, "sm89")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, bf16, kBF16, kBF16, "sm90")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, tf32, kF32, kF32, "sm90")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, f16_sm80, kF16, kF16, "sm80")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, f16_sm80_acc_f16, kF16, kF16, "sm80:acc=f16")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, f16_sm70, kF16, kF16, "sm70")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, e4m3_sm100, kF8E4M3, kF8E4M3, "sm100")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, mxfp8, kF8E4M3, kF8E4M3, "sm100", kMx32, kMx32)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, nvfp4, kF4E2M1x2, kF4E2M1x2, "sm100", kNv16, kNv16)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, bf16_as_fp32, kBF16, kBF16, "fp32")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_GemmCuda, e4m3_fast_scalar, kF8E4M3, kF8E4M3, "sm90:fast", kNone, kNone,
                  CudaPath::kScalar)
    ->Apply(SmallSize);
BENCHMARK_CAPTURE(BM_GemmCuda, nvfp4_scalar, kF4E2M1x2, kF4E2M1x2, "sm100", kNv16, kNv16,
                  CudaPath::kScalar)
    ->Apply(SmallSize);

}  // namespace
}  // namespace quantgate
