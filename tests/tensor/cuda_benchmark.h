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
#include "kernels/tensor/cuda_device.h"

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

/// Runs `body` (which returns absl::Status and puts its work on the device's stream) once to warm
/// up and then once per iteration, timed by events on the stream. Register with UseManualTime().
template <typename Body>
void TimeOnDevice(benchmark::State& state, Body body) {
  CudaDevice& device = BenchmarkDevice();
  DieUnlessOk(device.MakeCurrent());
  cudaEvent_t begin, end;
  DieUnlessOk(QG_CUDA_STATUS(cudaEventCreate(&begin)));
  DieUnlessOk(QG_CUDA_STATUS(cudaEventCreate(&end)));
  DieUnlessOk(body());
  DieUnlessOk(device.Synchronize());
  for (auto _ : state) {
    DieUnlessOk(QG_CUDA_STATUS(cudaEventRecord(begin, device.stream())));
    DieUnlessOk(body());
    DieUnlessOk(QG_CUDA_STATUS(cudaEventRecord(end, device.stream())));
    DieUnlessOk(QG_CUDA_STATUS(cudaEventSynchronize(end)));
    float milliseconds = 0;
    DieUnlessOk(QG_CUDA_STATUS(cudaEventElapsedTime(&milliseconds, begin, end)));
    state.SetIterationTime(milliseconds * 1e-3);
  }
  DieUnlessOk(QG_CUDA_STATUS(cudaEventDestroy(begin)));
  DieUnlessOk(QG_CUDA_STATUS(cudaEventDestroy(end)));
}

/// The ceiling: state.range(0) bytes copied within device memory, counted read and written.
inline void BM_DeviceCopy(benchmark::State& state) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor from = ValueOrDie(device.AllocateZeroed(DType::kU8, {state.range(0)}));
  Tensor to = ValueOrDie(device.Allocate(DType::kU8, {state.range(0)}));
  TimeOnDevice(state, [&] {
    return QG_CUDA_STATUS(cudaMemcpyAsync(to.data(), from.data(), to.byte_size(),
                                          cudaMemcpyDeviceToDevice, device.stream()));
  });
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0));
}

}  // namespace quantgate
