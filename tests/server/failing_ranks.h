// A transport whose member 1 goes wrong inside a collective call, once it is told to: for servers
// that must live on.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/comm/transport.h"

namespace quantgate {

enum class RankTrouble {
  kNone,
  kDies,     ///< The call ends with an error.
  kIsStuck,  ///< The call ends when the others have given up.
};

/// What happens to member 1 at its next call that moves bytes; afterwards nothing. Thread-safe.
class RankTroubles {
 public:
  void Begin(RankTrouble trouble) {
    const std::scoped_lock lock(mutex_);
    next_ = trouble;
    abort_ = absl::OkStatus();
  }

  absl::Status AtCall(int place) {
    std::unique_lock lock(mutex_);
    if (place != 1) return absl::OkStatus();
    switch (std::exchange(next_, RankTrouble::kNone)) {
      case RankTrouble::kNone:
        return absl::OkStatus();
      case RankTrouble::kDies:
        return absl::UnavailableError("killed in the middle of a call");
      case RankTrouble::kIsStuck:
        aborted_.wait(lock, [&] { return !abort_.ok(); });
        return abort_;
    }
    return absl::OkStatus();
  }

  void Abort(const absl::Status& cause) {
    const std::scoped_lock lock(mutex_);
    abort_ = cause;
    aborted_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable aborted_;
  RankTrouble next_ = RankTrouble::kNone;
  absl::Status abort_;
};

/// Copies as the local one does.
class FailingTransport final : public Transport {
 public:
  explicit FailingTransport(RankTroubles& troubles) : troubles_(troubles) {}

  std::string name() const override { return "failing"; }
  absl::Status AddGroup(const GroupDescription& group) override { return local_->AddGroup(group); }
  absl::StatusOr<Contribution> Contribute(Engine& engine, std::vector<Tensor> tensors) override {
    return local_->Contribute(engine, std::move(tensors));
  }
  absl::Status AllGather(const AgreedCall& call, const Tensor& whole) override {
    const absl::Status status = troubles_.AtCall(call.place);
    return status.ok() ? local_->AllGather(call, whole) : status;
  }
  absl::StatusOr<std::vector<Tensor>> AllGatherParts(const AgreedCall& call) override {
    const absl::Status status = troubles_.AtCall(call.place);
    if (!status.ok()) return status;
    return local_->AllGatherParts(call);
  }
  absl::StatusOr<std::vector<Tensor>> AllToAll(const AgreedCall& call) override {
    const absl::Status status = troubles_.AtCall(call.place);
    if (!status.ok()) return status;
    return local_->AllToAll(call);
  }
  absl::StatusOr<Tensor> Broadcast(const AgreedCall& call, int root) override {
    return local_->Broadcast(call, root);
  }
  absl::StatusOr<Tensor> Maximum(const AgreedCall& call) override { return local_->Maximum(call); }
  absl::StatusOr<Tensor> LibrarySum(const AgreedCall& call) override {
    return local_->LibrarySum(call);
  }
  absl::StatusOr<Tensor> LibraryReduceScatter(const AgreedCall& call) override {
    return local_->LibraryReduceScatter(call);
  }
  absl::StatusOr<Tensor> Receive(Engine& engine, const Contribution& sent) override {
    return local_->Receive(engine, sent);
  }
  void Abort(const GroupDescription&, const absl::Status& cause) override {
    troubles_.Abort(cause);
  }

 private:
  RankTroubles& troubles_;
  const std::unique_ptr<Transport> local_ = MakeLocalTransport();
};

}  // namespace quantgate
