#include "tests/comm/cuda_worlds.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/engine/cuda_module.h"

namespace quantgate {

std::vector<CudaWorldCase> CudaWorldCases() {
  const auto devices = CountCudaDevices();
  EXPECT_TRUE(devices.ok()) << devices.status();
  std::vector<CudaWorldCase> cases;
  for (const int size : {1, 2, 3, 4, 8}) {
    cases.push_back({size, true, CollectiveBackend::kLocal});
    if (*devices > 1 && size > 1) cases.push_back({size, false, CollectiveBackend::kLocal});
    if (size <= *devices) {
      cases.push_back({size, false, CollectiveBackend::kNccl});
    } else {
      static std::vector<bool> is_said(16);
      if (!is_said[size]) std::cerr << size << " ranks by nccl left out: " << *devices << " here\n";
      is_said[size] = true;
    }
  }
  return cases;
}

std::vector<CudaWorldCase> CudaWorldCases(CollectiveBackend backend) {
  std::vector<CudaWorldCase> cases = CudaWorldCases();
  std::erase_if(cases, [&](const CudaWorldCase& world) { return world.backend != backend; });
  return cases;
}

std::string CaseText(const CudaWorldCase& world) {
  const bool is_nccl = world.backend == CollectiveBackend::kNccl;
  return absl::StrCat(world.size, " ranks ", is_nccl ? "by nccl" : "by copies",
                      world.is_on_one_device ? " on one device" : "");
}

namespace {

Engine* EngineOf(int rank, int ordinal) {
  static auto& engines = *new std::map<std::pair<int, int>, std::unique_ptr<Engine>>;
  std::unique_ptr<Engine>& engine = engines[{rank, ordinal}];
  if (engine == nullptr) {
    auto made = MakeCudaEngine(ordinal);
    EXPECT_TRUE(made.ok()) << made.status();
    engine = *std::move(made);
  }
  return engine.get();
}

}  // namespace

CudaRanks::CudaRanks(const CudaWorldCase& world, WorldOptions options) {
  const auto devices = CountCudaDevices();
  for (int rank = 0; rank < world.size; ++rank) {
    options.engines.push_back(EngineOf(rank, world.is_on_one_device ? 0 : rank % *devices));
  }
  options.backend = world.backend;
  auto made = World::Create(std::move(options));
  EXPECT_TRUE(made.ok()) << made.status();
  world_ = *std::move(made);
}

std::vector<Tensor> CudaRanks::TensorOfEach(
    const std::function<absl::StatusOr<Tensor>(Rank&)>& body) {
  std::vector<Tensor> tensors(world_->size());
  const absl::Status status = world_->Run(
      [&](Rank& rank) {
        absl::StatusOr<Tensor> tensor = body(rank);
        if (!tensor.ok()) return tensor.status();
        absl::StatusOr<Tensor> on_host = rank.engine().ToHost(*tensor, nullptr);
        if (on_host.ok()) tensors[rank.index()] = *on_host;
        return on_host.status();
      },
      nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return tensors;
}

}  // namespace quantgate
