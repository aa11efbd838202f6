#include "kernels/tensor/device/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda_status.h"
#include "kernels/base/refusal.h"
#include "kernels/tensor/device/staging_memory.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

/// What MakeCurrent made current for this thread; -1: nothing. Not what the runtime says, for which
/// a thread that has none has device 0, and making that current would open it.
thread_local int current_ordinal = -1;

/// Whether MakeCurrent has made the device current, and it still is: to ask takes less than to make
/// it so again.
bool IsCurrent(int ordinal) {
  int current = -1;
  return current_ordinal == ordinal && cudaGetDevice(&current) == cudaSuccess && current == ordinal;
}

/// Another device for this scope: tensors are dropped by threads that serve other devices.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal)
      : status_(IsCurrent(ordinal) ? cudaSuccess : cudaSetDevice(ordinal)), ordinal_(ordinal) {}
  ~ScopedDevice() {
    if (current_ordinal >= 0 && current_ordinal != ordinal_) (void)cudaSetDevice(current_ordinal);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;
  cudaError_t status() const { return status_; }

 private:
  const cudaError_t status_;
  const int ordinal_;
};

}  // namespace

/// The stream and the memory pool: shared with every block, so that tensors may outlive the device
/// they came from.
struct CudaDevice::Pool {
  int ordinal = 0;
  cudaStream_t stream = nullptr;
  cudaMemPool_t memory = nullptr;
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> bytes_max{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> failing{0};  // The number of the allocation that fails; 0: none.
  std::set<int> readers;            // Devices that may read the memory; under Pools::mutex.

  ~Pool() {
    const ScopedDevice current(ordinal);
    if (current.status() != cudaSuccess) return;
    if (stream != nullptr) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    if (memory != nullptr) cudaMemPoolDestroy(memory);
  }

  void Count(size_t size) {
    const int64_t now = bytes += static_cast<int64_t>(size);
    int64_t most = bytes_max.load();
    while (most < now && !bytes_max.compare_exchange_weak(most, now)) {
    }
  }

  void Return(void* data, size_t size) {
    bytes -= static_cast<int64_t>(size);
    // Nobody can be told of a failure here; a sticky one meets the next call, and CudaHealth.
    const ScopedDevice current(ordinal);
    (void)QG_CUDA_STATUS(current.status());
    (void)QG_CUDA_STATUS(cudaFreeAsync(data, stream));
  }
};

/// The pools of the process that live, for peers.
struct CudaDevice::Pools {
  std::mutex mutex;
  std::vector<std::weak_ptr<Pool>> all;

  static Pools& Get() {
    static Pools& pools = *new Pools;
    return pools;
  }
};

/// Pinned host memory of pending reads, kept for the next ones.
struct CudaDevice::ReadMemory {
  std::mutex mutex;
  std::vector<std::byte*> free;

  ~ReadMemory() {
    for (std::byte* piece : free) (void)QG_CUDA_STATUS(cudaFreeHost(piece));
  }

  absl::StatusOr<std::byte*> Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!free.empty()) {
        std::byte* const piece = free.back();
        free.pop_back();
        return piece;
      }
    }
    void* piece = nullptr;
    QG_CUDA_RETURN_IF_ERROR(cudaMallocHost(&piece, kPendingReadBytes));
    return static_cast<std::byte*>(piece);
  }

  void Return(std::byte* piece) {
    const std::lock_guard<std::mutex> lock(mutex);
    free.push_back(piece);
  }
};

namespace {

constexpr uintptr_t kAllocationAlignment = 256;  // What CUDA gives; CudaDevice::Allocate says so.

absl::Status OutOfMemory(size_t bytes, int64_t in_use, const std::string& reason) {
  size_t free_bytes = 0, total_bytes = 0;
  std::string rest;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
    rest = absl::StrCat(", ", free_bytes, " of the device's ", total_bytes, " are free");
  }
  return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes,
                                                   " bytes of device memory: ", in_use,
                                                   " are in use", rest, "; ", reason));
}

uintptr_t AddressOf(const CudaDevice::Result& result) {
  return reinterpret_cast<uintptr_t>(result.device);
}

/// Makes `run` hold `next` too, where that lies behind it in the same aligned piece of memory,
/// which is of one allocation.
bool Join(const CudaDevice::Result& next, CudaDevice::Result& run) {
  const uintptr_t end = AddressOf(next) + next.bytes;
  const bool is_near = AddressOf(next) >= AddressOf(run) &&
                       (end - 1) / kAllocationAlignment == AddressOf(run) / kAllocationAlignment;
  if (!is_near) return false;
  run.bytes = std::max(run.bytes, static_cast<size_t>(end - AddressOf(run)));
  return true;
}

}  // namespace

int CudaDevice::Count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int ordinal, bool is_urgent) {
  int count = 0;
  QG_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count));
  if (ordinal < 0 || ordinal >= count) {
    return RefusePrecondition("device", absl::StrCat("cuda:", ordinal),
                              absl::StrCat("the driver shows ", count, " devices"));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  QG_RETURN_IF_ERROR(device->Initialize(ordinal, is_urgent));
  return device;
}

absl::Status CudaDevice::ReadFacts(int ordinal) {
  cudaDeviceProp properties;
  QG_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal));
  facts_.ordinal = ordinal;
  facts_.name = properties.name;
  facts_.major = properties.major;
  facts_.minor = properties.minor;
  facts_.multiprocessors = properties.multiProcessorCount;
  facts_.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  char bus_id[32] = "";
  QG_CUDA_RETURN_IF_ERROR(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal));
  facts_.pci_bus_id = bus_id;
  QG_CUDA_RETURN_IF_ERROR(cudaDriverGetVersion(&facts_.driver_version));
  QG_CUDA_RETURN_IF_ERROR(cudaRuntimeGetVersion(&facts_.runtime_version));
  return absl::OkStatus();
}

absl::Status CudaDevice::Initialize(int ordinal, bool is_urgent) {
  QG_RETURN_IF_ERROR(ReadFacts(ordinal));
  // Code for compute_90a runs on no other architecture, newer ones included.
  if (facts_.major != 9 || facts_.minor != 0) {
    return RefusePrecondition("device",
                              absl::StrCat("cuda:", ordinal, ", a ", facts_.name,
                                           " of architecture sm_", facts_.major, facts_.minor),
                              "this build has kernels for sm_90a only");
  }
  read_memory_ = std::make_shared<ReadMemory>();
  pool_ = std::make_shared<Pool>();
  pool_->ordinal = ordinal;
  pool_->readers = {ordinal};
  QG_CUDA_RETURN_IF_ERROR(cudaSetDevice(ordinal));
  int least = 0, greatest = 0;
  QG_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  QG_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithPriority(&pool_->stream, cudaStreamNonBlocking,
                                                       is_urgent ? greatest : least));
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = ordinal;
  QG_CUDA_RETURN_IF_ERROR(cudaMemPoolCreate(&pool_->memory, &properties));
  {
    Pools& pools = Pools::Get();
    const std::lock_guard<std::mutex> lock(pools.mutex);
    std::erase_if(pools.all, [](const std::weak_ptr<Pool>& pool) { return pool.expired(); });
    pools.all.push_back(pool_);
  }
  // Freed blocks stay in the pool: giving them back to the driver at every wait costs more than the
  // kernels.
  uint64_t keep_all = UINT64_MAX;
  QG_CUDA_RETURN_IF_ERROR(
      cudaMemPoolSetAttribute(pool_->memory, cudaMemPoolAttrReleaseThreshold, &keep_all));
  QG_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&results_stream_, cudaStreamNonBlocking));
  for (Staging* staging : {&staging_[0], &staging_[1], &results_}) {
    QG_ASSIGN_OR_RETURN(staging->data, TakeStagingMemory());
    QG_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&staging->done, cudaEventDisableTiming));
  }
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  if (pool_ == nullptr) return;
  const ScopedDevice current(facts_.ordinal);
  (void)QG_CUDA_STATUS(current.status());
  if (pool_->stream != nullptr) (void)QG_CUDA_STATUS(cudaStreamSynchronize(pool_->stream));
  if (results_stream_ != nullptr) {
    (void)QG_CUDA_STATUS(cudaStreamSynchronize(results_stream_));
    (void)QG_CUDA_STATUS(cudaStreamDestroy(results_stream_));
  }
  for (const Staging& staging : {staging_[0], staging_[1], results_}) {
    if (staging.done != nullptr) (void)QG_CUDA_STATUS(cudaEventDestroy(staging.done));
    ReturnStagingMemory(staging.data);
  }
}

cudaStream_t CudaDevice::stream() const { return pool_->stream; }

absl::Status CudaDevice::MakeCurrent() const {
  QG_RETURN_IF_ERROR(CudaHealth());
  if (IsCurrent(facts_.ordinal)) return absl::OkStatus();
  QG_CUDA_RETURN_IF_ERROR(cudaSetDevice(facts_.ordinal));
  current_ordinal = facts_.ordinal;
  return absl::OkStatus();
}

absl::Status CudaDevice::CountAllocation(size_t bytes) {
  const int64_t number = ++pool_->allocations;
  if (number != pool_->failing.load()) return absl::OkStatus();
  return OutOfMemory(bytes, bytes_in_use(), "this allocation was told to fail");
}

absl::StatusOr<void*> CudaDevice::TakeMemory(size_t size) {
  void* data = nullptr;
  const absl::Status status =
      QG_CUDA_STATUS(cudaMallocFromPoolAsync(&data, size, pool_->memory, pool_->stream));
  if (!absl::IsResourceExhausted(status)) {
    QG_RETURN_IF_ERROR(status);
    return data;
  }
  // What was freed on the stream can be given back to the driver once the stream is done with it.
  QG_RETURN_IF_ERROR(Synchronize());
  QG_CUDA_RETURN_IF_ERROR(cudaMemPoolTrimTo(pool_->memory, 0));
  const absl::Status again =
      QG_CUDA_STATUS(cudaMallocFromPoolAsync(&data, size, pool_->memory, pool_->stream));
  if (absl::IsResourceExhausted(again)) {
    return OutOfMemory(size, bytes_in_use(), std::string(again.message()));
  }
  QG_RETURN_IF_ERROR(again);
  return data;
}

absl::StatusOr<std::shared_ptr<Buffer>> CudaDevice::AllocateBytes(size_t bytes) {
  QG_RETURN_IF_ERROR(CountAllocation(bytes));
  // An empty tensor has an address of its own too.
  const size_t size = std::max<size_t>(bytes, 1);
  QG_ASSIGN_OR_RETURN(void* const data, TakeMemory(size));
  pool_->Count(size);
  std::shared_ptr<const void> owner(data, [pool = pool_, size](const void* block) {
    pool->Return(const_cast<void*>(block), size);
  });
  return Buffer::Wrap(static_cast<std::byte*>(data), bytes, std::move(owner), MemorySpace::kDevice);
}

absl::StatusOr<Tensor> CudaDevice::Allocate(DType dtype, Shape shape) {
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, dtype, "tensor"));
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer,
                      AllocateBytes(static_cast<size_t>(count) * DTypeBytes(dtype)));
  return Tensor::View(dtype, std::move(shape), std::move(buffer));
}

absl::StatusOr<std::shared_ptr<Buffer>> CudaDevice::AllocateZeroedBytes(size_t bytes) {
  if (bytes > kZeroedPieceBytesMax) {
    QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, AllocateBytes(bytes));
    QG_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(buffer->data(), 0, bytes, stream()));
    return buffer;
  }
  QG_RETURN_IF_ERROR(CountAllocation(bytes));
  const size_t piece = (std::max<size_t>(bytes, 1) + kAllocationAlignment - 1) /
                       kAllocationAlignment * kAllocationAlignment;
  if (zeroed_block_ == nullptr || zeroed_used_ + piece > kZeroedBlockBytes) {
    QG_ASSIGN_OR_RETURN(void* const data, TakeMemory(kZeroedBlockBytes));
    // Its pieces are what tensors hold; the rest of it is nobody's.
    zeroed_block_.reset(data, [pool = pool_](void* block) { pool->Return(block, 0); });
    zeroed_used_ = 0;
    QG_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(data, 0, kZeroedBlockBytes, pool_->stream));
  }
  auto* const data = static_cast<std::byte*>(zeroed_block_.get()) + zeroed_used_;
  zeroed_used_ += piece;
  pool_->Count(piece);
  std::shared_ptr<const void> owner(
      data, [pool = pool_, block = zeroed_block_, piece](const void*) mutable {
        pool->bytes -= static_cast<int64_t>(piece);
        block.reset();
      });
  return Buffer::Wrap(data, bytes, std::move(owner), MemorySpace::kDevice);
}

absl::StatusOr<Tensor> CudaDevice::AllocateZeroed(DType dtype, Shape shape) {
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, dtype, "tensor"));
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer,
                      AllocateZeroedBytes(static_cast<size_t>(count) * DTypeBytes(dtype)));
  return Tensor::View(dtype, std::move(shape), std::move(buffer));
}

absl::StatusOr<Tensor> CudaDevice::ToDevice(const Tensor& tensor,
                                            const Cancellation* cancellation) {
  if (!tensor.has_value() || tensor.space() == MemorySpace::kDevice) return tensor;
  QG_ASSIGN_OR_RETURN(Tensor copy, Allocate(tensor.dtype(), tensor.shape()));
  QG_RETURN_IF_ERROR(WriteStaged(tensor.bytes(), copy, 0, cancellation));
  return copy;
}

absl::Status CudaDevice::WriteStaged(std::span<const std::byte> bytes, const Tensor& to,
                                     int64_t offset, const Cancellation* cancellation) {
  Tensor target = to;
  for (size_t begin = 0; begin < bytes.size(); begin += kStagingBytes) {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    const Staging& staging = staging_[next_staging_];
    next_staging_ = (next_staging_ + 1) % staging_.size();
    const size_t count = std::min(kStagingBytes, bytes.size() - begin);
    QG_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(staging.done));
    std::memcpy(staging.data, bytes.data() + begin, count);
    QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(target.data() + offset + begin, staging.data, count,
                                            cudaMemcpyHostToDevice, stream()));
    QG_CUDA_RETURN_IF_ERROR(cudaEventRecord(staging.done, stream()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> CudaDevice::ToHost(const Tensor& tensor, const Cancellation* cancellation) {
  if (!tensor.has_value() || tensor.space() == MemorySpace::kHost) return tensor;
  QG_ASSIGN_OR_RETURN(Tensor copy, Tensor::Allocate(tensor.dtype(), tensor.shape()));
  const size_t bytes = tensor.byte_size();
  const size_t pieces = (bytes + kStagingBytes - 1) / kStagingBytes;
  const auto size_of = [&](size_t piece) {
    return std::min(kStagingBytes, bytes - piece * kStagingBytes);
  };
  // While one piece is copied out of its staging buffer, the next one crosses the bus.
  for (size_t piece = 0; piece <= pieces; ++piece) {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    if (piece < pieces) {
      const Staging& staging = staging_[piece % 2];
      QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(staging.data, tensor.data() + piece * kStagingBytes,
                                              size_of(piece), cudaMemcpyDeviceToHost, stream()));
      QG_CUDA_RETURN_IF_ERROR(cudaEventRecord(staging.done, stream()));
    }
    if (piece == 0) continue;
    const Staging& staging = staging_[(piece - 1) % 2];
    QG_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(staging.done));
    std::memcpy(copy.data() + (piece - 1) * kStagingBytes, staging.data, size_of(piece - 1));
  }
  return copy;
}

absl::Status CudaDevice::ReadAfter(cudaEvent_t made, const Tensor& tensor,
                                   std::span<std::byte> bytes) {
  QG_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(results_stream_, made, 0));
  for (size_t begin = 0; begin < bytes.size(); begin += kStagingBytes) {
    const size_t count = std::min(kStagingBytes, bytes.size() - begin);
    QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(results_.data, tensor.data() + begin, count,
                                            cudaMemcpyDeviceToHost, results_stream_));
    QG_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(results_stream_));
    std::memcpy(bytes.data() + begin, results_.data, count);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::Read(const void* device, void* host, size_t bytes) {
  QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream()));
  return Synchronize();
}

absl::StatusOr<CudaDevice::PendingRead> CudaDevice::TakeReadMemory() {
  QG_ASSIGN_OR_RETURN(std::byte* const piece, read_memory_->Take());
  PendingRead read;
  // One that is given back before it was waited for is still written by what is on the stream,
  // before whatever the next owner puts there.
  read.bytes.reset(piece,
                   [memory = read_memory_](std::byte* returned) { memory->Return(returned); });
  read.number = ++reads_started_;
  return read;
}

absl::StatusOr<CudaDevice::PendingRead> CudaDevice::StartRead(const Tensor& results) {
  const size_t bytes = results.byte_size();
  if (bytes > kPendingReadBytes) {
    return absl::InternalError(absl::StrCat(
        "results of ", bytes, " bytes: a pending read takes at most ", kPendingReadBytes));
  }
  QG_ASSIGN_OR_RETURN(PendingRead read, TakeReadMemory());
  QG_CUDA_RETURN_IF_ERROR(
      LaunchCopyToHost(results.data(), read.bytes.get(), static_cast<int>(bytes), stream()));
  return read;
}

bool CudaDevice::has_reads_to_note() const {
  return reads_started_ > (reads_before_.empty() ? reads_done_ : reads_before_.back().first);
}

void CudaDevice::NoteReads(std::shared_ptr<CUevent_st> recorded) {
  if (has_reads_to_note()) reads_before_.emplace_back(reads_started_, std::move(recorded));
}

absl::Status CudaDevice::FinishRead(const PendingRead& read) {
  if (read.number <= reads_done_) return absl::OkStatus();
  const auto is_before = [&](const auto& noted) { return noted.first < read.number; };
  while (!reads_before_.empty() && is_before(reads_before_.front())) reads_before_.pop_front();
  if (reads_before_.empty()) {
    const int64_t started = reads_started_;
    QG_RETURN_IF_ERROR(Synchronize());
    reads_done_ = started;
    return absl::OkStatus();
  }
  const auto [started, event] = reads_before_.front();
  QG_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(event.get()));
  reads_done_ = started;
  reads_before_.pop_front();
  return absl::OkStatus();
}

absl::Status CudaDevice::PlaceMark(std::shared_ptr<CUevent_st> recorded) {
  if (!must_mark_) return absl::OkStatus();
  must_mark_ = false;
  mark_ = std::move(recorded);
  if (mark_ != nullptr) return absl::OkStatus();
  return QG_CUDA_STATUS(cudaEventRecord(results_.done, stream()));
}

absl::Status CudaDevice::ReadResults(std::span<const Result> results) {
  if (results.empty()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(PlaceMark());
  QG_CUDA_RETURN_IF_ERROR(
      cudaStreamWaitEvent(results_stream_, mark_ != nullptr ? mark_.get() : results_.done, 0));
  // A copy takes longer to start than to run: neighbours go in one.
  std::vector<std::pair<size_t, size_t>> places;  // Of each result: its run, and where in it.
  std::vector<Result> runs;
  for (const Result& result : results) {
    if (runs.empty() || !Join(result, runs.back())) runs.push_back(result);
    const Result& run = runs.back();
    places.emplace_back(runs.size() - 1, AddressOf(result) - AddressOf(run));
  }
  std::vector<size_t> begins;
  size_t bytes = 0;
  for (const Result& run : runs) {
    if (bytes + run.bytes > kStagingBytes) {
      return absl::InternalError("results to read at once are larger than the staging memory");
    }
    QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(results_.data + bytes, run.device, run.bytes,
                                            cudaMemcpyDeviceToHost, results_stream_));
    begins.push_back(bytes);
    bytes += run.bytes;
  }
  QG_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(results_stream_));
  for (size_t i = 0; i < results.size(); ++i) {
    const auto [run, offset] = places[i];
    std::memcpy(results[i].host, results_.data + begins[run] + offset, results[i].bytes);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::Write(const void* host, void* device, size_t bytes) {
  // From pageable memory the runtime has read the source when it returns.
  return QG_CUDA_STATUS(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream()));
}

absl::Status CudaDevice::Synchronize() { return QG_CUDA_STATUS(cudaStreamSynchronize(stream())); }

int64_t CudaDevice::bytes_in_use() const { return pool_->bytes.load(); }
int64_t CudaDevice::bytes_in_use_max() const { return pool_->bytes_max.load(); }

absl::StatusOr<bool> CudaDevice::ReachMemoryOf(int ordinal) {
  if (ordinal == facts_.ordinal) return true;
  int can_access = 0;
  QG_CUDA_RETURN_IF_ERROR(cudaDeviceCanAccessPeer(&can_access, facts_.ordinal, ordinal));
  if (can_access == 0) return false;
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = facts_.ordinal;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  Pools& pools = Pools::Get();
  const std::lock_guard<std::mutex> lock(pools.mutex);
  for (const std::weak_ptr<Pool>& weak : pools.all) {
    const std::shared_ptr<Pool> pool = weak.lock();
    if (pool == nullptr || pool->ordinal != ordinal || pool->readers.contains(facts_.ordinal)) {
      continue;
    }
    QG_CUDA_RETURN_IF_ERROR(cudaMemPoolSetAccess(pool->memory, &access, 1));
    pool->readers.insert(facts_.ordinal);
  }
  return true;
}

void CudaDevice::FailAllocation(int64_t k) {
  pool_->failing = k == 0 ? 0 : pool_->allocations.load() + k;
}
int64_t CudaDevice::allocation_count() const { return pool_->allocations.load(); }

}  // namespace quantgate
