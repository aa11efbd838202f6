// Rates of GEMMs through CublasLt; tests/hardware/torch_gemm_rates.py compares them with torch in
// one run.
#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "kernels/gemm/gemm.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

/// Calls between two events: what the first waits for is a small part of them.
constexpr int kCalls = 10;

GemmDesc OperandsOnDevice(const HardwareCase& one) {
  const GemmDesc host = ValueOrDie(DescOf(one));
  return ValueOrDie(
      WithTensors(host, [](const Tensor& tensor) { return BenchmarkDevice().ToDevice(tensor); }));
}

CublasLt& Library() {
  static CublasLt& library = *ValueOrDie(CublasLt::Create(BenchmarkDevice())).release();
  return library;
}

HardwareCase Cube(int64_t size, DType operand, ScaleMode a, ScaleMode b, bool split) {
  HardwareCase one;
  one.shape = {size, size, size};
  one.a = one.b = operand;
  one.a_scaling = a, one.b_scaling = b;
  one.use_split_accumulator = split;
  return one;
}

void BM_Gemm(benchmark::State& state, DType operand, ScaleMode a, ScaleMode b, bool split) {
  const int64_t size = state.range(0);
  const GemmDesc desc = OperandsOnDevice(Cube(size, operand, a, b, split));
  TimeOnDevice(state, [&] {
    for (int i = 0; i < kCalls; ++i) {
      const absl::StatusOr<GemmResult> result = Library().Gemm(desc, nullptr);
      if (!result.ok()) return result.status();
      if (i == 0) state.SetLabel(result->arithmetic.ToString() + ", " + result->note);
    }
    return absl::OkStatus();
  });
  const double flops = 2.0 * static_cast<double>(size * size * size) * kCalls;
  state.counters["flop/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

/// What a call costs the host where the device has next to nothing to do.
void BM_HostCall(benchmark::State& state) {
  const GemmDesc desc =
      OperandsOnDevice(Cube(64, DType::kF8E4M3, ScaleMode::kTensor, ScaleMode::kTensor, false));
  for (auto _ : state) {
    DieUnlessOk(Library().Gemm(desc, nullptr).status());
  }
  DieUnlessOk(BenchmarkDevice().Synchronize());
}

/// What the first call of a shape asks the heuristic.
void BM_FirstCall(benchmark::State& state) {
  GemmDesc desc =
      OperandsOnDevice(Cube(64, DType::kF8E4M3, ScaleMode::kTensor, ScaleMode::kTensor, false));
  int64_t m = 0;
  for (auto _ : state) {
    state.PauseTiming();
    desc.a.data = ValueOrDie(BenchmarkDevice().AllocateZeroed(DType::kF8E4M3, {++m, 64}));
    state.ResumeTiming();
    DieUnlessOk(Library().Algorithms(desc).status());
  }
}

constexpr DType kFp8 = DType::kF8E4M3;
constexpr ScaleMode kNone = ScaleMode::kNone, kTensor = ScaleMode::kTensor,
                    kRow = ScaleMode::k1x128, kTile = ScaleMode::k128x128;

BENCHMARK(BM_DeviceCopy)->Arg(int64_t{1} << 30)->UseManualTime();
BENCHMARK_CAPTURE(BM_Gemm, bf16, DType::kBF16, kNone, kNone, false)->Arg(8192)->UseManualTime();
BENCHMARK_CAPTURE(BM_Gemm, fp8_fast, kFp8, kTensor, kTensor, false)->Arg(8192)->UseManualTime();
BENCHMARK_CAPTURE(BM_Gemm, fp8_split, kFp8, kTensor, kTensor, true)->Arg(8192)->UseManualTime();
BENCHMARK_CAPTURE(BM_Gemm, fp8_1x128_128x128, kFp8, kRow, kTile, true)->Arg(8192)->UseManualTime();
BENCHMARK_CAPTURE(BM_Gemm, fp8_1x128_1x128, kFp8, kRow, kRow, true)->Arg(8192)->UseManualTime();
BENCHMARK(BM_HostCall);
BENCHMARK(BM_FirstCall);

}  // namespace
}  // namespace quantgate
