#include "kernels/comm/overlap/overlap.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/overlap/overlap_member.h"
#include "kernels/comm/overlap/overlap_operands.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {
namespace {

std::string ShapeTextOf(const std::vector<Tensor>& tensors) {
  return absl::StrJoin(tensors, " ", [](std::string* out, const Tensor& tensor) {
    Shape columns = tensor.shape();
    columns[0] = -1;  // Rows may differ.
    absl::StrAppend(out, std::string(DTypeName(tensor.dtype())), "[*", ShapeText(columns).substr(2),
                    "]");
  });
}

/// Refuses a GEMM that cannot be cut by rows.
absl::Status CheckCutGemm(const GemmDesc& gemm) {
  if (gemm.c.has_value()) {
    return Refuse("gemm.c", TensorText(gemm.c), "an overlapped GEMM takes no c");
  }
  if (gemm.d.has_value()) {
    return Refuse("gemm.d", TensorText(gemm.d), "an overlapped GEMM allocates its own output");
  }
  if (!IsHighPrecision(gemm.out_dtype)) {
    return Refuse("gemm.out_dtype", std::string(DTypeName(gemm.out_dtype)),
                  "the output of an overlapped GEMM is f32, bf16 or f16");
  }
  if (gemm.layout == GemmLayout::kNT) {
    return Refuse("gemm.layout", "nt", "rows of the M side must be rows of a");
  }
  return absl::OkStatus();
}

absl::Status CheckGathered(std::string_view field, const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    if (!tensor.has_value() || tensor.rank() < 1) {
      return Refuse(field, TensorText(tensor), "gathered tensors must have a first dim");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOverlapRows(const std::vector<int64_t>& rows, int ranks, int64_t all) {
  int64_t sum = 0;
  for (const int64_t count : rows) sum += count;
  if (static_cast<int>(rows.size()) == ranks && sum == all) return absl::OkStatus();
  return Refuse(
      "rows", absl::StrJoin(rows, ", "),
      absl::StrCat("must be one count for each of ", ranks, " ranks, ", all, " together"));
}

}  // namespace

absl::Status CheckOverlapProfile(const ReductionProfile& profile) {
  if (profile.kind != ReductionKind::kNccl) return absl::OkStatus();
  return Refuse("profile", ReductionProfileName(profile),
                "an overlapped call sums the parts itself, in an order that the profile specifies");
}

absl::Status CheckOverlapProfile(OverlapMethod method, const ReductionProfile& profile) {
  if (method != OverlapMethod::kRingExchange) return CheckOverlapProfile(profile);
  if (profile == ReductionProfile{ReductionKind::kUbP2p}) return absl::OkStatus();
  return Refuse("profile", ReductionProfileName(profile),
                "a ring_exchange reduce-scatter sums in the order of ub_p2p");
}

absl::Status CheckReduceScatterGemm(const ReduceScatterGemmCall& call, int ranks) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(call.gemm));
  QG_RETURN_IF_ERROR(CheckCutGemm(call.gemm));
  if (call.gemm.bias.has_value()) {
    return Refuse("gemm.bias", TensorText(call.gemm.bias),
                  "every rank would add it to its partial; add it after the reduce-scatter");
  }
  QG_RETURN_IF_ERROR(CheckOverlapRows(call.rows, ranks, shape.m));
  switch (call.method) {
    case OverlapMethod::kNone:
      return absl::OkStatus();
    case OverlapMethod::kRingExchange:
      QG_RETURN_IF_ERROR(CheckOverlapProfile(call.method, call.profile));
      if (call.pieces < 1) return Refuse("pieces", absl::StrCat(call.pieces), "must be at least 1");
      return CheckOverlapShards("gemm.a", call.gemm.a, call.rows);
    case OverlapMethod::kPipeline: {
      if (call.splits < 1) return Refuse("splits", absl::StrCat(call.splits), "must be at least 1");
      const int64_t multiple = OverlapMultipleOf(call.gemm.b) * call.splits;
      if (shape.n % multiple != 0) {
        return Refuse("splits", absl::StrCat(call.splits),
                      absl::StrCat("it must divide the ", shape.n, " columns of the output",
                                   multiple == call.splits ? "" : " in multiples of 128"));
      }
      QG_RETURN_IF_ERROR(CheckOverlapProfile(call.method, call.profile));
      return CheckOverlapOperand("gemm.b", call.gemm.b);
    }
    default:
      return Refuse("method", std::string(OverlapMethodName(call.method)),
                    "a GEMM and its reduce-scatter take ring_exchange, pipeline or none");
  }
}

namespace {

/// Poisons the group with an error, since the other members wait.
template <typename Result>
absl::StatusOr<Result> Poisoning(ProcessGroup& group, absl::StatusOr<Result> result) {
  if (!result.ok()) return group.Fail(result.status());
  return result;
}

/// The arithmetic and the joined notes of all chunks, without an output.
GemmResult Summary(const std::vector<GemmResult>& gemms) {
  GemmResult whole;
  std::vector<std::string> notes;
  for (const GemmResult& gemm : gemms) {
    whole.arithmetic = gemm.arithmetic;
    if (gemm.note.empty() || std::find(notes.begin(), notes.end(), gemm.note) != notes.end()) {
      continue;
    }
    notes.push_back(gemm.note);
  }
  whole.note = absl::StrJoin(notes, "; ");
  return whole;
}

/// The member's sums of blocks of columns, joined side by side.
absl::StatusOr<Tensor> JoinColumns(const OverlapMember& member) {
  if (member.sums.size() == 1) return member.sums.front();
  return member.engine().ConcatenateColumns(member.sums, member.cancellation);
}

/// The timeline of what an engine did one after the other; records nothing where times are not
/// kept.
class Section {
 public:
  static absl::StatusOr<Section> Begin(Engine& engine, bool keeps_times) {
    Section section(engine);
    if (!keeps_times) return section;
    QG_ASSIGN_OR_RETURN(section.last_, engine.MarkTime());
    section.first_ = section.last_;
    return section;
  }
  /// Records everything since the last End, or since Begin, as one task.
  absl::Status End(std::string name, OverlapResource resource) {
    if (first_ == nullptr) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(std::shared_ptr<const TimePoint> now, engine_.MarkTime());
    TaskRecord record{std::move(name), resource};
    QG_ASSIGN_OR_RETURN(record.begin_s, last_->SecondsSince(*first_));
    QG_ASSIGN_OR_RETURN(record.end_s, now->SecondsSince(*first_));
    timeline_.tasks.push_back(std::move(record));
    last_ = std::move(now);
    return absl::OkStatus();
  }
  OverlapTimeline timeline() const { return timeline_; }

 private:
  explicit Section(Engine& engine) : engine_(engine) {}
  Engine& engine_;
  std::shared_ptr<const TimePoint> first_, last_;
  OverlapTimeline timeline_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Overlap>> Overlap::Create(ProcessGroup& group,
                                                         OverlapBuffers& buffers,
                                                         OverlapOptions options) {
  std::unique_ptr<Overlap> overlap(new Overlap(group, buffers, options));
  for (int i = 1; i < kOverlapQueues; ++i) {
    // A sum is short and the call may end with it; another GEMM can wait for it.
    const bool is_urgent = i == static_cast<int>(OverlapQueue::kReduce);
    QG_ASSIGN_OR_RETURN(
        std::unique_ptr<Engine> queue,
        group.engine().OpenLane(is_urgent ? LanePriority::kUrgent : LanePriority::kNormal));
    overlap->queues_.push_back(std::move(queue));
  }
  return overlap;
}

absl::StatusOr<std::shared_ptr<OverlapMember>> Overlap::NewMember(const OverlapName& name,
                                                                  const GemmDesc& gemm) {
  auto member = std::make_shared<OverlapMember>();
  member->lanes[0] = &group_.engine();
  for (size_t i = 0; i < queues_.size(); ++i) member->lanes[i + 1] = queues_[i].get();
  member->owner = name.owner;
  member->buffer = buffers_.BufferFor(name.buffer, name.mode);
  member->cancellation = group_.cancellation();
  // Chunks read them many times.
  QG_ASSIGN_OR_RETURN(member->gemm, WithTensors(gemm, [&](const Tensor& tensor) {
                        return group_.engine().ToDevice(tensor, member->cancellation);
                      }));
  return member;
}

absl::StatusOr<OverlapTimeline> Overlap::RunTogether(const std::string& what, const OverlapCut& cut,
                                                     std::shared_ptr<OverlapMember> member,
                                                     Build build) {
  QG_ASSIGN_OR_RETURN(
      const std::vector<std::shared_ptr<void>> offers,
      group_.Exchange(absl::StrCat(what, options_.keeps_timelines ? ", timed" : ""), member));
  OverlapMembers members;
  for (const auto& offer : offers) {
    members.push_back(std::static_pointer_cast<OverlapMember>(offer));
  }
  QG_ASSIGN_OR_RETURN(
      const std::shared_ptr<OverlapRun> run,
      members[0]->run.Get(group_.deadline(), [&]() -> absl::StatusOr<std::shared_ptr<OverlapRun>> {
        QG_ASSIGN_OR_RETURN(TaskGraph graph, build(members, cut));
        return NewRun(std::move(graph), members);
      }));
  QG_RETURN_IF_ERROR(run->RunRank(group_.rank(), member->cancellation));
  if (!options_.keeps_timelines) return OverlapTimeline();
  return run->TimelineOf(group_.rank());
}

std::shared_ptr<OverlapRun> Overlap::NewRun(TaskGraph graph, const OverlapMembers& members) const {
  OverlapRunOptions options{.queues_work = members[0]->gemm.b.data.space() == MemorySpace::kDevice,
                            .keeps_times = options_.keeps_timelines,
                            .deadline = group_.deadline(),
                            .noise = group_.noise()};
  std::vector<OverlapLanes> lanes;
  for (const auto& each : members) {
    lanes.push_back(each->lanes);
    options.before_copies.push_back(each->before_copies);
  }
  return std::make_shared<OverlapRun>(std::move(graph), std::move(lanes), std::move(options));
}

absl::StatusOr<GatheredGemm> Overlap::AllGatherGemm(const AllGatherGemmCall& call) {
  return Poisoning(group_, TryAllGatherGemm(call));
}

absl::StatusOr<GatheredGemm> Overlap::TryAllGatherGemm(const AllGatherGemmCall& call) {
  QG_RETURN_IF_ERROR(CheckGemm(call.gemm).status());
  QG_RETURN_IF_ERROR(CheckCutGemm(call.gemm));
  QG_RETURN_IF_ERROR(CheckGathered("beside", call.beside));
  QG_RETURN_IF_ERROR(CheckOverlapOperand("gemm.a", call.gemm.a));
  if (call.method == OverlapMethod::kNone) return GatherThenMultiply(call);
  if (call.method != OverlapMethod::kRingExchange) {
    return Refuse("method", std::string(OverlapMethodName(call.method)),
                  "an all-gather and its GEMM take ring_exchange or none");
  }
  if (call.pieces < 1) return Refuse("pieces", absl::StrCat(call.pieces), "must be at least 1");
  QG_RETURN_IF_ERROR(CheckAggregate(call.aggregate, call.pieces, group_.size()));

  QG_ASSIGN_OR_RETURN(std::shared_ptr<OverlapMember> member, NewMember(call.name, call.gemm));
  QG_RETURN_IF_ERROR(AgreeOnScale(*member));
  member->shard = RowParts(member->gemm.a);
  member->operand_parts = member->shard.size();
  for (const Tensor& tensor : call.beside) {
    QG_ASSIGN_OR_RETURN(member->shard.emplace_back(),
                        group_.engine().ToDevice(tensor, member->cancellation));
  }
  OverlapCut cut;
  cut.aggregate = call.aggregate;
  cut.pieces = call.pieces;
  cut.row_multiple = OverlapMultipleOf(call.gemm.a);
  const std::string what =
      absl::StrCat("ring_exchange all-gather gemm ", ShapeTextOf(member->shard), " pieces ",
                   call.pieces, call.aggregate ? " aggregate" : "");
  GatheredGemm result;
  QG_ASSIGN_OR_RETURN(result.timeline, RunTogether(what, cut, member, BuildRingAllGatherGemm));
  result.gemm = Summary(member->gemms);
  result.gemm.d = member->d;
  QG_ASSIGN_OR_RETURN(result.gathered, member->buffer->Finish());
  result.local = member->shard;
  return result;
}

// Members agree before any copy. Reading a scale from a GPU makes the host wait, so there they
// agree while the GPU multiplies the rank's own shard.
absl::Status Overlap::AgreeOnScale(OverlapMember& member) {
  if (member.gemm.a.scaling != ScaleMode::kTensor) return absl::OkStatus();
  const Tensor& scale_inv = member.gemm.a.scale_inv;
  const std::string what = absl::StrCat(member.owner, " scale_inv");
  if (scale_inv.space() == MemorySpace::kHost) return group_.CheckAgreement(what, scale_inv);
  QG_ASSIGN_OR_RETURN(Engine::HostRead read, group_.engine().StartToHost(scale_inv));
  QG_ASSIGN_OR_RETURN(Tensor on_host, Tensor::Allocate(scale_inv.dtype(), scale_inv.shape()));
  member.before_copies = [this, what, read = std::move(read),
                          on_host = std::move(on_host)](const absl::Status& so_far) mutable {
    const absl::Status done = so_far.ok() ? read({on_host.data(), on_host.byte_size()}) : so_far;
    return done.ok() ? group_.CheckAgreement(what, on_host) : group_.Fail(done);
  };
  return absl::OkStatus();
}

absl::StatusOr<GatheredGemm> Overlap::GatherThenMultiply(const AllGatherGemmCall& call) {
  Engine& engine = group_.engine();
  if (call.gemm.a.scaling == ScaleMode::kTensor) {
    QG_RETURN_IF_ERROR(
        group_.CheckAgreement(absl::StrCat(call.name.owner, " scale_inv"), call.gemm.a.scale_inv));
  }
  QG_ASSIGN_OR_RETURN(Section section, Section::Begin(engine, options_.keeps_timelines));
  GatheredGemm result;
  result.local = RowParts(call.gemm.a);
  const size_t operand_parts = result.local.size();
  result.local.insert(result.local.end(), call.beside.begin(), call.beside.end());
  std::vector<Tensor> gathered;
  for (const Tensor& part : result.local) {
    QG_ASSIGN_OR_RETURN(gathered.emplace_back(), group_.AllGather(part));
  }
  QG_RETURN_IF_ERROR(section.End("all-gather", OverlapResource::kReceive));
  GemmDesc whole = call.gemm;
  whole.a = WithRowParts(whole.a, {gathered.begin(), gathered.begin() + operand_parts});
  QG_ASSIGN_OR_RETURN(result.gemm, engine.Gemm(whole, group_.cancellation()));
  QG_RETURN_IF_ERROR(section.End("gemm", OverlapResource::kCompute));
  result.gathered = BufferView(std::move(gathered));
  result.timeline = section.timeline();
  return result;
}

absl::StatusOr<ScatteredGemm> Overlap::ReduceScatterGemm(const ReduceScatterGemmCall& call) {
  return Poisoning(group_, TryReduceScatterGemm(call));
}

absl::StatusOr<ScatteredGemm> Overlap::TryReduceScatterGemm(const ReduceScatterGemmCall& call) {
  QG_RETURN_IF_ERROR(CheckReduceScatterGemm(call, group_.size()));
  if (call.method == OverlapMethod::kNone) return MultiplyThenReduce(call);
  const bool is_pipeline = call.method == OverlapMethod::kPipeline;
  QG_ASSIGN_OR_RETURN(std::shared_ptr<OverlapMember> member, NewMember(call.name, call.gemm));
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(call.gemm));
  OverlapCut cut;
  cut.pieces = is_pipeline ? 1 : call.pieces;
  cut.splits = is_pipeline ? call.splits : 1;
  cut.row_multiple = OverlapMultipleOf(call.gemm.a);
  cut.rows = call.rows;
  cut.profile = call.profile;
  const std::string what = absl::StrCat(
      std::string(OverlapMethodName(call.method)), " gemm reduce-scatter ",
      std::string(DTypeName(call.gemm.out_dtype)), "[", shape.m, "x", shape.n, "] rows ",
      absl::StrJoin(call.rows, ", "), " (", ReductionProfileName(call.profile), ") pieces ",
      cut.pieces, " splits ", cut.splits);
  ScatteredGemm result;
  QG_ASSIGN_OR_RETURN(result.timeline,
                      RunTogether(what, cut, member,
                                  is_pipeline ? BuildPipelinedReduceScatterGemm
                                              : BuildPointToPointReduceScatterGemm));
  result.gemm = Summary(member->gemms);
  result.partials = member->partials;
  result.y = member->y;
  if (!result.y.has_value()) {
    QG_ASSIGN_OR_RETURN(result.y, JoinColumns(*member));
  }
  QG_ASSIGN_OR_RETURN(BufferView used, member->buffer->Finish());
  QG_RETURN_IF_ERROR(used.Release());
  return result;
}

absl::StatusOr<ScatteredGemm> Overlap::MultiplyThenReduce(const ReduceScatterGemmCall& call) {
  QG_ASSIGN_OR_RETURN(Section section, Section::Begin(group_.engine(), options_.keeps_timelines));
  ScatteredGemm result;
  QG_ASSIGN_OR_RETURN(result.gemm, group_.engine().Gemm(call.gemm, group_.cancellation()));
  QG_RETURN_IF_ERROR(section.End("gemm", OverlapResource::kCompute));
  QG_ASSIGN_OR_RETURN(result.y, group_.ReduceScatter(result.gemm.d, call.rows, call.profile));
  QG_RETURN_IF_ERROR(section.End("reduce-scatter", OverlapResource::kReduce));
  result.partials = {std::exchange(result.gemm.d, Tensor())};
  result.timeline = section.timeline();
  return result;
}

absl::StatusOr<GatheredGemm> Overlap::BulkAllGather(const BulkAllGatherCall& call) {
  return Poisoning(group_, TryBulkAllGather(call));
}

absl::StatusOr<GatheredGemm> Overlap::TryBulkAllGather(const BulkAllGatherCall& call) {
  QG_RETURN_IF_ERROR(CheckGemm(call.gemm).status());
  QG_RETURN_IF_ERROR(CheckGathered("shard", call.shard));
  QG_ASSIGN_OR_RETURN(std::shared_ptr<OverlapMember> member, NewMember(call.name, call.gemm));
  for (const Tensor& tensor : call.shard) {
    QG_ASSIGN_OR_RETURN(member->shard.emplace_back(),
                        group_.engine().ToDevice(tensor, member->cancellation));
  }
  GatheredGemm result;
  QG_ASSIGN_OR_RETURN(result.timeline,
                      RunTogether(absl::StrCat("bulk all-gather ", ShapeTextOf(member->shard)), {},
                                  member, BuildBulkAllGather));
  result.gemm = member->gemms.front();
  QG_ASSIGN_OR_RETURN(result.gathered, member->buffer->Finish());
  result.local = member->shard;
  return result;
}

absl::StatusOr<ScatteredGemm> Overlap::BulkReduceScatter(const BulkReduceScatterCall& call) {
  return Poisoning(group_, TryBulkReduceScatter(call));
}

absl::StatusOr<ScatteredGemm> Overlap::TryBulkReduceScatter(const BulkReduceScatterCall& call) {
  QG_RETURN_IF_ERROR(CheckGemm(call.gemm).status());
  if (!call.partial.has_value() || call.partial.rank() != 2 ||
      !IsHighPrecision(call.partial.dtype())) {
    return Refuse("partial", TensorText(call.partial), "must be f32, bf16 or f16 [rows][columns]");
  }
  QG_RETURN_IF_ERROR(CheckOverlapRows(call.rows, group_.size(), call.partial.shape()[0]));
  QG_RETURN_IF_ERROR(CheckOverlapProfile(call.profile));
  QG_ASSIGN_OR_RETURN(std::shared_ptr<OverlapMember> member, NewMember(call.name, call.gemm));
  QG_ASSIGN_OR_RETURN(member->partial,
                      group_.engine().ToDevice(call.partial, member->cancellation));
  OverlapCut cut;
  cut.rows = call.rows;
  cut.profile = call.profile;
  const std::string what =
      absl::StrCat("bulk reduce-scatter ", TensorText(call.partial), " rows ",
                   absl::StrJoin(call.rows, ", "), " (", ReductionProfileName(call.profile), ")");
  ScatteredGemm result;
  QG_ASSIGN_OR_RETURN(result.timeline, RunTogether(what, cut, member, BuildBulkReduceScatter));
  result.gemm = member->gemms.front();
  result.y = member->sums.front();
  QG_ASSIGN_OR_RETURN(BufferView used, member->buffer->Finish());
  QG_RETURN_IF_ERROR(used.Release());
  return result;
}

}  // namespace quantgate
