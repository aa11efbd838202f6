#include "tests/comm/ranks.h"

#include <gtest/gtest.h>

#include <utility>

namespace quantgate {
namespace {

std::unique_ptr<World> MakeWorld(const std::vector<std::unique_ptr<Engine>>& engines,
                                 WorldOptions options) {
  for (const auto& engine : engines) options.engines.push_back(engine.get());
  return *World::Create(std::move(options));
}

}  // namespace

Ranks::Ranks(int size, WorldOptions options) {
  for (int rank = 0; rank < size; ++rank) engines_.push_back(MakeCpuEngine({.threads = 1}));
  world_ = MakeWorld(engines_, std::move(options));
}

Ranks::Ranks(Ranks&& other, WorldOptions options) : engines_(std::move(other.engines_)) {
  other.world_.reset();
  world_ = MakeWorld(engines_, std::move(options));
}

std::vector<absl::Status> Ranks::StatusOfEach(const std::function<absl::Status(Rank&)>& body,
                                              const Cancellation* cancellation) {
  std::vector<absl::Status> statuses(world_->size());
  world_
      ->Run(
          [&](Rank& rank) {
            statuses[rank.index()] = body(rank);
            return absl::OkStatus();
          },
          cancellation)
      .IgnoreError();
  return statuses;
}

std::vector<Tensor> Ranks::TensorOfEach(const std::function<absl::StatusOr<Tensor>(Rank&)>& body) {
  std::vector<Tensor> tensors(world_->size());
  const absl::Status status = world_->Run(
      [&](Rank& rank) {
        absl::StatusOr<Tensor> tensor = body(rank);
        if (tensor.ok()) tensors[rank.index()] = *tensor;
        return tensor.status();
      },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return tensors;
}

Tensor MarkedTensor(int rank, DType dtype, Shape shape) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  uint64_t state = 0x9E3779B97F4A7C15u * static_cast<uint64_t>(rank + 1);
  for (size_t i = 0; i < tensor.byte_size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tensor.data()[i] = static_cast<std::byte>(state >> 56);
  }
  return tensor;
}

std::string BytesOf(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data()), tensor.byte_size()};
}

std::string BytesOf(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) bytes += BytesOf(tensor);
  return bytes;
}

}  // namespace quantgate
