// Rank 1 goes wrong inside a collective call, or inside an overlapped one, once it is told to: for
// servers that must live on.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/comm/group/transport.h"
#include "tests/comm/troubled_engine.h"

namespace quantgate {

enum class RankTrouble {
  kNone,
  kDies,     ///< The call ends with an error.
  kIsStuck,  ///< The call ends when the others have given up.
};

enum class TroublePlace {
  kCollective,  ///< A call that moves bytes.
  kOverlap,     ///< A copy or a sum beside GEMMs.
};

/// What happens to rank 1 when it is next in such a place; afterwards nothing. Thread-safe.
class RankTroubles {
 public:
  void Begin(RankTrouble trouble, TroublePlace place) {
    const std::scoped_lock lock(mutex_);
    next_ = trouble;
    place_ = place;
    abort_ = absl::OkStatus();
  }

  absl::Status At(TroublePlace place, int rank) {
    std::unique_lock lock(mutex_);
    if (rank != 1 || place != place_) return absl::OkStatus();
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
  TroublePlace place_ = TroublePlace::kCollective;
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
    const absl::Status status = troubles_.At(TroublePlace::kCollective, call.place);
    return status.ok() ? local_->AllGather(call, whole) : status;
  }
  absl::StatusOr<std::vector<Tensor>> AllGatherParts(const AgreedCall& call) override {
    const absl::Status status = troubles_.At(TroublePlace::kCollective, call.place);
    if (!status.ok()) return status;
    return local_->AllGatherParts(call);
  }
  absl::StatusOr<std::vector<Tensor>> AllToAll(const AgreedCall& call) override {
    const absl::Status status = troubles_.At(TroublePlace::kCollective, call.place);
    if (!status.ok()) return status;
    return local_->AllToAll(call);
  }
  absl::StatusOr<Tensor> Maximum(const AgreedCall& call) override { return local_->Maximum(call); }
  absl::StatusOr<Tensor> LibrarySum(const AgreedCall& call) override {
    return local_->LibrarySum(call);
  }
  absl::StatusOr<Tensor> LibraryReduceScatter(const AgreedCall& call) override {
    return local_->LibraryReduceScatter(call);
  }
  void Abort(const GroupDescription&, const absl::Status& cause) override {
    troubles_.Abort(cause);
  }

 private:
  RankTroubles& troubles_;
  const std::unique_ptr<Transport> local_ = MakeLocalTransport();
};

/// Of a rank whose overlapped calls meet the troubles.
inline std::unique_ptr<Engine> MakeTroubled(RankTroubles& troubles, Engine& engine, int rank) {
  return std::make_unique<TroubledEngine>(engine, [&troubles, rank](bool is_beside) {
    return is_beside ? troubles.At(TroublePlace::kOverlap, rank) : absl::OkStatus();
  });
}

}  // namespace quantgate
