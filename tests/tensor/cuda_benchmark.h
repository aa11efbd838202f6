// Google Benchmark on a GPU: time by CUDA events, and the ceiling to compare with, a copy of device
// memory in the same run.
#pragma once

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "kernels/base/cuda_status.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// A benchmark without its device or its operands has nothing to measure.
inline void DieUnlessOk(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status.ToString() << "\n";
  std::exit(1);
}

template <typename T>
T ValueOrDie(absl::StatusOr<T> value) {
  DieUnlessOk(value.status());
  return *std::move(value);
}

/// The device of the whole program.
inline CudaDevice& BenchmarkDevice() {
  static CudaDevice& device = *ValueOrDie(CudaDevice::Open(0)).release();
  return device;
}

/// What an iteration is.
enum class Calls {
  kAlone,   ///< One call, on an idle stream: with the host's time until the device begins.
  kQueued,  ///< One of many that the host puts on the stream while the device works.
};

/// Runs `body` (which returns absl::Status and puts its work on the device's stream) once to warm
/// up and then once per iteration, timed by events on the stream; kQueued: kQueuedCalls times per
/// iteration, behind one more that keeps the device busy meanwhile. Register with UseManualTime().
template <typename Body>
void TimeOnDevice(benchmark::State& state, Body body, Calls calls = Calls::kAlone) {
  constexpr int kQueuedCalls = 8;
  const int count = calls == Calls::kQueued ? kQueuedCalls : 1;
  CudaDevice& device = BenchmarkDevice();
  DieUnlessOk(device.MakeCurrent());
  cudaEvent_t begin, end;
  DieUnlessOk(QG_CUDA_STATUS(cudaEventCreate(&begin)));
  DieUnlessOk(QG_CUDA_STATUS(cudaEventCreate(&end)));
  DieUnlessOk(body());
  DieUnlessOk(device.Synchronize());
  for (auto _ : state) {
    if (calls == Calls::kQueued) DieUnlessOk(body());
    DieUnlessOk(QG_CUDA_STATUS(cudaEventRecord(begin, device.stream())));
    for (int call = 0; call < count; ++call) DieUnlessOk(body());
    DieUnlessOk(QG_CUDA_STATUS(cudaEventRecord(end, device.stream())));
    DieUnlessOk(QG_CUDA_STATUS(cudaEventSynchronize(end)));
    float milliseconds = 0;
    DieUnlessOk(QG_CUDA_STATUS(cudaEventElapsedTime(&milliseconds, begin, end)));
    state.SetIterationTime(milliseconds * 1e-3 / count);
  }
  DieUnlessOk(QG_CUDA_STATUS(cudaEventDestroy(begin)));
  DieUnlessOk(QG_CUDA_STATUS(cudaEventDestroy(end)));
}

/// The ceiling: state.range(0) bytes copied within device memory, counted read and written.
inline void TimeDeviceCopy(benchmark::State& state, Calls calls) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor from = ValueOrDie(device.AllocateZeroed(DType::kU8, {state.range(0)}));
  Tensor to = ValueOrDie(device.Allocate(DType::kU8, {state.range(0)}));
  TimeOnDevice(
      state,
      [&] {
        return QG_CUDA_STATUS(cudaMemcpyAsync(to.data(), from.data(), to.byte_size(),
                                              cudaMemcpyDeviceToDevice, device.stream()));
      },
      calls);
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0));
}
inline void BM_DeviceCopy(benchmark::State& state) { TimeDeviceCopy(state, Calls::kAlone); }
inline void BM_DeviceCopyQueued(benchmark::State& state) { TimeDeviceCopy(state, Calls::kQueued); }

}  // namespace quantgate
