// quantgate bench: how fast the engine and the wire are, and how fast they could be.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands/bench_engine.h"
#include "client/cli/commands/bench_wire.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit.h"
#include "client/in_process.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"
#include "server/server.h"

namespace quantgate {
namespace {

constexpr char kBenchExamples[] = R"(Examples:
  quantgate bench
  quantgate bench --only engine --seconds 3 --format json
  quantgate bench --only wire --server 127.0.0.1:7470 --upload-mib 1024 --store /var/lib/quantgate

Each rate stands beside the ceiling it is measured against, taken in the same run on the same
threads. Against a server the uploaded blob stays in its store; without one a throw-away store
is used.)";

struct BenchOptions {
  std::string only;
  double seconds = 1;
  int64_t upload_mib = 256;
  std::string store;
};

/// A store under the default one that goes away with this object.
class ThrowAwayStore {
 public:
  static absl::StatusOr<std::unique_ptr<ThrowAwayStore>> Create() {
    auto store = std::make_unique<ThrowAwayStore>();
    QG_ASSIGN_OR_RETURN(const std::string parent, DefaultStoreDirectory());
    store->path_ = absl::StrCat(parent, "/bench.", ::getpid());
    return store;
  }
  ~ThrowAwayStore() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::StatusOr<std::vector<BenchLine>> Wire(Invocation& invocation, const BenchOptions& options,
                                            const BenchProgress& progress) {
  WireBenchOptions wire;
  wire.upload_bytes = options.upload_mib << 20;
  wire.seconds = options.seconds;
  wire.disk = options.store;
  if (!invocation.options().server.empty()) {
    QG_ASSIGN_OR_RETURN(const auto connection, invocation.Dial());
    SetInterruptAction([connection = connection.get()] { connection->Cancel(); });
    auto lines = BenchWire(*connection, wire, progress);
    SetInterruptAction({});
    return lines;
  }
  QG_ASSIGN_OR_RETURN(const auto store, ThrowAwayStore::Create());
  ServerOptions server_options;
  server_options.data_dir = DataDirOf(store->path());
  if (invocation.options().threads > 0) {
    server_options.engine.threads = invocation.options().threads;
  }
  QG_ASSIGN_OR_RETURN(const auto server, Server::Start(server_options));
  wire.is_in_process = true;
  if (wire.disk.empty()) wire.disk = store->path();
  ChannelConnection connection(server->InProcessChannel(), "in process", ConnectionOptions());
  return BenchWire(connection, wire, progress);
}

std::string RateText(const BenchLine& line) {
  if (line.unit == "s") return Seconds(line.rate);
  return absl::StrFormat("%.3g %s", line.rate, line.unit);
}

void PrintBench(Invocation& invocation, const std::vector<BenchLine>& lines) {
  if (!invocation.is_table()) {
    nlohmann::ordered_json json;
    json["lines"] = nlohmann::ordered_json::array();
    for (const BenchLine& line : lines) {
      nlohmann::ordered_json entry{{"what", line.what}, {"rate", line.rate}, {"unit", line.unit}};
      entry["ceiling"] =
          line.ceiling.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(line.ceiling);
      entry["ratio"] = line.ratio ? nlohmann::ordered_json(*line.ratio) : nlohmann::ordered_json();
      json["lines"].push_back(entry);
    }
    invocation.PrintJson("bench", json);
    return;
  }
  TextTable table({"", "rate", "of", "<ceiling"});
  for (const BenchLine& line : lines) {
    table.AddRow({line.what, RateText(line), line.ratio ? absl::StrFormat("%.2f", *line.ratio) : "",
                  line.ceiling});
    if (!line.ratio) table.SetTone(0, Tone::kDim);
  }
  table.Print(invocation.out(), invocation.uses_colour());
}

absl::StatusOr<int> Bench(Invocation& invocation, const BenchOptions& options) {
  const BenchProgress progress = [&](const std::string& what) {
    invocation.progress().Update(absl::StrCat("measuring ", what), 0, 1);
    return WasInterrupted() ? absl::CancelledError("interrupted") : absl::OkStatus();
  };
  std::vector<BenchLine> lines;
  if (options.only != "wire") {
    QG_ASSIGN_OR_RETURN(lines, BenchEngine(options.seconds, progress));
  }
  if (options.only != "engine") {
    QG_ASSIGN_OR_RETURN(const std::vector<BenchLine> wire, Wire(invocation, options, progress));
    lines.insert(lines.end(), wire.begin(), wire.end());
  }
  invocation.progress().Clear();
  PrintBench(invocation, lines);
  return 0;
}

}  // namespace

void AddBenchCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] = AddSubcommand(
      app, chosen, "bench", "Rates of engine and wire beside the ceilings of this machine",
      kBenchExamples, Bench);
  command->add_option("--only", options->only, "One part")
      ->check(CLI::IsMember({"engine", "wire"}));
  command->add_option("--seconds", options->seconds, "Time for each measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 60.0));
  command->add_option("--upload-mib", options->upload_mib, "Size of the upload")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  command
      ->add_option("--store", options->store,
                   "Directory on the disk of the server's store, to measure it")
      ->type_name("DIR");
}

}  // namespace quantgate
