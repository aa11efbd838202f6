// What happens to ranks on GPUs when another does not come, on the host or on its device. Needs two
// devices: says that it is left out where there are fewer.
#include "kernels/comm/nccl_transport.h"

#include <gtest/gtest.h>

#include <array>
#include <future>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/engine/cuda_engine.h"

namespace quantgate {
namespace {

constexpr int kSize = 2;
const GroupDescription kGroup = {.id = 3, .name = "tp", .members = {0, 1}};

/// Two ranks on a device each, and a transport between them.
struct Ranks {
  std::array<std::unique_ptr<CudaEngine>, kSize> engines;
  std::unique_ptr<Transport> transport;

  explicit Ranks(absl::Duration deadline) {
    std::vector<Engine*> all;
    for (int rank = 0; rank < kSize; ++rank) {
      engines[rank] = CudaEngine::Open(rank).value();
      all.push_back(engines[rank].get());
    }
    transport = MakeNcclTransport(all, deadline).value();
    const absl::Status added = transport->AddGroup(kGroup);
    EXPECT_TRUE(added.ok()) << added;
  }

  /// All-gathers f32 [8] of each rank's number on the threads of `callers`.
  std::array<absl::Status, kSize> Gather(const std::vector<int>& callers) {
    std::vector<Posting> postings(kSize);
    for (int rank = 0; rank < kSize; ++rank) {
      const std::vector<float> values(8, static_cast<float>(rank + 1));
      const Tensor tensor =
          Tensor::FromBytes(DType::kF32, {8}, std::as_bytes(std::span(values))).value();
      postings[rank].contribution = transport->Contribute(*engines[rank], {tensor}).value();
    }
    std::array<absl::Status, kSize> statuses;
    std::vector<std::thread> threads;
    for (const int rank : callers) {
      threads.emplace_back([&, rank] {
        const AgreedCall call = {kGroup, postings, rank, *engines[rank]};
        gathered[rank] = engines[rank]->Allocate(DType::kF32, {16}).value();
        statuses[rank] = transport->AllGather(call, gathered[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  std::array<Tensor, kSize> gathered;
};

bool HasTwoDevices() {
  if (CudaDevice::Count() >= kSize) return true;
  std::cerr << "left out: " << CudaDevice::Count() << " device here, two needed\n";
  return false;
}

TEST(NcclTransport, SettlesWhenAllIsDone) {
  if (!HasTwoDevices()) return;
  Ranks ranks(absl::Seconds(60));
  for (int round = 0; round < 3; ++round) {
    for (const absl::Status& status : ranks.Gather({0, 1})) EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(ranks.transport->Settle().ok());
  for (int rank = 0; rank < kSize; ++rank) {
    const Tensor whole = ranks.engines[rank]->ToHost(ranks.gathered[rank], nullptr).value();
    for (int i = 0; i < 16; ++i) EXPECT_EQ(whole.as<float>()[i], i < 8 ? 1.0f : 2.0f) << i;
  }
}

TEST(NcclTransport, NamesTheRankThatDidNotCome) {
  if (!HasTwoDevices()) return;
  Ranks ranks(absl::Milliseconds(200));
  const absl::Status status = ranks.Gather({0})[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("group tp: rank 1 did not come"), std::string::npos) << status;
  EXPECT_EQ(ranks.Gather({1})[1], status);  // For whoever comes later too.
  EXPECT_EQ(ranks.transport->Settle(), status);
}

TEST(NcclTransport, EndsWaitsWhenARankHasGone) {
  if (!HasTwoDevices()) return;
  Ranks ranks(absl::Minutes(10));
  auto waiting = std::async(std::launch::async, [&] { return ranks.Gather({0})[0]; });
  const absl::Status cause = absl::AbortedError("rank 1 has gone");
  ranks.transport->Abort(kGroup, cause);
  EXPECT_EQ(waiting.get(), cause);
}

/// A device that never gets to its part: the others' waiting kernels are ended.
TEST(NcclTransport, EndsCallsThatAreStuckOnADevice) {
  if (!HasTwoDevices()) return;
  Ranks ranks(absl::Seconds(1));
  ranks.Gather({0, 1});  // Connects.
  ASSERT_TRUE(ranks.transport->Settle().ok());
  std::promise<void> release;
  std::shared_future<void> released(release.get_future());
  ASSERT_TRUE(ranks.engines[1]->device().MakeCurrent().ok());
  ASSERT_EQ(
      cudaLaunchHostFunc(
          ranks.engines[1]->device().stream(),
          [](void* future) { static_cast<std::shared_future<void>*>(future)->wait(); }, &released),
      cudaSuccess);
  for (const absl::Status& status : ranks.Gather({0, 1})) EXPECT_TRUE(status.ok()) << status;
  const absl::Status status = ranks.transport->Settle();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("rank 1 did not get to a collective call on the device"),
            std::string::npos)
      << status;
  EXPECT_EQ(ranks.Gather({0, 1})[0], status);
  release.set_value();
  for (const auto& engine : ranks.engines) EXPECT_TRUE(engine->device().Synchronize().ok());
}

}  // namespace
}  // namespace quantgate
