// RunStore: runs and their events, which are stored once; every stream reads them from here. Large
// events are in side files, one for each run. All of it survives a crash of the process. A crash of
// the machine fails the runs in progress anyway, and loses what was written in its last moments: so
// a caller that looks a run up is told of its end only once the disk has the end. A run that such a
// crash lost is started again by its request. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/digest.h"
#include "server/limits.h"
#include "server/store/database.h"

namespace quantgate {

/// Numbers as in v1.RunState. The store keeps every run that has not ended as queued; LiveRuns
/// knows which of them devices have begun with.
enum class RunState { kQueued = 1, kRunning = 2, kSucceeded = 3, kFailed = 4, kCancelled = 5 };
inline bool IsFinal(RunState state) { return state >= RunState::kSucceeded; }

struct RunRecord {
  int64_t id = 0;  ///< Ascending with time.
  std::string run_id;
  std::string request_id;
  RunState state = RunState::kQueued;
  absl::Time created;
  std::optional<absl::Time> finished;
  int64_t last_sequence = 0;
  absl::Status status;  ///< Why a run failed or was cancelled.
  std::string summary;
  /// Whether version 0.1.0 stored the run and its events, without checksums. They are verified
  /// against what they were when a later version first read them.
  bool is_unverified = false;
};

struct RunPage {
  std::vector<RunRecord> records;
  int64_t next_before_id = 0;  ///< 0 on the last page.
};

class RunStore {
 public:
  /// Finished runs beyond this number, and beyond this many bytes of events, are removed, the
  /// oldest first. This happens once there are a sixteenth more, since finding them takes longer
  /// than everything else that starting a run needs.
  explicit RunStore(Database& database, int runs_kept = kRunsKept,
                    int64_t event_bytes_kept = kRunEventBytesKept)
      : database_(database), runs_kept_(runs_kept), event_bytes_kept_(event_bytes_kept) {}

  /// False where no run has this request id, which is known without a query of the database.
  absl::StatusOr<bool> MayHaveRequest(const std::string& request_id);
  /// The run that a request started. ALREADY_EXISTS when its content was another.
  absl::StatusOr<std::optional<RunRecord>> FindRequest(const std::string& request_id,
                                                       const Sha256& content);
  /// An id for a run that is to be created.
  static std::string NewRunId();
  /// A new queued run with its first event. Drops the oldest finished runs beyond what is kept.
  absl::StatusOr<RunRecord> Create(const std::string& run_id, const std::string& request_id,
                                   const Sha256& content, const std::string& summary,
                                   const std::string& first_event) noexcept;
  /// An event to be added: its bytes, or their place in the run's side file.
  struct Event {
    std::shared_ptr<const std::string> bytes;
    std::optional<SideFiles::Place> place;
    uint32_t content_crc = 0;
    int64_t size() const { return place ? place->size : static_cast<int64_t>(bytes->size()); }
  };
  /// Prepares an event to be added; writes a large one into the side file. Called by one caller at
  /// a time for a run.
  absl::StatusOr<Event> Prepare(const std::string& run_id,
                                std::shared_ptr<const std::string> bytes);
  /// Appends prepared events, of which the last has number `last_sequence`: all or none. NOT_FOUND
  /// for an unknown run.
  absl::Status AppendEvents(const std::string& run_id, int64_t last_sequence,
                            std::span<const Event> events);
  /// Appends the events `before` and the last event, and sets the final state, in one transaction;
  /// does not wait for the disk.
  absl::Status Finish(const std::string& run_id, int64_t sequence,
                      std::shared_ptr<const std::string> event, RunState state,
                      const absl::Status& status, std::vector<Event> before = {});

  /// The record of a run. NOT_FOUND for an unknown one.
  absl::StatusOr<RunRecord> Get(const std::string& run_id);
  struct StoredEvent {
    std::string bytes;
    bool is_unverified = false;  ///< As RunRecord::is_unverified.
  };
  /// The event as it was stored, verified by its checksum. Absent where the run has no such event
  /// yet. NOT_FOUND for an unknown run, DATA_LOSS for an event that is lost or damaged.
  absl::StatusOr<std::optional<StoredEvent>> ReadEvent(const std::string& run_id, int64_t sequence);
  /// A page of records, newest first, with ids below `before_id`; 0 means from the newest on.
  absl::StatusOr<RunPage> List(int64_t before_id, int page_size);
  /// Runs that an earlier process left queued or running.
  absl::StatusOr<std::vector<RunRecord>> ListUnfinished();
  /// Removes a run and its events, but not their side file.
  absl::Status Remove(const std::string& run_id);
  /// The side files, by their names, of runs that the database does not have: left by a crash, by
  /// an older database that somebody has put back, or by one that was salvaged. DATA_LOSS where the
  /// table of runs has a run that its index lacks.
  absl::StatusOr<std::vector<std::string>> StrayFiles();
  /// Moves these to `directory`, and returns their number. Errors as StrayFiles; none is moved
  /// then.
  absl::StatusOr<int> SetStrayFilesAside(const std::string& directory);

 private:
  absl::Status InsertEvent(const std::string& run_id, int64_t sequence, const Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_.mutex());
  absl::Status InsertEvents(const std::string& run_id, int64_t last_sequence,
                            std::span<const Event> events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_.mutex());
  absl::Status ReadRequestIds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_.mutex());
  /// Waits for the disk where one of the runs has ended.
  absl::Status AwaitDisk(std::span<const RunRecord> records);
  /// The ids of all runs, read without the index of the ids.
  absl::StatusOr<absl::flat_hash_set<std::string>> RunIdsOfTable();
  absl::StatusOr<RunPage> ReadPage(int64_t before_id, int page_size);
  /// Drops runs beyond what is kept and returns their ids.
  absl::StatusOr<std::vector<std::string>> DropOldest()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_.mutex());
  absl::Status CountAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_.mutex());

  Database& database_;
  const int runs_kept_;
  const int64_t event_bytes_kept_;
  /// Upper bounds of what the database has; counted when first needed.
  struct Totals {
    int64_t runs = 0;
    int64_t event_bytes = 0;
  };
  std::optional<Totals> totals_ ABSL_GUARDED_BY(database_.mutex());
  /// Hashes of the request ids of all runs, and of some runs that are gone; read when first needed.
  std::optional<absl::flat_hash_set<size_t>> request_ids_ ABSL_GUARDED_BY(database_.mutex());
};

}  // namespace quantgate
