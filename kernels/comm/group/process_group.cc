#include "kernels/comm/group/process_group.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/comm/row_blocks.h"

namespace quantgate {
namespace {

/// Up to this size every member takes a sum by itself where the order does not depend on the owner:
/// one meeting instead of two, for up to 8 times the additions.
constexpr size_t kSmallSumBytes = size_t{1} << 14;

CallSignature SignatureOf(CallKind kind, const Tensor& tensor) {
  CallSignature signature{.kind = kind};
  if (!tensor.has_value()) return signature;
  signature.has_tensor = true;
  signature.dtype = tensor.dtype();
  signature.shape = tensor.shape();
  return signature;
}

absl::Status CheckHasRows(std::string_view field, const Tensor& tensor) {
  if (tensor.has_value() && tensor.rank() > 0) return absl::OkStatus();
  return Refuse(field, TensorText(tensor), "must have a first dim");
}

absl::Status CheckSummable(std::string_view field, const Tensor& tensor) {
  QG_RETURN_IF_ERROR(CheckHasRows(field, tensor));
  if (IsHighPrecision(tensor.dtype())) return absl::OkStatus();
  return Refuse(field, TensorText(tensor), "summed tensors must be f32, bf16 or f16");
}

int64_t ContributedBytes(const Contribution& contribution) {
  size_t bytes = 0;
  for (const Tensor& tensor : contribution.tensors) bytes += tensor.byte_size();
  return static_cast<int64_t>(bytes);
}

/// The shape of the parts when joined along the first dim.
Shape JoinedShape(const AgreedCall& call) {
  Shape shape = call.tensor(0).shape();
  shape[0] = 0;
  for (int member = 0; member < call.group.size(); ++member) {
    shape[0] += call.tensor(member).shape()[0];
  }
  return shape;
}

/// The place of the first element whose bytes differ; both are of one dtype and shape.
int64_t FirstDifferingElement(const Tensor& a, const Tensor& b) {
  const size_t bytes = static_cast<size_t>(DTypeBytes(a.dtype()));
  for (int64_t i = 0; i < a.element_count(); ++i) {
    if (std::memcmp(a.data() + i * bytes, b.data() + i * bytes, bytes) != 0) return i;
  }
  return -1;
}

/// "0x3f800000 (1)"; bytes of other types than f32 in hex alone.
std::string ElementText(const Tensor& tensor, int64_t index) {
  const int bytes = DTypeBytes(tensor.dtype());
  std::string hex = "0x";
  for (int i = bytes - 1; i >= 0; --i) {
    absl::StrAppend(
        &hex, absl::Hex(static_cast<uint8_t>(tensor.data()[index * bytes + i]), absl::kZeroPad2));
  }
  if (tensor.dtype() != DType::kF32) return hex;
  return absl::StrCat(hex, " (", tensor.as<float>()[index], ")");
}

absl::Status Difference(const std::string& what, const std::pair<int, std::string>& first,
                        const std::pair<int, std::string>& other, const std::string& where) {
  return absl::FailedPreconditionError(absl::StrCat(what, " differs between ranks", where,
                                                    ": rank ", first.first, " has ", first.second,
                                                    ", rank ", other.first, " has ", other.second));
}

}  // namespace

ProcessGroup::ProcessGroup(const GroupEnvironment& environment, GroupDescription description,
                           int place, Engine& engine)
    : environment_(environment),
      description_(std::move(description)),
      place_(place),
      engine_(engine) {}

absl::StatusOr<Postings> ProcessGroup::Meet(CallSignature signature, std::vector<Tensor> tensors) {
  QG_ASSIGN_OR_RETURN(Contribution contribution,
                      environment_.transport.Contribute(engine_, std::move(tensors)));
  return Meet({std::move(signature), std::move(contribution)});
}

absl::StatusOr<Postings> ProcessGroup::Meet(Posting posting) {
  const uint64_t call = calls_++;
  const int rank = members()[place_];
  Delay(environment_.noise, rank, call, NoisePoint::kBeforePosting);
  const CallKind kind = posting.signature.kind;
  const int64_t bytes = ContributedBytes(posting.contribution);
  const absl::Time begin = SteadyNow();
  auto postings = environment_.transport.Meet(environment_.rendezvous, description_.id, place_,
                                              std::move(posting));
  if (environment_.statistics != nullptr && postings.ok()) {
    environment_.statistics->RecordCall(environment_.backend, kind, place_ == 0, bytes,
                                        SteadyNow() - begin);
  }
  Delay(environment_.noise, rank, call, NoisePoint::kBeforeReading);
  return postings;
}

AgreedCall ProcessGroup::Agreed(const std::vector<Posting>& postings) {
  return {description_, postings, place_, engine_, environment_.cancellation};
}

absl::Status ProcessGroup::Fail(const absl::Status& error) {
  const absl::Status poison = environment_.rendezvous.Fail(description_.id, place_, error);
  environment_.transport.Abort(description_, poison);
  return poison;
}

absl::StatusOr<Tensor> ProcessGroup::Poisoning(absl::FunctionRef<absl::StatusOr<Tensor>()> call) {
  absl::StatusOr<Tensor> result = call();
  if (!result.ok()) return Fail(result.status());
  return result;
}

absl::StatusOr<std::vector<Tensor>> ProcessGroup::PoisoningParts(
    absl::FunctionRef<absl::StatusOr<std::vector<Tensor>>()> call) {
  absl::StatusOr<std::vector<Tensor>> result = call();
  if (!result.ok()) return Fail(result.status());
  return result;
}

absl::StatusOr<Tensor> ProcessGroup::Joined(const AgreedCall& call) {
  if (size() == 1) return call.tensor(0);
  QG_ASSIGN_OR_RETURN(Tensor whole, engine_.Allocate(call.tensor(0).dtype(), JoinedShape(call)));
  QG_RETURN_IF_ERROR(environment_.transport.AllGather(call, whole));
  return whole;
}

absl::StatusOr<Tensor> ProcessGroup::AllGather(const Tensor& local) {
  return Poisoning([&]() -> absl::StatusOr<Tensor> {
    QG_RETURN_IF_ERROR(CheckHasRows("all_gather.tensor", local));
    CallSignature signature = SignatureOf(CallKind::kAllGather, local);
    signature.rows_are_free = true;
    QG_ASSIGN_OR_RETURN(const Postings postings, Meet(std::move(signature), {local}));
    return Joined(Agreed(*postings));
  });
}

absl::StatusOr<std::vector<Tensor>> ProcessGroup::AllGatherParts(const Tensor& local) {
  return PoisoningParts([&]() -> absl::StatusOr<std::vector<Tensor>> {
    QG_RETURN_IF_ERROR(CheckHasRows("all_gather_parts.tensor", local));
    CallSignature signature = SignatureOf(CallKind::kAllGatherParts, local);
    signature.rows_are_free = true;
    QG_ASSIGN_OR_RETURN(const Postings postings, Meet(std::move(signature), {local}));
    return environment_.transport.AllGatherParts(Agreed(*postings));
  });
}

absl::StatusOr<std::vector<Tensor>> ProcessGroup::AllToAll(std::span<const Tensor> parts) {
  return PoisoningParts([&]() -> absl::StatusOr<std::vector<Tensor>> {
    if (static_cast<int>(parts.size()) != size()) {
      return Refuse("all_to_all.parts", absl::StrCat("of ", parts.size()),
                    absl::StrCat("there must be one for each of ", size(), " members"));
    }
    CallSignature signature = SignatureOf(CallKind::kAllToAll, parts[0]);
    signature.rows_are_free = true;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Tensor& part = parts[i];
      const std::string field = absl::StrCat("all_to_all.parts[", i, "]");
      QG_RETURN_IF_ERROR(CheckHasRows(field, part));
      CallSignature same = SignatureOf(CallKind::kAllToAll, part);
      same.rows_are_free = true;
      if (!IsSameCall(signature, same)) {
        return Refuse(field, TensorText(part),
                      absl::StrCat("dtype and all dims but the first must be those of parts[0], ",
                                   TensorText(parts[0])));
      }
    }
    signature.shape[0] = 0;  // The parts' rows differ.
    QG_ASSIGN_OR_RETURN(const Postings postings,
                        Meet(std::move(signature), {parts.begin(), parts.end()}));
    return environment_.transport.AllToAll(Agreed(*postings));
  });
}

absl::StatusOr<Tensor> ProcessGroup::OrderedSumOf(std::span<const Tensor> parts,
                                                  const ReductionProfile& profile) {
  QG_ASSIGN_OR_RETURN(const ReductionOrder order, OrderOf(profile, place_, size()));
  std::vector<Tensor> ordered;
  for (const int member : order.ranks) ordered.push_back(parts[member]);
  return engine_.OrderedSum(ordered, order.accumulation, parts[0].dtype(),
                            environment_.cancellation);
}

absl::StatusOr<Tensor> ProcessGroup::SumOfBlock(const AgreedCall& call,
                                                const ReductionProfile& profile) {
  if (profile.kind == ReductionKind::kNccl) {
    return environment_.transport.LibraryReduceScatter(call);
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts, environment_.transport.AllToAll(call));
  return OrderedSumOf(parts, profile);
}

absl::StatusOr<Tensor> ProcessGroup::ReduceScatter(const Tensor& partial,
                                                   std::span<const int64_t> rows,
                                                   const ReductionProfile& profile) {
  return Poisoning([&]() -> absl::StatusOr<Tensor> {
    QG_RETURN_IF_ERROR(CheckSummable("reduce_scatter.tensor", partial));
    if (static_cast<int>(rows.size()) != size()) {
      return Refuse("reduce_scatter.rows", absl::StrCat("of ", rows.size(), " owners"),
                    absl::StrCat("there must be one count for each of ", size(), " members"));
    }
    CallSignature signature = SignatureOf(CallKind::kReduceScatter, partial);
    signature.rows.assign(rows.begin(), rows.end());
    signature.detail = ReductionProfileName(profile);
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> blocks, RowBlocks(partial, rows));
    QG_ASSIGN_OR_RETURN(const Postings postings, Meet(std::move(signature), std::move(blocks)));
    return SumOfBlock(Agreed(*postings), profile);
  });
}

absl::StatusOr<Tensor> ProcessGroup::AllReduceByBlocks(const CallSignature& signature,
                                                       const Tensor& partial,
                                                       const ReductionProfile& profile) {
  QG_ASSIGN_OR_RETURN(std::vector<Tensor> blocks,
                      RowBlocks(partial, EvenRows(partial.shape()[0], size())));
  QG_ASSIGN_OR_RETURN(const Postings partials, Meet(signature, std::move(blocks)));
  QG_ASSIGN_OR_RETURN(const Tensor block, SumOfBlock(Agreed(*partials), profile));
  QG_ASSIGN_OR_RETURN(const Postings sums, Meet(signature, {block}));
  return Joined(Agreed(*sums));
}

absl::StatusOr<Tensor> ProcessGroup::AllReduce(const Tensor& partial,
                                               const ReductionProfile& profile) {
  return Poisoning([&]() -> absl::StatusOr<Tensor> {
    QG_RETURN_IF_ERROR(CheckSummable("all_reduce.tensor", partial));
    CallSignature signature = SignatureOf(CallKind::kAllReduce, partial);
    signature.detail = ReductionProfileName(profile);
    const bool is_librarys = profile.kind == ReductionKind::kNccl;
    const bool is_small = partial.byte_size() <= kSmallSumBytes && IsOwnerIndependent(profile);
    if (!is_librarys && !is_small) return AllReduceByBlocks(signature, partial, profile);
    QG_ASSIGN_OR_RETURN(const Postings postings, Meet(std::move(signature), {partial}));
    const AgreedCall call = Agreed(*postings);
    if (is_librarys) return environment_.transport.LibrarySum(call);
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts,
                        environment_.transport.AllGatherParts(call));
    return OrderedSumOf(parts, profile);
  });
}

absl::StatusOr<Tensor> ProcessGroup::AllReduceMax(const Tensor& values) {
  return Poisoning([&]() -> absl::StatusOr<Tensor> {
    if (!values.has_value() || values.dtype() != DType::kF32) {
      return Refuse("all_reduce_max.tensor", TensorText(values), "must be f32");
    }
    QG_ASSIGN_OR_RETURN(const Postings postings,
                        Meet(SignatureOf(CallKind::kAllReduceMax, values), {values}));
    return environment_.transport.Maximum(Agreed(*postings));
  });
}

absl::Status ProcessGroup::Barrier() {
  const absl::StatusOr<Postings> postings = Meet({.kind = CallKind::kBarrier}, {});
  return postings.ok() ? absl::OkStatus() : Fail(postings.status());
}

absl::StatusOr<std::vector<std::shared_ptr<void>>> ProcessGroup::Exchange(
    const std::string& what, std::shared_ptr<void> offer) {
  Posting posting{{.kind = CallKind::kExchange, .detail = what}, {}};
  posting.contribution.offer = std::move(offer);
  QG_ASSIGN_OR_RETURN(const Postings postings, Meet(std::move(posting)));
  std::vector<std::shared_ptr<void>> offers;
  for (const Posting& each : *postings) offers.push_back(each.contribution.offer);
  return offers;
}

absl::Status ProcessGroup::CheckAgreement(const std::string& what, const Tensor& value) {
  const auto check = [&]() -> absl::Status {
    if (!value.has_value()) {
      return RefuseAbsent(what, "there is no value to agree on");
    }
    QG_ASSIGN_OR_RETURN(const Tensor on_host, engine_.ToHost(value, environment_.cancellation));
    CallSignature signature{.kind = CallKind::kCheckAgreement, .detail = what};
    Delay(environment_.noise, members()[place_], calls_++, NoisePoint::kBeforePosting);
    QG_ASSIGN_OR_RETURN(
        const Postings postings,
        environment_.transport.Meet(environment_.rendezvous, description_.id, place_,
                                    {std::move(signature), {{on_host}, nullptr}}));
    const Tensor& first = postings->front().contribution.tensors.front();
    for (int member = 1; member < size(); ++member) {
      const Tensor& other = (*postings)[member].contribution.tensors.front();
      if (first.dtype() != other.dtype() || first.shape() != other.shape()) {
        return Difference(what, {members()[0], TensorText(first)},
                          {members()[member], TensorText(other)}, "");
      }
      const int64_t at = FirstDifferingElement(first, other);
      if (at < 0) continue;
      return Difference(what, {members()[0], ElementText(first, at)},
                        {members()[member], ElementText(other, at)},
                        first.element_count() == 1 ? "" : absl::StrCat(" at ", at));
    }
    return absl::OkStatus();
  };
  const absl::Status status = check();
  return status.ok() ? status : Fail(status);
}

}  // namespace quantgate
