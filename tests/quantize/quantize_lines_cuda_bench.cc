// The kernel of fp8_block's lines by itself, queued, for every way to cut a job into strips;
// compare bytes_per_second with a queued copy.
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/quantize/tuned_tiles_cuda.h"
#include "kernels/tensor/tensor_cuda.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

constexpr int64_t kColumns = 8192;

BENCHMARK(BM_DeviceCopyQueued)
    ->ArgName("bytes")
    ->Arg(256 << 20)
    ->Arg(1 << 30)
    ->UseManualTime()
    ->MinTime(0.2)
    ->Unit(benchmark::kMicrosecond);

void BM_Lines(benchmark::State& state) {
  CudaDevice& device = BenchmarkDevice();
  const int64_t rows = state.range(0) / 2 / kColumns, count = rows * kColumns;
  const StripShape shape = {.interleave = static_cast<uint32_t>(state.range(1)),
                            .cluster = static_cast<uint32_t>(state.range(2)),
                            .forgets = state.range(3) != 0,
                            .waves = static_cast<uint32_t>(state.range(4))};
  const Tensor source = ValueOrDie(GenerateCuda(device, {.distribution = Distribution::kNormal,
                                                         .seed = 1,
                                                         .dtype = DType::kBF16,
                                                         .shape = {rows, kColumns}}));
  Tensor codes = ValueOrDie(device.Allocate(DType::kU8, {2 * count}));
  Tensor scales = ValueOrDie(device.Allocate(DType::kF32, {2 * count / 128}));
  Tensor counts = ValueOrDie(device.AllocateZeroed(DType::kI64, {8}));
  TileQuantization job;
  job.source = source.data();
  job.rows = rows;
  job.columns = kColumns;
  job.scales = TileScales::kFp32;
  job.scale_options.power_2 = true;
  job.row_codes = codes.as<uint8_t>();
  job.column_codes = job.row_codes + count;
  job.row_scales = scales.as<float>();
  job.column_scales = scales.as<float>() + count / 128;
  job.counts = counts.as<unsigned long long>();
  TimeOnDevice(
      state, [&] { return QG_CUDA_STATUS(LaunchTunedLines(job, shape, device.stream())); },
      Calls::kQueued);
  state.SetBytesProcessed(
      state.iterations() *
      static_cast<int64_t>(source.byte_size() + codes.byte_size() + scales.byte_size()));
}
BENCHMARK(BM_Lines)
    ->ArgNames({"bytes", "interleave", "cluster", "forgets", "waves"})
    ->ArgsProduct({{256 << 20, 1 << 30}, {1, 2, 4, 8}, {8, 4}, {0, 1}, {2, 4, 8}})
    ->UseManualTime()
    ->MinTime(0.05)
    ->Unit(benchmark::kMicrosecond);

// What the host spends on parts of a call, while the device has work.

void BM_HostAllocate(benchmark::State& state) {
  CudaDevice& device = BenchmarkDevice();
  for (auto _ : state) {
    benchmark::DoNotOptimize(ValueOrDie(device.Allocate(DType::kU8, {state.range(0)})));
  }
  DieUnlessOk(device.Synchronize());
}
BENCHMARK(BM_HostAllocate)->Arg(56)->Arg(256 << 20)->MinTime(0.05);

void BM_HostAllocateZeroed(benchmark::State& state) {
  CudaDevice& device = BenchmarkDevice();
  for (auto _ : state) {
    benchmark::DoNotOptimize(ValueOrDie(device.AllocateZeroed(DType::kU8, {56})));
  }
  DieUnlessOk(device.Synchronize());
}
BENCHMARK(BM_HostAllocateZeroed)->MinTime(0.05);

void BM_HostLaunch(benchmark::State& state) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor source = ValueOrDie(device.AllocateZeroed(DType::kBF16, {128, 128}));
  Tensor codes = ValueOrDie(device.Allocate(DType::kU8, {128, 128}));
  Tensor scales = ValueOrDie(device.Allocate(DType::kF32, {128, 1}));
  Tensor counts = ValueOrDie(device.AllocateZeroed(DType::kI64, {8}));
  TileQuantization job;
  job.source = source.data();
  job.rows = job.columns = 128;
  job.scales = TileScales::kFp32;
  job.row_codes = codes.as<uint8_t>();
  job.row_scales = scales.as<float>();
  job.counts = counts.as<unsigned long long>();
  for (auto _ : state) {
    DieUnlessOk(QG_CUDA_STATUS(LaunchTunedLines(job, {}, device.stream())));
  }
  DieUnlessOk(device.Synchronize());
}
BENCHMARK(BM_HostLaunch)->MinTime(0.05);

void BM_HostCall(benchmark::State& state) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor source = ValueOrDie(device.AllocateZeroed(DType::kBF16, {128, 128}));
  const Quantizer quantizer = QuantizerSpec{.format = QuantizerFormat::kFp8Block};
  for (auto _ : state) {
    DieUnlessOk(QuantizeCuda(device, source, quantizer, {true, true}, {}).status());
  }
  DieUnlessOk(device.Synchronize());
}
BENCHMARK(BM_HostCall)->MinTime(0.05);

}  // namespace
}  // namespace quantgate
