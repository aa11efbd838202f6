// Worlds of CPU ranks for tests, and tensors whose bytes tell where they come from.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/comm/group/world.h"

namespace quantgate {

inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 8};

/// A world with a CPU engine of one thread for each rank.
class Ranks {
 public:
  explicit Ranks(int size, WorldOptions options = {});
  /// Takes over the engines of `other`, which must not be used any more.
  Ranks(Ranks&& other, WorldOptions options);

  World& world() { return *world_; }

  /// Runs `body` on every rank and gives the status of each. An error does not fail the run; the
  /// other ranks only learn that the rank has ended.
  std::vector<absl::Status> StatusOfEach(const std::function<absl::Status(Rank&)>& body,
                                         const Cancellation* cancellation = nullptr);
  /// Runs `body` on every rank, expects it to succeed, and gives the ranks' tensors.
  std::vector<Tensor> TensorOfEach(const std::function<absl::StatusOr<Tensor>(Rank&)>& body);

 private:
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<World> world_;
};

/// A tensor whose bytes depend on their position and on the rank; floating types get any bits, NaN
/// too.
Tensor MarkedTensor(int rank, DType dtype, Shape shape);
std::string BytesOf(const Tensor& tensor);
/// The bytes of the tensors one after the other.
std::string BytesOf(const std::vector<Tensor>& tensors);

}  // namespace quantgate
