// CudaDevice: one GPU as an engine sees it: a stream on which everything runs in order, a
// stream-ordered memory pool, and pinned staging memory for transfers.
//
// Operations put work on the stream and return without waiting: the tensors that they return are
// written by the time any later operation of the same device reads them. Only functions that read
// or synchronize wait. Not thread-safe: an engine serves one call at a time. Tensors may be dropped
// by any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Properties of a device, its driver and the runtime.
struct CudaDeviceFacts {
  int ordinal = 0;
  std::string name;          ///< "NVIDIA H200".
  int major = 0, minor = 0;  ///< Compute capability.
  int multiprocessors = 0;   ///< Number of SMs.
  int64_t memory_bytes = 0;  ///< All memory of the device.
  std::string pci_bus_id;    ///< "0000:1B:00.0".
  int driver_version = 0;    ///< CUDA version that the driver supports: 13000.
  int runtime_version = 0;   ///< CUDA version of the runtime linked in.
};

class CudaDevice {
 public:
  /// Opens device `ordinal`. FAILED_PRECONDITION without a driver, without such a device, or when
  /// no kernel of this build runs on its architecture. With `is_urgent` the stream has the highest
  /// priority: its kernels begin before those of other streams where the device has no room for
  /// all.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int ordinal, bool is_urgent = false);
  /// The number of devices that the driver shows; 0 without a driver.
  static int Count();

  /// Waits for the stream. Tensors that still live keep the pool alive.
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDeviceFacts& facts() const { return facts_; }
  cudaStream_t stream() const;
  /// Makes the device current for the calling thread; each operation of an engine begins with it.
  absl::Status MakeCurrent() const;

  /// Device memory, not initialised, aligned to 256 bytes. RESOURCE_EXHAUSTED naming the size; the
  /// pool is then as before.
  absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape);
  absl::StatusOr<std::shared_ptr<Buffer>> AllocateBytes(size_t bytes);
  /// The same, zeroed on the stream. Small pieces (counters and sums) share one block that is
  /// zeroed at once.
  absl::StatusOr<Tensor> AllocateZeroed(DType dtype, Shape shape);
  absl::StatusOr<std::shared_ptr<Buffer>> AllocateZeroedBytes(size_t bytes);

  /// The tensor in device memory, or the tensor itself if it is there already. A host tensor has
  /// been read when this returns.
  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, const Cancellation* cancellation = nullptr);
  /// The tensor in host memory, after everything on the stream so far, or the tensor itself if it
  /// is there already.
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, const Cancellation* cancellation = nullptr);
  /// Reads all bytes of a tensor of this device that was complete at `made`, an event of its
  /// stream; does not wait for later work on the stream.
  absl::Status ReadAfter(cudaEvent_t made, const Tensor& tensor, std::span<std::byte> bytes);
  /// Copies a few bytes (a report, a scalar) from device to host and waits for the stream.
  absl::Status Read(const void* device, void* host, size_t bytes);
  /// Copies `bytes` to byte `offset` of a tensor of this device through the staging memory. They
  /// have been read when this returns.
  absl::Status WriteStaged(std::span<const std::byte> bytes, const Tensor& to, int64_t offset,
                           const Cancellation* cancellation = nullptr);
  /// Notes that the work on the stream so far gives results that ReadResults reads. Call PlaceMark
  /// before other work is put on the stream; else ReadResults waits for that work too.
  void MarkResults() { must_mark_ = true; }
  /// Places the mark that MarkResults asked for, if any: `recorded`, an event that was recorded
  /// after everything on the stream, or else an event of the device's own.
  absl::Status PlaceMark(std::shared_ptr<CUevent_st> recorded = nullptr);
  /// A few bytes of device memory, to be read into `host`.
  struct Result {
    const void* device = nullptr;
    void* host = nullptr;
    size_t bytes = 0;
  };
  /// Reads results after waiting, once, for what was on the stream at the last MarkResults, and not
  /// for later work.
  absl::Status ReadResults(std::span<const Result> results);
  /// Results on their way to pinned host memory. Without results there is nothing to wait for.
  struct PendingRead {
    std::shared_ptr<std::byte> bytes;  ///< Written once FinishRead has waited.
    int64_t number = 0;
  };
  static constexpr size_t kPendingReadBytes = size_t{128} << 10;
  /// Pinned memory of kPendingReadBytes for the kernels that are put on the stream next to write.
  absl::StatusOr<PendingRead> TakeReadMemory();
  /// Begins to copy a tensor of this device to the host. The tensor may then be dropped.
  absl::StatusOr<PendingRead> StartRead(const Tensor& results);
  /// Whether a read was started since the last NoteReads.
  bool has_reads_to_note() const;
  /// Gives an event that was recorded on the stream after all reads so far, for FinishRead to wait
  /// for.
  void NoteReads(std::shared_ptr<CUevent_st> recorded);
  /// Waits for the first event of NoteReads after the read, or else for everything on the stream.
  /// One wait serves all reads that were started before.
  absl::Status FinishRead(const PendingRead& read);
  /// Copies at most 4096 bytes (parameters) from host to device. They have been read when this
  /// returns.
  absl::Status Write(const void* host, void* device, size_t bytes);

  /// Waits for the stream; an error of any kernel on it shows here at the latest.
  absl::Status Synchronize();

  /// Bytes that tensors of this device hold now, and the most that they held at one time.
  int64_t bytes_in_use() const;
  int64_t bytes_in_use_max() const;

  /// Lets this device read the memory pools that are now open on device `ordinal`. False when the
  /// two devices are not linked; copies between them then go through the host.
  absl::StatusOr<bool> ReachMemoryOf(int ordinal);

  /// For tests of a full device: the k-th allocation from now (k >= 1) fails as cudaMalloc would; 0
  /// switches this off.
  void FailAllocation(int64_t k);
  /// The number of allocations so far, for choosing k.
  int64_t allocation_count() const;

 private:
  struct Pool;
  struct Pools;
  struct ReadMemory;
  /// Pinned host memory with an event after which the device has read or written it.
  struct Staging {
    std::byte* data = nullptr;
    cudaEvent_t done = nullptr;
  };

  CudaDevice() = default;
  absl::Status Initialize(int ordinal, bool is_urgent);
  absl::Status ReadFacts(int ordinal);
  /// Counts an allocation. RESOURCE_EXHAUSTED when FailAllocation chose it.
  absl::Status CountAllocation(size_t bytes);
  /// Takes memory from the pool, if need be again after all freed memory has come back.
  /// RESOURCE_EXHAUSTED.
  absl::StatusOr<void*> TakeMemory(size_t size);

  /// AllocateZeroedBytes cuts pieces of at most this size from a block that is zeroed once.
  static constexpr size_t kZeroedPieceBytesMax = 1024;
  static constexpr size_t kZeroedBlockBytes = size_t{32} << 10;
  CudaDeviceFacts facts_;
  std::shared_ptr<Pool> pool_;
  std::array<Staging, 2> staging_;
  Staging results_;  ///< What results_stream_ reads into; `done` is the device's own mark.
  bool must_mark_ = false;
  std::shared_ptr<CUevent_st> mark_;  ///< The last mark; null: the device's own event.
  std::shared_ptr<void> zeroed_block_;
  size_t zeroed_used_ = 0;  ///< Bytes of zeroed_block_ that are given out.
  cudaStream_t results_stream_ = nullptr;
  std::shared_ptr<ReadMemory> read_memory_;
  int64_t reads_started_ = 0;
  int64_t reads_done_ = 0;  ///< How many of them the host has waited for.
  /// For each event of NoteReads, the number of reads started before it; ascending.
  std::deque<std::pair<int64_t, std::shared_ptr<CUevent_st>>> reads_before_;
  size_t next_staging_ = 0;  ///< The piece of staging_ that WriteStaged uses next.
};

/// A report that a device is still making: the results that it writes, and the function that makes
/// the report of them on the host.
template <typename Report>
struct StartedReport {
  CudaDevice::PendingRead results;
  /// Takes the bytes of `results`; null where there are none.
  absl::AnyInvocable<absl::StatusOr<Report>(const std::byte* results) &&> finish;
};

/// Waits for the results of a started report and makes the report.
template <typename Report>
absl::StatusOr<Report> ReadReport(CudaDevice& device,
                                  absl::StatusOr<StartedReport<Report>> started) {
  QG_RETURN_IF_ERROR(started.status());
  QG_RETURN_IF_ERROR(device.FinishRead(started->results));
  return std::move(started->finish)(started->results.bytes.get());
}

}  // namespace quantgate
