#include "kernels/comm/group/comm_statistics.h"

namespace quantgate {

std::string_view CommFailureName(CommFailure failure) {
  static constexpr std::string_view kNames[kCommFailures] = {"mismatch", "deadline", "cancelled",
                                                             "transport", "rank"};
  return kNames[static_cast<size_t>(failure)];
}

CommFailure CommFailureOf(const absl::Status& status, bool is_group_error) {
  if (absl::IsDeadlineExceeded(status)) return CommFailure::kDeadline;
  if (absl::IsCancelled(status)) return CommFailure::kCancelled;
  if (!is_group_error) return CommFailure::kRank;
  return absl::IsFailedPrecondition(status) ? CommFailure::kMismatch : CommFailure::kTransport;
}

std::string_view CommunicatorEventName(CommunicatorEvent event) {
  static constexpr std::string_view kNames[kCommunicatorEvents] = {"made", "leased", "closed",
                                                                   "aborted"};
  return kNames[static_cast<size_t>(event)];
}

void CommStatistics::RecordCall(CollectiveBackend backend, CallKind kind, bool is_first,
                                int64_t bytes, absl::Duration waited) {
  const std::scoped_lock lock(mutex_);
  Totals::Calls& calls = Of(backend).calls[static_cast<size_t>(kind)];
  calls.count += is_first ? 1 : 0;
  calls.bytes += bytes;
  calls.wait_seconds += absl::ToDoubleSeconds(waited);
}

void CommStatistics::RecordRun(CollectiveBackend backend, const absl::Status& status,
                               bool is_group_error) {
  const std::scoped_lock lock(mutex_);
  Totals& totals = Of(backend);
  ++totals.runs;
  if (!status.ok()) ++totals.failures[static_cast<size_t>(CommFailureOf(status, is_group_error))];
}

void CommStatistics::RecordStuckRanks(CollectiveBackend backend, int count) {
  const std::scoped_lock lock(mutex_);
  Of(backend).stuck_ranks += count;
}

void CommStatistics::RecordCommunicators(CommunicatorEvent event, int count) {
  const std::scoped_lock lock(mutex_);
  communicators_[static_cast<size_t>(event)] += count;
}

std::array<int64_t, kCommunicatorEvents> CommStatistics::ReadCommunicators() const {
  const std::scoped_lock lock(mutex_);
  return communicators_;
}

CommStatistics::Totals CommStatistics::Read(CollectiveBackend backend) const {
  const std::scoped_lock lock(mutex_);
  return totals_[static_cast<size_t>(backend)];
}

}  // namespace quantgate
