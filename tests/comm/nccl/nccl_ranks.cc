#include "tests/comm/nccl/nccl_ranks.h"

#include <gtest/gtest.h>

#include <span>
#include <thread>

namespace quantgate {
namespace {

constexpr int kValues = 8;

}  // namespace

const GroupDescription NcclRanks::kGroup = {.id = 3, .name = "tp", .members = {0, 1}};

NcclRanks::NcclRanks(absl::Duration deadline, CommunicatorCache* communicators,
                     std::array<int, kSize> devices) {
  std::vector<Engine*> all;
  for (int rank = 0; rank < kSize; ++rank) {
    engines_[rank] = CudaEngine::Open(devices[rank]).value();
    all.push_back(engines_[rank].get());
  }
  transport_ = MakeNcclTransport(all, deadline, communicators).value();
  const absl::Status added = transport_->AddGroup(kGroup);
  EXPECT_TRUE(added.ok()) << added;
}

std::array<absl::Status, NcclRanks::kSize> NcclRanks::Gather(const std::vector<int>& callers,
                                                             float values) {
  std::vector<Posting> postings(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    const std::vector<float> own(kValues, values + static_cast<float>(rank));
    const Tensor tensor =
        Tensor::FromBytes(DType::kF32, {kValues}, std::as_bytes(std::span(own))).value();
    postings[rank].contribution = transport_->Contribute(*engines_[rank], {tensor}).value();
  }
  std::array<absl::Status, kSize> statuses;
  std::vector<std::thread> threads;
  for (const int rank : callers) {
    threads.emplace_back([&, rank] {
      const AgreedCall call = {kGroup, postings, rank, *engines_[rank]};
      gathered_[rank] = engines_[rank]->Allocate(DType::kF32, {kSize * kValues}).value();
      statuses[rank] = transport_->AllGather(call, gathered_[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void NcclRanks::ExpectGathered(int rank, float values) {
  const Tensor whole = engines_[rank]->ToHost(gathered_[rank], nullptr).value();
  for (int i = 0; i < kSize * kValues; ++i) {
    EXPECT_EQ(whole.as<float>()[i], values + static_cast<float>(i / kValues))
        << "rank " << rank << ", element " << i;
  }
}

StreamHold::StreamHold(CudaDevice& device) : device_(device), is_let_go_(let_go_.get_future()) {
  EXPECT_TRUE(device.MakeCurrent().ok());
  const auto wait = [](void* hold) { static_cast<StreamHold*>(hold)->is_let_go_.wait(); };
  EXPECT_EQ(cudaLaunchHostFunc(device.stream(), wait, this), cudaSuccess);
}

StreamHold::~StreamHold() {
  LetGo();
  EXPECT_TRUE(device_.Synchronize().ok());
}

void StreamHold::LetGo() {
  if (!has_let_go_) let_go_.set_value();
  has_let_go_ = true;
}

}  // namespace quantgate
