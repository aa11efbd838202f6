#include "server/store/run_store.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/store/schema.h"

namespace quantgate {
namespace {

constexpr char kRunColumns[] =
    "id, run_id, request_id, state, created, finished, last_sequence, status_code, "
    "status_message, summary, unverified";

/// Events of at least so many bytes are in side files. Smaller ones are not, since creating a file
/// takes longer than writing a few pages.
constexpr size_t kSideFileBytesMin = 64 << 10;
/// The same bound where the run's side file is open already.
constexpr size_t kOpenSideFileBytesMin = 4 << 10;

/// Request ids that are kept beyond twice the number of runs, before they are read anew.
constexpr int64_t kRequestIdsMin = 1024;

RunRecord ReadRun(const Statement& row) {
  RunRecord record;
  record.id = row.Integer(0);
  record.run_id = row.Text(1);
  record.request_id = row.Text(2);
  record.state = static_cast<RunState>(row.Integer(3));
  record.created = absl::FromUnixMicros(row.Integer(4));
  if (!row.IsNull(5)) record.finished = absl::FromUnixMicros(row.Integer(5));
  record.last_sequence = row.Integer(6);
  record.status = absl::Status(static_cast<absl::StatusCode>(row.Integer(7)), row.Text(8));
  record.summary = row.Text(9);
  record.is_unverified = row.Integer(10) != 0;
  return record;
}

}  // namespace

std::string RunStore::NewRunId() {
  // One for each thread, since seeding it asks the system for entropy.
  thread_local absl::BitGen random;
  return absl::StrFormat("run-%016x%016x", absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint64_t>(random));
}

absl::StatusOr<bool> RunStore::MayHaveRequest(const std::string& request_id) {
  if (request_id.empty()) return false;
  const std::lock_guard lock(database_.mutex());
  if (!request_ids_.has_value()) QG_RETURN_IF_ERROR(ReadRequestIds());
  return request_ids_->contains(absl::HashOf(request_id));
}

absl::Status RunStore::ReadRequestIds() {
  QG_ASSIGN_OR_RETURN(
      Statement rows,
      database_.Prepare("SELECT request_id FROM runs WHERE request_id IS NOT NULL"));
  absl::flat_hash_set<size_t> ids;
  while (true) {
    QG_ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) break;
    ids.insert(absl::HashOf(rows.Text(0)));
  }
  request_ids_ = std::move(ids);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RunRecord>> RunStore::FindRequest(const std::string& request_id,
                                                               const Sha256& content) {
  if (request_id.empty()) return std::nullopt;
  RunRecord record;
  {
    const std::lock_guard lock(database_.mutex());
    QG_ASSIGN_OR_RETURN(
        Statement row, database_.Prepare(absl::StrCat("SELECT ", kRunColumns,
                                                      ", content FROM runs WHERE request_id = ?")));
    QG_ASSIGN_OR_RETURN(const bool found, row.Bind(request_id).Step());
    if (!found) return std::nullopt;
    if (row.Text(11) != content.view()) return error::RequestIdReused(request_id);
    record = ReadRun(row);
  }
  QG_RETURN_IF_ERROR(AwaitDisk({&record, 1}));
  return record;
}

absl::Status RunStore::AwaitDisk(std::span<const RunRecord> records) {
  const bool any_ended = std::any_of(records.begin(), records.end(),
                                     [](const RunRecord& record) { return IsFinal(record.state); });
  return any_ended ? database_.Flush() : absl::OkStatus();
}

absl::StatusOr<RunRecord> RunStore::Create(const std::string& run_id, const std::string& request_id,
                                           const Sha256& content, const std::string& summary,
                                           const std::string& first_event) noexcept {
  RunRecord record;
  record.run_id = run_id;
  record.request_id = request_id;
  record.created = absl::Now();
  record.summary = summary;
  const std::lock_guard lock(database_.mutex());
  Transaction transaction(database_);
  QG_RETURN_IF_ERROR(transaction.Begin());
  QG_ASSIGN_OR_RETURN(Statement insert,
                      database_.Prepare("INSERT INTO runs (run_id, request_id, content, state, "
                                        "created, summary) VALUES (?, ?, ?, ?, ?, ?)"));
  insert.Bind(record.run_id);
  if (request_id.empty()) {
    insert.BindNull();
  } else {
    insert.Bind(request_id);
  }
  QG_RETURN_IF_ERROR(insert.BindBlob(content.view())
                         .Bind(static_cast<int64_t>(record.state))
                         .Bind(absl::ToUnixMicros(record.created))
                         .Bind(summary)
                         .Run());
  record.id = database_.last_row_id();
  if (totals_.has_value()) ++totals_->runs;
  record.last_sequence = 1;
  const Event first = {std::make_shared<const std::string>(first_event), std::nullopt,
                       ContentCrc(first_event)};
  QG_RETURN_IF_ERROR(InsertEvents(record.run_id, record.last_sequence, {&first, 1}));
  const absl::StatusOr<std::vector<std::string>> dropped = DropOldest();
  const absl::Status stored = dropped.ok() ? transaction.Commit() : dropped.status();
  // The transaction was rolled back, so the dropped runs are there again.
  if (!stored.ok()) totals_.reset();
  QG_RETURN_IF_ERROR(stored);
  for (const std::string& gone : *dropped) database_.side_files().Remove(gone);
  if (request_ids_.has_value() && !request_id.empty()) {
    request_ids_->insert(absl::HashOf(request_id));
    // Now and then the ids are read anew, which forgets those of removed runs.
    if (static_cast<int64_t>(request_ids_->size()) > 2 * totals_->runs + kRequestIdsMin) {
      request_ids_.reset();
    }
  }
  return record;
}

absl::Status RunStore::CountAll() {
  QG_ASSIGN_OR_RETURN(Statement count,
                      database_.Prepare("SELECT count(*), total(event_bytes) FROM runs"));
  QG_RETURN_IF_ERROR(count.Step().status());
  totals_ = Totals{count.Integer(0), count.Integer(1)};
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> RunStore::DropOldest() {
  std::vector<std::string> dropped;
  if (!totals_.has_value()) QG_RETURN_IF_ERROR(CountAll());
  const bool has_room = totals_->runs <= runs_kept_ + runs_kept_ / 16 &&
                        totals_->event_bytes <= event_bytes_kept_ + event_bytes_kept_ / 16;
  if (has_room) return dropped;
  const auto drop = [&](Statement& statement) -> absl::Status {
    while (true) {
      QG_ASSIGN_OR_RETURN(const bool found, statement.Step());
      if (!found) return absl::OkStatus();
      dropped.push_back(statement.Text(0));
    }
  };
  // A finished run goes when it is beyond the newest runs_kept_, or when the runs newer than it
  // already hold all the bytes that are kept.
  QG_ASSIGN_OR_RETURN(
      Statement beyond,
      database_.Prepare(
          "DELETE FROM runs WHERE state >= 3 AND id <= "
          "(SELECT id FROM runs ORDER BY id DESC LIMIT 1 OFFSET ?) RETURNING run_id"));
  QG_RETURN_IF_ERROR(drop(beyond.Bind(int64_t{runs_kept_})));
  QG_ASSIGN_OR_RETURN(
      Statement too_large,
      database_.Prepare("DELETE FROM runs WHERE state >= 3 AND id IN (SELECT id FROM (SELECT id, "
                        "sum(event_bytes) OVER (ORDER BY id DESC) AS bytes FROM runs) WHERE "
                        "bytes > ?) RETURNING run_id"));
  QG_RETURN_IF_ERROR(drop(too_large.Bind(event_bytes_kept_)));
  QG_RETURN_IF_ERROR(CountAll());
  return dropped;
}

absl::StatusOr<RunStore::Event> RunStore::Prepare(const std::string& run_id,
                                                  std::shared_ptr<const std::string> bytes) {
  const bool is_open = database_.side_files().IsOpen(run_id);
  const uint32_t crc = ContentCrc(*bytes);
  if (bytes->size() < (is_open ? kOpenSideFileBytesMin : kSideFileBytesMin)) {
    return Event{std::move(bytes), std::nullopt, crc};
  }
  QG_ASSIGN_OR_RETURN(const SideFiles::Place place, database_.side_files().Append(run_id, *bytes));
  return Event{nullptr, place, crc};
}

absl::Status RunStore::InsertEvent(const std::string& run_id, int64_t sequence,
                                   const Event& event) {
  QG_ASSIGN_OR_RETURN(
      Statement insert,
      database_.Prepare("INSERT INTO events (run, sequence, event, file_offset, file_size, crc) "
                        "SELECT id, ?, ?, ?, ?, ? FROM runs WHERE run_id = ?"));
  insert.Bind(sequence);
  if (event.place.has_value()) {
    insert.BindBlob("").Bind(event.place->offset).Bind(event.place->size);
  } else {
    insert.BindBlob(*event.bytes).BindNull().BindNull();
  }
  const int64_t crc = EventCrc(event.content_crc, run_id, sequence);
  QG_RETURN_IF_ERROR(insert.Bind(crc).Bind(run_id).Run());
  return database_.rows_changed() == 0 ? error::RunNotFound(run_id) : absl::OkStatus();
}

absl::Status RunStore::InsertEvents(const std::string& run_id, int64_t last_sequence,
                                    std::span<const Event> events) {
  int64_t sequence = last_sequence - static_cast<int64_t>(events.size());
  int64_t bytes = 0;
  for (const Event& event : events) {
    QG_RETURN_IF_ERROR(InsertEvent(run_id, ++sequence, event));
    bytes += event.size();
  }
  QG_ASSIGN_OR_RETURN(
      Statement update,
      database_.Prepare("UPDATE runs SET last_sequence = ?, event_bytes = event_bytes + ? "
                        "WHERE run_id = ?"));
  QG_RETURN_IF_ERROR(update.Bind(last_sequence).Bind(bytes).Bind(run_id).Run());
  if (totals_.has_value()) totals_->event_bytes += bytes;
  return absl::OkStatus();
}

absl::Status RunStore::AppendEvents(const std::string& run_id, int64_t last_sequence,
                                    std::span<const Event> events) {
  const std::lock_guard lock(database_.mutex());
  Transaction transaction(database_);
  QG_RETURN_IF_ERROR(transaction.Begin());
  QG_RETURN_IF_ERROR(InsertEvents(run_id, last_sequence, events));
  return transaction.Commit();
}

absl::Status RunStore::Finish(const std::string& run_id, int64_t sequence,
                              std::shared_ptr<const std::string> event, RunState state,
                              const absl::Status& status, std::vector<Event> before) {
  QG_ASSIGN_OR_RETURN(before.emplace_back(), Prepare(run_id, std::move(event)));
  const std::lock_guard lock(database_.mutex());
  Transaction transaction(database_);
  QG_RETURN_IF_ERROR(transaction.Begin());
  QG_RETURN_IF_ERROR(InsertEvents(run_id, sequence, before));
  QG_ASSIGN_OR_RETURN(Statement update,
                      database_.Prepare("UPDATE runs SET state = ?, finished = ?, status_code = ?, "
                                        "status_message = ? WHERE run_id = ?"));
  QG_RETURN_IF_ERROR(update.Bind(static_cast<int64_t>(state))
                         .Bind(absl::ToUnixMicros(absl::Now()))
                         .Bind(static_cast<int64_t>(status.code()))
                         .Bind(std::string(status.message()))
                         .Bind(run_id)
                         .Run());
  QG_RETURN_IF_ERROR(transaction.Commit());
  database_.FlushSoon();
  return absl::OkStatus();
}

absl::StatusOr<RunRecord> RunStore::Get(const std::string& run_id) {
  RunRecord record;
  {
    const std::lock_guard lock(database_.mutex());
    QG_ASSIGN_OR_RETURN(Statement row, database_.Prepare(absl::StrCat(
                                           "SELECT ", kRunColumns, " FROM runs WHERE run_id = ?")));
    QG_ASSIGN_OR_RETURN(const bool found, row.Bind(run_id).Step());
    if (!found) return error::RunNotFound(run_id);
    record = ReadRun(row);
  }
  QG_RETURN_IF_ERROR(AwaitDisk({&record, 1}));
  return record;
}

absl::StatusOr<std::optional<RunStore::StoredEvent>> RunStore::ReadEvent(const std::string& run_id,
                                                                         int64_t sequence) {
  const auto damaged = [&](const std::string& how) {
    return database_.Corrupted("event",
                               absl::StrCat("event ", sequence, " of ", run_id, ": ", how));
  };
  StoredEvent event;
  std::optional<SideFiles::Place> place;
  int64_t crc;
  {
    const std::lock_guard lock(database_.mutex());
    QG_ASSIGN_OR_RETURN(Statement row,
                        database_.Prepare("SELECT event, file_offset, file_size, crc, unverified, "
                                          "last_sequence FROM runs LEFT JOIN events "
                                          "ON run = id AND sequence = ? WHERE run_id = ?"));
    QG_ASSIGN_OR_RETURN(const bool found, row.Bind(sequence).Bind(run_id).Step());
    if (!found) return error::RunNotFound(run_id);
    if (row.IsNull(0)) {
      if (sequence < 1 || sequence > row.Integer(5)) return std::nullopt;
      return damaged("the database has lost it");
    }
    if (!row.IsNull(1)) place = {row.Integer(1), row.Integer(2)};
    event = {row.Text(0), row.Integer(4) != 0};
    crc = row.Integer(3);
  }
  if (place.has_value()) {
    absl::StatusOr<std::string> bytes = database_.side_files().Read(run_id, *place);
    if (!bytes.ok()) {
      // Another call may have dropped the run meanwhile. A run that is still there has lost the
      // event.
      QG_RETURN_IF_ERROR(Get(run_id).status());
      return damaged(std::string(bytes.status().message()));
    }
    event.bytes = *std::move(bytes);
  }
  if (crc == EventCrc(ContentCrc(event.bytes), run_id, sequence)) return event;
  return damaged("its bytes do not have its checksum");
}

absl::Status RunStore::Remove(const std::string& run_id) {
  const std::lock_guard lock(database_.mutex());
  totals_.reset();
  QG_ASSIGN_OR_RETURN(Statement remove, database_.Prepare("DELETE FROM runs WHERE run_id = ?"));
  return remove.Bind(run_id).Run();
}

absl::StatusOr<std::vector<std::string>> RunStore::StrayFiles() {
  std::vector<std::string> strays;
  for (const std::string& name : database_.side_files().Names()) {
    const absl::Status known = Get(name).status();
    if (!absl::IsNotFound(known)) QG_RETURN_IF_ERROR(known);
    if (!known.ok()) strays.push_back(name);
  }
  if (strays.empty()) return strays;
  // A lost write may have left an older page of the index, whose checksum matches.
  QG_ASSIGN_OR_RETURN(const auto stored, RunIdsOfTable());
  for (const std::string& name : strays) {
    if (!stored.contains(name)) continue;
    return database_.Corrupted(
        "database", absl::StrCat("the database is damaged: the index of runs lacks ", name));
  }
  return strays;
}

absl::StatusOr<int> RunStore::SetStrayFilesAside(const std::string& directory) {
  QG_ASSIGN_OR_RETURN(const std::vector<std::string> strays, StrayFiles());
  for (const std::string& name : strays) {
    QG_RETURN_IF_ERROR(database_.side_files().SetAside(name, directory));
  }
  return static_cast<int>(strays.size());
}

absl::StatusOr<absl::flat_hash_set<std::string>> RunStore::RunIdsOfTable() {
  const std::lock_guard lock(database_.mutex());
  QG_ASSIGN_OR_RETURN(Statement rows, database_.Prepare("SELECT run_id FROM runs NOT INDEXED"));
  absl::flat_hash_set<std::string> ids;
  while (true) {
    QG_ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return ids;
    ids.insert(rows.Text(0));
  }
}

absl::StatusOr<RunPage> RunStore::List(int64_t before_id, int page_size) {
  QG_ASSIGN_OR_RETURN(RunPage page, ReadPage(before_id, page_size));
  QG_RETURN_IF_ERROR(AwaitDisk(page.records));
  return page;
}

absl::StatusOr<RunPage> RunStore::ReadPage(int64_t before_id, int page_size) {
  const std::lock_guard lock(database_.mutex());
  return ReadRecordPage<RunPage>(database_, "runs", kRunColumns, before_id, page_size, ReadRun);
}

absl::StatusOr<std::vector<RunRecord>> RunStore::ListUnfinished() {
  const std::lock_guard lock(database_.mutex());
  QG_ASSIGN_OR_RETURN(Statement rows,
                      database_.Prepare(absl::StrCat("SELECT ", kRunColumns,
                                                     " FROM runs WHERE state < 3 ORDER BY id")));
  std::vector<RunRecord> records;
  while (true) {
    QG_ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return records;
    records.push_back(ReadRun(rows));
  }
}

}  // namespace quantgate
