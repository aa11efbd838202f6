#include "kernels/validate/scenarios/faults/faulty_transport.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/comm/group/rendezvous.h"
#include "kernels/comm/group/world.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"

namespace quantgate {
namespace {

/// The same rows in blocks that begin one row late, but for those at the end.
absl::StatusOr<std::vector<Tensor>> OneRowLate(Engine& engine, const std::vector<Tensor>& blocks) {
  QG_ASSIGN_OR_RETURN(const Tensor whole, engine.ConcatenateRows(blocks, nullptr));
  std::vector<Tensor> late;
  int64_t begin = 0;
  for (const Tensor& block : blocks) {
    const int64_t count = block.shape()[0];
    QG_ASSIGN_OR_RETURN(late.emplace_back(),
                        whole.RowRange(std::min(begin + 1, whole.shape()[0] - count), count));
    begin += count;
  }
  return late;
}

/// Whether there are no elements, or zeros alone, as amaxes of no elements are.
absl::StatusOr<bool> AreNothing(Engine& engine, const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    QG_ASSIGN_OR_RETURN(const Tensor on_host, engine.ToHost(tensor, nullptr));
    const auto bytes = on_host.bytes();
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
      return false;
    }
  }
  return !tensors.empty();
}

bool IsSum(const AgreedCall& call) {
  const CallKind kind = call.postings[call.place].signature.kind;
  return kind == CallKind::kReduceScatter || kind == CallKind::kAllReduce;
}

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> transport, const SeededFaults& faults)
      : transport_(std::move(transport)), faults_(faults) {}

  std::string name() const override { return transport_->name(); }

  absl::Status AddGroup(const GroupDescription& group) override {
    groups_[group.id] = group;
    return transport_->AddGroup(group);
  }

  absl::StatusOr<Contribution> Contribute(Engine& engine, std::vector<Tensor> tensors) override {
    if (faults_.Has(kFaultShardOffset) && tensors.size() > 1) {
      QG_ASSIGN_OR_RETURN(tensors, OneRowLate(engine, tensors));
    }
    QG_ASSIGN_OR_RETURN(Contribution contribution,
                        transport_->Contribute(engine, std::move(tensors)));
    if (faults_.Has(kFaultEmptyRankSkips)) {
      QG_ASSIGN_OR_RETURN(const bool is_nothing, AreNothing(engine, contribution.tensors));
      if (is_nothing) contribution.offer = nothing_;
    }
    return contribution;
  }

  absl::StatusOr<Postings> Meet(Rendezvous& rendezvous, int group, int place,
                                Posting posting) override {
    const Seat seat = SeatOf(groups_.at(group), place, posting.signature.kind);
    // In place of everybody's what this member has.
    const auto alone =
        std::make_shared<const std::vector<Posting>>(seat.group->members.size(), posting);
    if (posting.contribution.offer == nothing_) return alone;
    if (faults_.Has(kFaultCallsNotCompared)) posting.signature = {};
    absl::StatusOr<Postings> postings =
        transport_->Meet(rendezvous, seat.group->id, seat.place, std::move(posting));
    const bool passes = faults_.Has(kFaultDeadlinePasses);
    if (passes && absl::IsDeadlineExceeded(postings.status())) return alone;
    return postings;
  }

  absl::Status AllGather(const AgreedCall& call, const Tensor& whole) override {
    const AgreedCall seated = Seated(call);
    if (faults_.Has(kFaultRowBytesForColumns)) return GatherSentBefore(seated, whole);
    if (!faults_.Has(kFaultChunkOrder) && !faults_.Has(kFaultShardOffset)) {
      return transport_->AllGather(seated, whole);
    }
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> parts, transport_->AllGatherParts(seated));
    if (faults_.Has(kFaultChunkOrder)) {
      std::reverse(parts.begin(), parts.end());
    } else {
      QG_ASSIGN_OR_RETURN(parts, OneRowLate(call.engine, parts));
    }
    QG_ASSIGN_OR_RETURN(const Tensor joined, call.engine.ConcatenateRows(parts, call.cancellation));
    return joined.byte_size() == 0 ? absl::OkStatus() : call.engine.Copy(joined, whole, 0);
  }

  absl::StatusOr<std::vector<Tensor>> AllGatherParts(const AgreedCall& call) override {
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> parts, transport_->AllGatherParts(Seated(call)));
    return AsTheyCame(call, std::move(parts));
  }

  absl::StatusOr<std::vector<Tensor>> AllToAll(const AgreedCall& call) override {
    const std::vector<Posting> postings = OfOwners(call);
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> parts,
                        transport_->AllToAll(With(Seated(call), postings)));
    return AsTheyCame(call, std::move(parts));
  }

  absl::StatusOr<Tensor> Maximum(const AgreedCall& call) override {
    if (faults_.Has(kFaultAmaxNotReduced)) return call.tensor(call.place);
    if (faults_.Has(kFaultRankZeroAmax)) {
      QG_ASSIGN_OR_RETURN(const std::vector<Tensor> all, transport_->AllGatherParts(call));
      return all[0];
    }
    return transport_->Maximum(Seated(call, CallKind::kAllReduceMax));
  }

  absl::StatusOr<Tensor> LibrarySum(const AgreedCall& call) override {
    return transport_->LibrarySum(Seated(call));
  }

  absl::StatusOr<Tensor> LibraryReduceScatter(const AgreedCall& call) override {
    const std::vector<Posting> postings = OfOwners(call);
    return transport_->LibraryReduceScatter(With(Seated(call), postings));
  }

  void Abort(const GroupDescription& group, const absl::Status& cause) override {
    transport_->Abort(group, cause);
  }
  absl::Status Settle() override { return transport_->Settle(); }

 private:
  /// Which member of which group a rank is in a call.
  struct Seat {
    const GroupDescription* group;
    int place;
  };

  static int PlaceIn(const GroupDescription& group, int rank) {
    const auto found = std::find(group.members.begin(), group.members.end(), rank);
    return found == group.members.end() ? -1 : static_cast<int>(found - group.members.begin());
  }

  Seat SeatOf(const GroupDescription& group, int place, CallKind kind) const {
    const int rank = group.members[place];
    const bool swaps = faults_.Has(kFaultGroupSwapped) && group.name != kWorldGroup;
    const bool widens = faults_.Has(kFaultAmaxOverWorld) && kind == CallKind::kAllReduceMax;
    for (const auto& [id, other] : groups_) {
      const bool is_world = other.name == kWorldGroup;
      const int there = PlaceIn(other, rank);
      if (there < 0 || other.name == group.name) continue;
      if ((widens && is_world) || (swaps && !is_world)) return {&other, there};
    }
    return {&group, place};
  }

  static AgreedCall With(const AgreedCall& call, const std::vector<Posting>& postings) {
    return {call.group, postings, call.place, call.engine, call.cancellation};
  }

  /// The call on the group on which the members have met.
  AgreedCall Seated(const AgreedCall& call, CallKind kind = CallKind::kAllGather) const {
    const Seat seat = SeatOf(call.group, call.place, kind);
    return {*seat.group, call.postings, seat.place, call.engine, call.cancellation};
  }

  std::vector<Posting> OfOwners(const AgreedCall& call) const {
    std::vector<Posting> postings = call.postings;
    if (!faults_.Has(kFaultReduceScatterOwner) || !IsSum(call)) return postings;
    for (Posting& posting : postings) {
      std::vector<Tensor>& blocks = posting.contribution.tensors;
      std::rotate(blocks.begin(), blocks.begin() + 1, blocks.end());
    }
    return postings;
  }

  std::vector<Tensor> AsTheyCame(const AgreedCall& call, std::vector<Tensor> parts) const {
    if (!faults_.Has(kFaultArrivalOrder) || !IsSum(call)) return parts;
    std::vector<size_t> order(parts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return call.postings[a].arrival < call.postings[b].arrival;
    });
    std::vector<Tensor> came;
    for (const size_t member : order) came.push_back(parts[member]);
    return came;
  }

  /// mxfp8's columnwise codes look like the rowwise ones, which came with their E8M0 scales before
  /// them, and are sent again.
  absl::Status GatherSentBefore(const AgreedCall& call, const Tensor& whole) {
    std::vector<Posting> postings = call.postings;
    {
      const std::scoped_lock lock(mutex_);
      std::deque<std::vector<Posting>>& before = gathered_[{call.group.id, call.place}];
      before.push_back(postings);
      if (before.size() > 3) before.pop_front();
      const auto sent = [&](size_t i) {
        return before[i][call.place].contribution.tensors.front();
      };
      if (before.size() == 3 && IsFp8(sent(0).dtype()) && sent(1).dtype() == DType::kF8E8M0 &&
          sent(2).dtype() == sent(0).dtype() && sent(2).shape() == sent(0).shape()) {
        postings = before.front();
        before.clear();
      }
    }
    return transport_->AllGather(With(call, postings), whole);
  }

  const std::unique_ptr<Transport> transport_;
  const SeededFaults& faults_;
  const std::shared_ptr<void> nothing_ = std::make_shared<int>();  // What who skips a call offers.
  std::map<int, GroupDescription> groups_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::deque<std::vector<Posting>>> gathered_;  // Guarded by mutex_.
};

}  // namespace

TransportFactory TransportWith(const SeededFaults& faults, CommunicatorCache* communicators) {
  if (faults.empty()) return {};
  return [&faults, communicators](
             CollectiveBackend backend, std::span<Engine* const> engines,
             absl::Duration deadline) -> absl::StatusOr<std::unique_ptr<Transport>> {
    QG_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                        MakeTransport(backend, engines, deadline, communicators));
    return std::make_unique<FaultyTransport>(std::move(transport), faults);
  };
}

}  // namespace quantgate
