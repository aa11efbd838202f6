// Rates of the comparisons of two tensors of 1 GiB on a GPU; bytes_per_second counts both sides
// once, to compare with BM_DeviceCopy.
#include "kernels/compare/compare_cuda.h"

#include <utility>
#include <vector>

#include "kernels/compare/compare_kernels_cuda.h"
#include "kernels/tensor/device/tensor_cuda.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

constexpr int64_t kBytes = int64_t{1} << 30;
constexpr int64_t kColumns = 16384;

Tensor Source(DType dtype, uint64_t seed, Distribution distribution = Distribution::kNormal) {
  return ValueOrDie(GenerateCuda(BenchmarkDevice(),
                                 {.distribution = distribution,
                                  .seed = seed,
                                  .dtype = dtype,
                                  .shape = {kBytes / DTypeBytes(dtype) / kColumns, kColumns}}));
}

/// The f32 tensor rounded to `step`, in `out`: a subject as a coarser engine would make it.
Tensor Rounded(const Tensor& tensor, DType step, DType out) {
  const Tensor coarse = ValueOrDie(CastTensorCuda(BenchmarkDevice(), tensor, step));
  return ValueOrDie(CastTensorCuda(BenchmarkDevice(), coarse, out));
}

void BM_CompareBits(benchmark::State& state, DType dtype, uint64_t subject_seed,
                    Distribution distribution) {
  const Tensor subject = Source(dtype, subject_seed, distribution);
  const Tensor reference = Source(dtype, 1, distribution);
  TimeOnDevice(state, [&] {
    return CompareBitsOnPath(BenchmarkDevice(), subject, reference, ComparePath::kTuned).status();
  });
  state.SetBytesProcessed(state.iterations() * 2 * kBytes);
}

/// A subject that is the reference but for the rounding of every element to bf16's grid and back.
void BM_CompareBitsRounded(benchmark::State& state, DType dtype, DType step) {
  const Tensor reference = Source(dtype, 1);
  const Tensor subject = Rounded(reference, step, dtype);
  TimeOnDevice(state, [&] {
    return CompareBitsOnPath(BenchmarkDevice(), subject, reference, ComparePath::kTuned).status();
  });
  state.SetBytesProcessed(state.iterations() * 2 * kBytes);
}

void BM_MeasureError(benchmark::State& state, DType dtype, DType step, ComparePath path) {
  const Tensor reference = Source(dtype, 1);
  const Tensor subject = Rounded(reference, step, dtype);
  TimeOnDevice(state, [&] {
    return MeasureErrorOnPath(BenchmarkDevice(), subject, reference, path).status();
  });
  state.SetBytesProcessed(state.iterations() * 2 * kBytes);
}

/// The device's part of reports: events stand around what they put on its stream, and the host
/// reads them afterwards. kQueued: several, behind one more.
void BM_MeasureErrorStarted(benchmark::State& state, DType dtype, DType step, Calls calls) {
  const Tensor reference = Source(dtype, 1);
  const Tensor subject = Rounded(reference, step, dtype);
  CudaDevice& device = BenchmarkDevice();
  const int count = calls == Calls::kQueued ? 4 : 1;
  std::vector<absl::StatusOr<StartedReport<ErrorReport>>> started;
  const auto start = [&] {
    started.push_back(StartMeasureErrorCuda(device, subject, reference));
    DieUnlessOk(started.back().status());
  };
  const auto read = [&] {
    for (auto& report : started) DieUnlessOk(ReadReport(device, std::move(report)).status());
    started.clear();
  };
  start();
  read();
  cudaEvent_t begin, end;
  DieUnlessOk(QG_CUDA_STATUS(cudaEventCreate(&begin)));
  DieUnlessOk(QG_CUDA_STATUS(cudaEventCreate(&end)));
  for (auto _ : state) {
    if (calls == Calls::kQueued) start();
    DieUnlessOk(QG_CUDA_STATUS(cudaEventRecord(begin, device.stream())));
    for (int call = 0; call < count; ++call) start();
    DieUnlessOk(QG_CUDA_STATUS(cudaEventRecord(end, device.stream())));
    DieUnlessOk(QG_CUDA_STATUS(cudaEventSynchronize(end)));
    float milliseconds = 0;
    DieUnlessOk(QG_CUDA_STATUS(cudaEventElapsedTime(&milliseconds, begin, end)));
    state.SetIterationTime(milliseconds * 1e-3 / count);
    read();
  }
  state.SetBytesProcessed(state.iterations() * 2 * kBytes);
}

/// What a report costs beside the bytes: launches, the wait, and the host's part.
void BM_MeasureErrorSmall(benchmark::State& state) {
  const Tensor x =
      ValueOrDie(GenerateCuda(BenchmarkDevice(), {.dtype = DType::kF32, .shape = {512, 512}}));
  TimeOnDevice(state, [&] {
    return MeasureErrorOnPath(BenchmarkDevice(), x, x, ComparePath::kTuned).status();
  });
}

/// A bf16 subject of half the reference's bytes.
void BM_MeasureErrorMixed(benchmark::State& state, DType dtype) {
  const Tensor reference = Source(DType::kF32, 1);
  const Tensor subject = ValueOrDie(CastTensorCuda(BenchmarkDevice(), reference, dtype));
  TimeOnDevice(state, [&] {
    return MeasureErrorOnPath(BenchmarkDevice(), subject, reference, ComparePath::kTuned).status();
  });
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(subject.byte_size() + reference.byte_size()));
}

void BM_MeasureNearer(benchmark::State& state) {
  const Tensor truth = Source(DType::kF32, 1);
  const Tensor subject = ValueOrDie(CastTensorCuda(BenchmarkDevice(), truth, DType::kBF16));
  const Tensor reference = ValueOrDie(CastTensorCuda(BenchmarkDevice(), truth, DType::kF16));
  TimeOnDevice(state, [&] {
    return MeasureNearerCuda(BenchmarkDevice(), subject, reference, truth).status();
  });
  state.SetBytesProcessed(state.iterations() * 2 * kBytes);
}

void Timed(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.1)->Repetitions(5);
  bench->ReportAggregatesOnly();
}
constexpr auto kNormal = Distribution::kNormal;
BENCHMARK(BM_DeviceCopy)->Arg(kBytes)->Apply(Timed);
BENCHMARK(BM_DeviceCopyQueued)->Arg(kBytes)->Apply(Timed);
BENCHMARK_CAPTURE(BM_CompareBits, bf16_equal, DType::kBF16, 1, kNormal)->Apply(Timed);
BENCHMARK_CAPTURE(BM_CompareBits, f32_equal, DType::kF32, 1, kNormal)->Apply(Timed);
BENCHMARK_CAPTURE(BM_CompareBits, e4m3_equal, DType::kF8E4M3, 1, kNormal)->Apply(Timed);
BENCHMARK_CAPTURE(BM_CompareBits, bf16_zeros, DType::kBF16, 1, Distribution::kAllZero)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_CompareBits, bf16_specials, DType::kBF16, 1, Distribution::kSpecialsLaced)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_CompareBits, bf16_unrelated, DType::kBF16, 2, kNormal)->Apply(Timed);
BENCHMARK_CAPTURE(BM_CompareBitsRounded, f32_as_bf16, DType::kF32, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureError, f32, DType::kF32, DType::kBF16, ComparePath::kTuned)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureError, bf16, DType::kBF16, DType::kF8E4M3, ComparePath::kTuned)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureError, bf16_equal, DType::kBF16, DType::kBF16, ComparePath::kTuned)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureErrorStarted, f32, DType::kF32, DType::kBF16, Calls::kAlone)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureErrorStarted, f32_queued, DType::kF32, DType::kBF16, Calls::kQueued)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureErrorStarted, f32_e4m3_queued, DType::kF32, DType::kF8E4M3,
                  Calls::kQueued)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureErrorStarted, bf16, DType::kBF16, DType::kF8E4M3, Calls::kAlone)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureErrorStarted, bf16_queued, DType::kBF16, DType::kF8E4M3, Calls::kQueued)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureError, f32_plain, DType::kF32, DType::kBF16, ComparePath::kPlain)
    ->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureErrorMixed, bf16_f32, DType::kBF16)->Apply(Timed);
BENCHMARK_CAPTURE(BM_MeasureErrorMixed, e4m3_f32, DType::kF8E4M3)->Apply(Timed);
BENCHMARK(BM_MeasureErrorSmall)->Apply(Timed);
BENCHMARK(BM_MeasureNearer)->Apply(Timed);

}  // namespace
}  // namespace quantgate
