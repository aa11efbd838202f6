#include "tests/server/store/bit_flips.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "quantgate/v1/blobs_service.pb.h"
#include "tests/server/store/store_contents.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

namespace fs = std::filesystem;

constexpr int kServersAtATime = 8;

struct Kind {
  const char* name;
  const char* below;  ///< Folder, or the beginning of the files' names.
};
constexpr Kind kKinds[] = {{"blob", "cas/"},
                           {"side file", "quantgate.db-files/"},
                           {"database", "quantgate.db"},
                           {"log", "quantgate.db-"}};

std::vector<fs::path> FilesOf(const fs::path& directory, size_t kind) {
  std::set<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = fs::relative(entry.path(), directory).string();
    if (!entry.is_regular_file() || entry.file_size() == 0) continue;
    if (name.find("-shm") != std::string::npos) continue;  // Made anew at each start.
    const bool is_database = name == "quantgate.db";
    const bool is_side_file = name.starts_with(kKinds[1].below);
    const bool is_of_kind = kind == 2   ? is_database
                            : kind == 3 ? name.starts_with(kKinds[3].below) && !is_side_file
                                        : name.starts_with(kKinds[kind].below);
    if (is_of_kind) files.insert(entry.path());
  }
  return {files.begin(), files.end()};
}

void FlipBit(const fs::path& path, uint64_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const auto value = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(value);
}

std::unique_ptr<Server> StartOn(const fs::path& directory, std::shared_ptr<grpc::Channel>& channel,
                                int& metrics_port) {
  ServerOptions options;
  options.data_dir = directory.string();
  options.metrics_listen = "127.0.0.1:0";
  options.fsync = false;
  auto server = Server::Start(options);
  if (!server.ok()) return nullptr;
  channel = (*server)->InProcessChannel();
  metrics_port = (*server)->metrics_port();
  return *std::move(server);
}

double DamageCounted(int metrics_port) {
  const std::string text = HttpGetFrom(metrics_port, "/metrics");
  double sum = 0;
  for (const char* series : {"quantgate_blob_corruption_total{where=\"read\"}",
                             "quantgate_blob_corruption_total{where=\"lookup\"}",
                             "quantgate_blob_corruption_total{where=\"startup\"}",
                             "quantgate_store_corruption_total{what=\"database\"}",
                             "quantgate_store_corruption_total{what=\"event\"}"}) {
    sum += std::max(0.0, MetricValue(text, series));
  }
  return sum;
}

/// Whether an answer is what follows once a damaged blob was set aside: it is missing now.
bool SaysThatABlobIsMissing(const Exchange& now) {
  if (now.method == "quantgate.v1.Blobs/FindMissing") {
    v1::FindMissingResponse response;
    return now.status == 0 && response.ParseFromString(now.responses[0]) &&
           response.missing_size() == 2;
  }
  return now.status == grpc::NOT_FOUND || now.status == grpc::FAILED_PRECONDITION;
}

}  // namespace

BitFlips::BitFlips() {
  const fs::path images = images_.path();
  std::shared_ptr<grpc::Channel> channel;
  int metrics_port = 0;
  {
    const auto server = StartOn(images / "at rest", channel, metrics_port);
    const std::vector<Exchange> filled = FillStore(channel);
    answers_ = AskStore(channel, filled);
    fs::copy(images / "at rest", images / "killed", fs::copy_options::recursive);
  }
  channel = nullptr;
}

BitFlips::Outcome BitFlips::Flip(uint64_t seed) const {
  std::mt19937_64 random(seed);
  const size_t kind = random() % std::size(kKinds);
  const bool was_killed = kind == 3 || random() % 2 == 0;
  const bool is_live = kind != 3 && random() % 4 == 0;
  const TemporaryDirectory directory;
  const fs::path data = fs::path(directory.path()) / "data";
  fs::copy(fs::path(images_.path()) / (was_killed ? "killed" : "at rest"), data,
           fs::copy_options::recursive);
  const std::vector<fs::path> files = FilesOf(data, kind);
  const fs::path file = files[random() % files.size()];
  const uint64_t byte = random() % fs::file_size(file);
  const int bit = static_cast<int>(random() % 8);
  Outcome outcome;
  outcome.where =
      absl::StrCat(kKinds[kind].name, ": ", file.filename().string(), " byte ", byte, " bit ", bit,
                   was_killed ? ", killed" : ", at rest", is_live ? ", while it serves" : "");
  if (!is_live) FlipBit(file, byte, bit);
  std::shared_ptr<grpc::Channel> channel;
  int metrics_port = 0;
  const auto server = StartOn(data, channel, metrics_port);
  if (server == nullptr) {
    outcome.refused = true;
    return outcome;
  }
  // The log of one that was killed is in the database by now, and its bytes are elsewhere.
  if (is_live) FlipBit(file, byte % fs::file_size(file), bit);
  bool is_set_aside = false;
  for (const Exchange& before : answers_) {
    const Exchange now = Ask(channel, before.method, before.requests);
    if (now.status == before.status && ComparableLines(now) == ComparableLines(before)) continue;
    if (now.status == grpc::DATA_LOSS) {
      ++outcome.lost;
      is_set_aside |= kind == 0;
    } else if (is_set_aside && SaysThatABlobIsMissing(now)) {
      ++outcome.lost;
    } else {
      outcome.altered.push_back(absl::StrCat(before.method, ": status ", now.status));
    }
  }
  outcome.counted = DamageCounted(metrics_port);
  return outcome;
}

std::string FlipCounts::Text() const {
  std::string text;
  for (const auto& [outcome, count] : by_outcome)
    absl::StrAppend(&text, outcome, ": ", count, "\n");
  for (const std::string& line : unsound) absl::StrAppend(&text, "UNSOUND ", line, "\n");
  return text;
}

FlipCounts RunFlips(const BitFlips& flips, uint64_t first, int count) {
  FlipCounts counts;
  std::mutex mutex;
  std::atomic<int> next{0};
  const auto flip_some = [&] {
    for (int i; (i = next++) < count;) {
      const BitFlips::Outcome outcome = flips.Flip(first + static_cast<uint64_t>(i));
      const std::string kind = outcome.where.substr(0, outcome.where.find(':'));
      const std::lock_guard lock(mutex);
      ++counts.by_outcome[absl::StrCat(kind, outcome.refused    ? ", refused at start"
                                             : outcome.lost > 0 ? ", data loss"
                                                                : ", nothing read it")];
      if (outcome.IsSound()) continue;
      std::string line =
          absl::StrCat(outcome.where, ": lost ", outcome.lost, ", counted ", outcome.counted);
      for (const std::string& altered : outcome.altered) absl::StrAppend(&line, "; ", altered);
      counts.unsound.push_back(line);
    }
  };
  // A server takes a second to end, for most of which it waits.
  std::vector<std::thread> threads;
  for (int i = 0; i < kServersAtATime; ++i) threads.emplace_back(flip_some);
  for (std::thread& thread : threads) thread.join();
  return counts;
}

}  // namespace quantgate
