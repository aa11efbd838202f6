// CudaDevice: one GPU as an engine sees it: a stream on which everything runs in order, a
// stream-ordered memory pool, pinned staging for what crosses the bus.
//
// Work is put on the stream and not waited for: tensors that an operation returns are written by
// the time any later operation of the same device reads them. Only what reads or synchronizes
// waits.
// Not thread-safe; an engine serves one call at a time. Tensors may be dropped by any thread.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancellation.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct CudaDeviceFacts {
  int ordinal = 0;
  std::string name;          ///< "NVIDIA H200".
  int major = 0, minor = 0;  ///< Compute capability.
  int multiprocessors = 0;   ///< SMs.
  int64_t memory_bytes = 0;  ///< Of the device.
  std::string pci_bus_id;    ///< "0000:1B:00.0".
  int driver_version = 0;    ///< CUDA version that the driver supports: 13000.
  int runtime_version = 0;   ///< CUDA version of the runtime linked in.
};

class CudaDevice {
 public:
  /// FAILED_PRECONDITION without a driver or such a device, or where the device is of an
  /// architecture that no kernel of this build runs on.
  /// `is_urgent`: where the device has no room for all kernels, those of its stream begin before
  /// those of others.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int ordinal, bool is_urgent = false);
  /// How many devices the driver shows; 0 without a driver.
  static int Count();

  /// Waits for the stream. Tensors that still live keep the pool alive.
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDeviceFacts& facts() const { return facts_; }
  cudaStream_t stream() const;
  /// Makes the device current for the calling thread; each operation of an engine begins with it.
  absl::Status MakeCurrent() const;

  /// Device memory, not initialised, aligned to 256 bytes. RESOURCE_EXHAUSTED with the size, and
  /// the pool as it was.
  absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape);
  absl::StatusOr<std::shared_ptr<Buffer>> AllocateBytes(size_t bytes);
  /// The same, zeroed on the stream: counters and sums, a few bytes each, share one filling.
  absl::StatusOr<Tensor> AllocateZeroed(DType dtype, Shape shape);
  absl::StatusOr<std::shared_ptr<Buffer>> AllocateZeroedBytes(size_t bytes);

  /// The tensor in device memory: itself where it is there already. A host tensor is read before
  /// this returns.
  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, const Cancellation* cancellation = nullptr);
  /// The tensor in host memory, after everything on the stream so far: itself where it is there
  /// already.
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, const Cancellation* cancellation = nullptr);
  /// All bytes of a tensor of this device, which was whole at `made`, an event of its stream: does
  /// not wait for what the stream has behind that.
  absl::Status ReadAfter(cudaEvent_t made, const Tensor& tensor, std::span<std::byte> bytes);
  /// A few bytes from device to host, waiting for the stream: reports and scalars.
  absl::Status Read(const void* device, void* host, size_t bytes);
  /// `bytes` to byte `offset` of a tensor of this device, through the staging memory; they are read
  /// before this returns.
  absl::Status WriteStaged(std::span<const std::byte> bytes, const Tensor& to, int64_t offset,
                           const Cancellation* cancellation = nullptr);
  /// Says that what is on the stream so far gives results that ReadResults reads. Whoever puts
  /// other work on the stream places the mark first; else ReadResults waits for that work too.
  void MarkResults() { must_mark_ = true; }
  /// Places the mark where one is due: `recorded`, an event that was recorded on the stream after
  /// everything that is on it, or without one an event of the device's own.
  absl::Status PlaceMark(std::shared_ptr<CUevent_st> recorded = nullptr);
  /// A few bytes of device memory, to be read into `host`.
  struct Result {
    const void* device = nullptr;
    void* host = nullptr;
    size_t bytes = 0;
  };
  /// Reads what was on the stream at the last MarkResults: waits for that, once, and not for what
  /// came after it.
  absl::Status ReadResults(std::span<const Result> results);
  /// Results on their way to pinned host memory; without any, nothing is waited for.
  struct PendingRead {
    std::shared_ptr<std::byte> bytes;  ///< Written once FinishRead has waited.
    int64_t number = 0;
  };
  static constexpr size_t kPendingReadBytes = size_t{128} << 10;
  /// Memory of kPendingReadBytes for kernels to write, which are put on the stream next.
  absl::StatusOr<PendingRead> TakeReadMemory();
  /// Begins to copy a tensor of this device, which may then be dropped.
  absl::StatusOr<PendingRead> StartRead(const Tensor& results);
  /// Whether a read was started since the last NoteReads.
  bool has_reads_to_note() const;
  /// An event that was recorded on the stream after all reads so far, for those that wait for them.
  void NoteReads(std::shared_ptr<CUevent_st> recorded);
  /// Waits for the first such event behind the read, and where there is none for everything on the
  /// stream; once for all reads that were started before.
  absl::Status FinishRead(const PendingRead& read);
  /// A few bytes (at most 4096) from host to device, read before this returns: parameters.
  absl::Status Write(const void* host, void* device, size_t bytes);

  /// Waits for the stream; an error of any kernel on it shows here at the latest.
  absl::Status Synchronize();

  /// Bytes that tensors of this device hold now, and the most they held.
  int64_t bytes_in_use() const;
  int64_t bytes_in_use_max() const;

  /// Lets this device read the memory of all that are open on device `ordinal` now, where the two
  /// are linked. False where they are not: copies between those go through the host.
  absl::StatusOr<bool> ReachMemoryOf(int ordinal);

  /// For tests of what a full device does: the k-th allocation from now (k >= 1) fails as
  /// cudaMalloc would; 0 switches it off. Allocations so far, for choosing k.
  void FailAllocation(int64_t k);
  int64_t allocation_count() const;

 private:
  struct Pool;
  struct Pools;
  struct ReadMemory;
  /// Pinned host memory with an event that says when the device has read or written it.
  struct Staging {
    std::byte* data = nullptr;
    cudaEvent_t done = nullptr;
  };

  CudaDevice() = default;
  absl::Status Initialize(int ordinal, bool is_urgent);
  absl::Status ReadFacts(int ordinal);
  /// Counts an allocation, which may have been told to fail.
  absl::Status CountAllocation(size_t bytes);
  /// Of the pool, tried again after everything that was freed is back. RESOURCE_EXHAUSTED.
  absl::StatusOr<void*> TakeMemory(size_t size);

  /// Of AllocateZeroedBytes: pieces up to this are parts of a block, which is filled once.
  static constexpr size_t kZeroedPieceBytesMax = 1024;
  static constexpr size_t kZeroedBlockBytes = size_t{32} << 10;
  CudaDeviceFacts facts_;
  std::shared_ptr<Pool> pool_;
  std::array<Staging, 2> staging_;
  Staging results_;  ///< Of what results_stream_ reads; `done` is the device's own mark.
  bool must_mark_ = false;
  std::shared_ptr<CUevent_st> mark_;  ///< The last one; null: the device's own.
  std::shared_ptr<void> zeroed_block_;
  size_t zeroed_used_ = 0;  ///< Bytes of zeroed_block_.
  cudaStream_t results_stream_ = nullptr;
  std::shared_ptr<ReadMemory> read_memory_;
  int64_t reads_started_ = 0;
  int64_t reads_done_ = 0;  ///< Of them, those that the host has waited for.
  /// Reads that had been started when an event was recorded, ascending.
  std::deque<std::pair<int64_t, std::shared_ptr<CUevent_st>>> reads_before_;
  size_t next_staging_ = 0;  ///< Of WriteStaged.
};

}  // namespace quantgate
