// Worlds of CPU ranks for tests, and tensors whose bytes say where they come from.
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
  /// Ranks on the engines of another world, which is no longer used.
  Ranks(Ranks&& other, WorldOptions options);

  World& world() { return *world_; }

  /// The status of each rank's body. None of them fails the run: others learn that it has ended.
  std::vector<absl::Status> StatusOfEach(const std::function<absl::Status(Rank&)>& body,
                                         const Cancellation* cancellation = nullptr);
  /// A run in which every body must succeed, with what each gives.
  std::vector<Tensor> TensorOfEach(const std::function<absl::StatusOr<Tensor>(Rank&)>& body);

 private:
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<World> world_;
};

/// Bytes that depend on where they are and on whose they are; of floating types any bits, NaN too.
Tensor MarkedTensor(int rank, DType dtype, Shape shape);
std::string BytesOf(const Tensor& tensor);
/// The bytes of the tensors one after the other.
std::string BytesOf(const std::vector<Tensor>& tensors);

}  // namespace quantgate
