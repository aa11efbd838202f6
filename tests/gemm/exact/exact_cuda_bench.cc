// The exact GEMM and CheckBound on a GPU. items_per_second is multiply-adds per second;
// BM_DeviceCopy is the ceiling of memory, and FP64 tensor cores of an H200 reach 3.3e13
// multiply-adds per second.
#include <benchmark/benchmark.h>

#include <string>

#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "kernels/gemm/exact/exact_products.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/models/accumulate_cuda.h"
#include "tests/gemm/scaled_operand.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

BENCHMARK(BM_DeviceCopy)->Arg(1 << 30)->UseManualTime();

GemmDesc MakeDesc(int64_t size, DType dtype, CodePattern pattern, ScaleMode a_scaling,
                  ScaleMode b_scaling) {
  GemmDesc desc;
  desc.arithmetic.family = ArithmeticFamily::kExact;
  desc.a = MakeOperand(dtype, a_scaling, size, size, false, pattern, ScalePattern::kUsual, 1);
  desc.b = MakeOperand(dtype, b_scaling, size, size, false, pattern, ScalePattern::kUsual, 2);
  CudaDevice& device = BenchmarkDevice();
  return ValueOrDie(
      WithTensors(desc, [&](const Tensor& tensor) { return device.ToDevice(tensor); }));
}

/// A cubic GEMM; the label is the result's note.
void BM_Exact(benchmark::State& state, DType dtype, DType out, CodePattern pattern,
              ScaleMode a_scaling = ScaleMode::kNone, ScaleMode b_scaling = ScaleMode::kNone,
              ExactCudaPath path = ExactCudaPath::kTensorCores) {
  const int64_t size = state.range(0);
  GemmDesc desc = MakeDesc(size, dtype, pattern, a_scaling, b_scaling);
  desc.out_dtype = out;
  std::string note;
  TimeOnDevice(state, [&] {
    const auto result = ExactGemmCudaBy(path, BenchmarkDevice(), desc, nullptr);
    if (result.ok()) note = result->note;
    return result.status();
  });
  state.SetLabel(note);
  state.SetItemsProcessed(state.iterations() * size * size * size);
}

/// What the exact GEMM is held against: the hardware's own of the same types.
void BM_CublasLt(benchmark::State& state, DType dtype) {
  constexpr int kCalls = 10;  // Between two events.
  const int64_t size = state.range(0);
  static CublasLt& library = *ValueOrDie(CublasLt::Create(BenchmarkDevice())).release();
  HardwareCase one;
  one.shape = {size, size, size};
  one.a = one.b = dtype;
  one.a_scaling = one.b_scaling = ScaleMode::kTensor;
  const GemmDesc desc = ValueOrDie(WithTensors(ValueOrDie(DescOf(one)), [](const Tensor& tensor) {
    return BenchmarkDevice().ToDevice(tensor);
  }));
  TimeOnDevice(state, [&] {
    for (int i = 0; i < kCalls; ++i) {
      const absl::StatusOr<GemmResult> result = library.Gemm(desc, nullptr);
      if (!result.ok()) return result.status();
    }
    return absl::OkStatus();
  });
  state.SetItemsProcessed(state.iterations() * kCalls * size * size * size);
}

/// The dot products alone, from packed operands.
void BM_Products(benchmark::State& state, DType dtype) {
  const int64_t size = state.range(0);
  const GemmDesc desc =
      MakeDesc(size, dtype, CodePattern::kNear, ScaleMode::kNone, ScaleMode::kNone);
  ExactCudaOperand a, b;
  a.operand = CudaOperandA(desc, {size, size, size});
  b.operand = CudaOperandB(desc, {size, size, size});
  const ExactProducts products =
      ValueOrDie(ExactProducts::Create(BenchmarkDevice(), a, b, ExactCudaPath::kTensorCores));
  TimeOnDevice(state, [&]() -> absl::Status {
    for (int64_t begin = 0; begin < size; begin += products.strip_rows()) {
      QG_RETURN_IF_ERROR(products.Strip(begin).status());
    }
    return absl::OkStatus();
  });
  state.SetItemsProcessed(state.iterations() * size * size * size);
}

void BM_CheckBound(benchmark::State& state, DType dtype, const char* arithmetic) {
  const int64_t size = state.range(0);
  GemmDesc desc = MakeDesc(size, dtype, CodePattern::kNear, ScaleMode::kNone, ScaleMode::kNone);
  CudaDevice& device = BenchmarkDevice();
  const Tensor exact = ValueOrDie(ExactGemmCuda(device, desc, nullptr)).d;
  desc.arithmetic = Arithmetic::Parse(arithmetic).value();
  double worst = 0;
  TimeOnDevice(state, [&] {
    const auto check =
        CheckBoundCudaBy(ExactCudaPath::kTensorCores, device, desc, exact, exact, nullptr);
    if (check.ok()) worst = check->worst_ratio;
    return check.status();
  });
  state.counters["worst_ratio"] = worst;
  state.SetItemsProcessed(state.iterations() * size * size * size);
}

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("n")->Arg(2048)->Arg(4096)->UseManualTime()->Unit(benchmark::kMillisecond);
}
void SmallSize(benchmark::internal::Benchmark* bench) {
  bench->ArgName("n")->Arg(1024)->UseManualTime()->Unit(benchmark::kMillisecond);
}
using enum DType;
using enum ScaleMode;
using enum CodePattern;
BENCHMARK_CAPTURE(BM_Exact, e4m3, kF8E4M3, kF32, kFinite)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_CublasLt, e4m3, kF8E4M3)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, e4m3_to_bf16, kF8E4M3, kBF16, kFinite)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, e5m2, kF8E5M2, kF32, kFinite)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, bf16, kBF16, kF32, kNear)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, bf16_wide, kBF16, kF32, kFinite)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, f32, kF32, kF32, kNear)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, e4m3_1x128, kF8E4M3, kF32, kFinite, k1x128, k128x128)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, mxfp8, kF8E4M3, kF32, kFinite, kMx32, kMx32)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, nvfp4, kF4E2M1x2, kF32, kFinite, kNv16, kNv16)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, e4m3_specials, kF8E4M3, kF32, kAll)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Exact, e4m3_plain, kF8E4M3, kF32, kFinite, kNone, kNone, ExactCudaPath::kPlain)
    ->Apply(SmallSize);
BENCHMARK_CAPTURE(BM_Products, narrow, kF8E4M3)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Products, wide, kF32)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_CheckBound, e4m3, kF8E4M3, "sm90:fast")->Apply(Sizes);
BENCHMARK_CAPTURE(BM_CheckBound, bf16, kBF16, "sm90")->Apply(Sizes);

}  // namespace
}  // namespace quantgate
