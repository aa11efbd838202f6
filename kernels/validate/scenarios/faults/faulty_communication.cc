#include "kernels/validate/scenarios/faults/faulty_communication.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/comm/group/rendezvous.h"
#include "kernels/comm/group/world.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"

namespace quantgate {
namespace {

/// The same rows cut into blocks that begin one row late, except that none reaches past the end.
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

/// Whether all elements are zeros, as the amaxes of empty tensors are, or there are no elements.
/// False if there is no tensor.
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
    // Postings as if every member had posted what this one did.
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
  /// The group that a rank meets in during a call, and its place there.
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

  /// The call in the group in which the members have really met.
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

  /// Sends rowwise codes of mxfp8 again in place of the columnwise ones. It knows columnwise codes
  /// by what was gathered before: codes of the same dtype and shape, then E8M0 scales.
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
  const std::shared_ptr<void> nothing_ = std::make_shared<int>();  // Offered to skip a call.
  std::map<int, GroupDescription> groups_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::deque<std::vector<Posting>>> gathered_;  // Guarded by mutex_.
};

absl::StatusOr<Tensor> ZerosOn(Engine& engine, DType dtype, Shape shape) {
  QG_ASSIGN_OR_RETURN(Tensor zeros, Tensor::Allocate(dtype, std::move(shape)));
  std::fill_n(zeros.data(), zeros.byte_size(), std::byte{0});
  return engine.ToDevice(zeros, nullptr);
}

/// The first bytes of `tensor`, repeated where there are too few, as elements of another type.
absl::StatusOr<Tensor> ReadAs(Engine& engine, const Tensor& tensor, DType dtype) {
  const auto bytes = static_cast<int64_t>(tensor.byte_size());
  const int64_t wanted = tensor.element_count() * DTypeBytes(dtype);
  QG_ASSIGN_OR_RETURN(const Tensor flat, tensor.Reinterpret(DType::kU8, {bytes}));
  const std::vector<Tensor> parts(static_cast<size_t>((wanted + bytes - 1) / bytes), flat);
  QG_ASSIGN_OR_RETURN(const Tensor repeated, engine.ConcatenateRows(parts, nullptr));
  QG_ASSIGN_OR_RETURN(const Tensor read, repeated.RowRange(0, wanted));
  return read.Reinterpret(dtype, tensor.shape());
}

class FaultyOverlap final : public Overlap {
 public:
  FaultyOverlap(const SeededFaults& faults, std::unique_ptr<Overlap> overlap,
                OverlapBuffers& buffers, BufferMemories& memories)
      : Overlap(overlap->group(), buffers, {}),
        faults_(faults),
        overlap_(std::move(overlap)),
        buffers_(buffers),
        memories_(memories) {}

  absl::StatusOr<GatheredGemm> AllGatherGemm(const AllGatherGemmCall& call) override {
    QG_ASSIGN_OR_RETURN(GatheredGemm result, overlap_->AllGatherGemm(call));
    if (call.method != OverlapMethod::kRingExchange) return result;
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> gathered, result.gathered.Read());
    GemmDesc whole = call.gemm;
    whole.a.data = gathered[0];
    if (whole.a.scaling == ScaleMode::kMx32) whole.a.scale_inv = gathered[1];
    if (faults_.Has(kFaultChunkOrder)) {
      QG_ASSIGN_OR_RETURN(result.gemm.d, FromTheOtherEnd(result.gemm.d));
    }
    if (faults_.Has(kFaultCopyNotAwaited)) {
      QG_ASSIGN_OR_RETURN(whole.a.data,
                          BeforeTheCopies(call.name.buffer, result.local[0], gathered[0]));
      QG_RETURN_IF_ERROR(Multiply(whole, result));
    }
    if (faults_.Has(kFaultScalesLeftBehind) && whole.a.scaling == ScaleMode::kMx32) {
      const std::vector<Tensor> own(static_cast<size_t>(group().size()), result.local[1]);
      QG_ASSIGN_OR_RETURN(whole.a.scale_inv, engine().ConcatenateRows(own, nullptr));
      QG_RETURN_IF_ERROR(engine().Copy(whole.a.scale_inv, gathered[1], 0));
      QG_RETURN_IF_ERROR(Multiply(whole, result));
    }
    if (faults_.Has(kFaultBufferPrecisionKept)) {
      const DType own = gathered[0].dtype();
      const DType kept = memories_.precision.try_emplace(call.name.buffer, own).first->second;
      if (kept != own) {
        QG_ASSIGN_OR_RETURN(whole.a.data, ReadAs(engine(), gathered[0], kept));
        QG_RETURN_IF_ERROR(Multiply(whole, result));
      }
    }
    if (faults_.Has(kFaultSlotKept)) {
      for (size_t i = 0; i < gathered.size(); ++i) {
        const int64_t rows = result.local[i].shape()[0];
        QG_ASSIGN_OR_RETURN(result.local[i], gathered[i].RowRange(group().rank() * rows, rows));
      }
    }
    if (faults_.Has(kFaultStaleViewRead)) {
      QG_RETURN_IF_ERROR(result.gathered.Release());
      result.gathered = BufferView(gathered);
    }
    return result;
  }

  absl::StatusOr<ScatteredGemm> ReduceScatterGemm(const ReduceScatterGemmCall& call) override {
    QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(call.gemm));
    const int64_t tail = shape.n % call.splits;
    const bool is_pipeline = call.method == OverlapMethod::kPipeline;
    if (!faults_.Has(kFaultPipelineTail) || !is_pipeline || tail == 0) {
      return overlap_->ReduceScatterGemm(call);
    }
    ReduceScatterGemmCall cut = call;
    QG_ASSIGN_OR_RETURN(cut.gemm.b.data, call.gemm.b.data.RowRange(0, shape.n - tail));
    QG_ASSIGN_OR_RETURN(ScatteredGemm result, overlap_->ReduceScatterGemm(cut));
    QG_ASSIGN_OR_RETURN(const Tensor zeros,
                        ZerosOn(engine(), result.y.dtype(), {result.y.shape()[0], tail}));
    const Tensor both[] = {result.y, zeros};
    QG_ASSIGN_OR_RETURN(result.y, engine().ConcatenateColumns(both, nullptr));
    return result;
  }

  absl::StatusOr<GatheredGemm> BulkAllGather(const BulkAllGatherCall& call) override {
    return overlap_->BulkAllGather(call);
  }

  absl::StatusOr<ScatteredGemm> BulkReduceScatter(const BulkReduceScatterCall& call) override {
    QG_ASSIGN_OR_RETURN(ScatteredGemm result, overlap_->BulkReduceScatter(call));
    if (!faults_.Has(kFaultGradientInBuffer)) return result;
    const auto buffer = buffers_.BufferFor(call.name.buffer, call.name.mode);
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> slots,
                        buffer->Fill(call.name.owner, {{result.y.dtype(), result.y.shape()}}));
    QG_RETURN_IF_ERROR(engine().Copy(result.y, slots[0], 0));
    result.y = slots[0];
    QG_RETURN_IF_ERROR(buffer->Start());
    QG_ASSIGN_OR_RETURN(BufferView view, buffer->Finish());
    QG_RETURN_IF_ERROR(view.Release());
    return result;
  }

 private:
  Engine& engine() const { return group().engine(); }

  absl::Status Multiply(const GemmDesc& whole, GatheredGemm& result) {
    QG_ASSIGN_OR_RETURN(const GemmResult product, engine().Gemm(whole, group().cancellation()));
    result.gemm.d = product.d;
    return absl::OkStatus();
  }

  /// The chunks of d as if they had come around the ring in the opposite order: place p gets chunk
  /// 2 * rank - p.
  absl::StatusOr<Tensor> FromTheOtherEnd(const Tensor& d) {
    const int size = group().size();
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> chunks,
                        RowBlocks(d, EvenRows(d.shape()[0], size)));
    std::vector<Tensor> turned;
    for (int place = 0; place < size; ++place) {
      turned.push_back(chunks[static_cast<size_t>((2 * group().rank() - place + 2 * size) % size)]);
    }
    return engine().ConcatenateRows(turned, nullptr);
  }

  /// The operand before any copy has arrived: the rank's own rows, and in place of the other rows
  /// what was gathered into the buffer before (zeros the first time).
  absl::StatusOr<Tensor> BeforeTheCopies(const std::string& buffer, const Tensor& own,
                                         const Tensor& gathered) {
    Tensor& last = memories_.last[buffer];
    if (!last.has_value() || last.dtype() != gathered.dtype() || last.shape() != gathered.shape()) {
      QG_ASSIGN_OR_RETURN(last, ZerosOn(engine(), gathered.dtype(), gathered.shape()));
    }
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> blocks,
                        RowBlocks(last, EvenRows(gathered.shape()[0], group().size())));
    blocks[static_cast<size_t>(group().rank())] = own;
    QG_ASSIGN_OR_RETURN(const Tensor before, engine().ConcatenateRows(blocks, nullptr));
    QG_ASSIGN_OR_RETURN(last, engine().ConcatenateRows({&gathered, 1}, nullptr));
    return before;
  }

  const SeededFaults& faults_;
  const std::unique_ptr<Overlap> overlap_;
  OverlapBuffers& buffers_;
  BufferMemories& memories_;
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

std::unique_ptr<Overlap> OverlapWith(const SeededFaults& faults, std::unique_ptr<Overlap> overlap,
                                     OverlapBuffers& buffers, BufferMemories& memories) {
  if (faults.empty()) return overlap;
  return std::make_unique<FaultyOverlap>(faults, std::move(overlap), buffers, memories);
}

}  // namespace quantgate
