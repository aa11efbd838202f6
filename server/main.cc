// quantgated: the QuantGate server.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/nearest_word.h"
#include "kernels/base/standard_descriptors.h"
#include "server/device/build_description.h"
#include "server/process_memory.h"
#include "server/server.h"
#include "server/store/fsck.h"

namespace quantgate {
namespace {

constexpr char kExamples[] = R"(Examples:
  quantgated                                        loopback only, data below $XDG_STATE_HOME
  quantgated --listen 0.0.0.0:7470 --insecure       open to whoever reaches this machine
  quantgated --listen unix:/run/quantgate.sock --metrics-listen ''
  quantgated --listen 127.0.0.1:0                   any free port; the ready line says which

HTTP on --metrics-listen serves /metrics, /healthz and /readyz.
Neither listener encrypts or asks who calls: an address that other machines reach needs --insecure.
SIGTERM or SIGINT finishes what runs (at most --grace), a second one cancels it. SIGHUP is ignored.
With --device cuda it computes on every GPU of this machine; --device cuda:1 takes one of them.

--fsck checks the data directory of a server that does not run, --fsck --repair also sets aside what
is damaged: exit code 0 nothing found, 1 problems found (mended or not), 4 could not check.

Exit codes: 0 stopped as asked, 2 bad usage, data directory or device, 3 a device was lost while
serving, 4 an address cannot be bound, 5 memory or a thread could not be had.)";

std::string DefaultDataDir() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return std::string(state) + "/quantgated";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr ? "" : std::string(home) + "/.local/state/quantgated";
}

/// Signals are taken by one thread with sigwait, so nothing runs in a handler.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

/// Raises the soft limit of descriptors to the hard limit, since it bounds the connections. The
/// soft limit is a default for programs that use select(2), which this one does not.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void Log(const std::string& line) { std::fprintf(stderr, "quantgated: %s\n", line.c_str()); }

/// Waits for a signal that ends the server.
void WaitForEnd(const sigset_t& signals) {
  for (;;) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (signal != SIGHUP) return;
    Log("SIGHUP is ignored: there is nothing to reload");
  }
}

/// Durations in seconds, as the options give them.
struct Seconds {
  int grace = 30;
  int rank_deadline = 60;
};

/// Adds an option for a size with a unit, of at least `least` bytes. CLI11 itself would take -1 for
/// 2^64 - 1.
void AddSizeOption(CLI::App& app, const char* name, int64_t& bytes, int64_t least, const char* what,
                   const char* shown) {
  const auto is_number = [](const std::string& text) {
    const bool has_sign = text.empty() || text[0] < '0' || text[0] > '9';
    return has_sign ? absl::StrCat("\"", text, "\" is no size, such as 64Gi") : std::string();
  };
  const auto is_large_enough = [least](const std::string& text) {
    int64_t size = 0;
    if (absl::SimpleAtoi(text, &size) && size >= least) return std::string();
    return absl::StrCat(text, " bytes; must be from ", least, " to 2^63-1");
  };
  // CLI11 does the last transform first, and the checks after all transforms.
  app.add_option(name, bytes, what)
      ->transform(CLI::AsSizeValue(false))
      ->transform(CLI::Validator(is_number, ""))
      ->check(is_large_enough, "")
      ->type_name("SIZE")
      ->default_str(shown);
}

void AddOptions(CLI::App& app, ServerOptions& options, int& threads, Seconds& seconds) {
  app.add_option("--listen", options.listen, "host:port or unix:/path of the gRPC API; repeatable")
      ->type_name("ADDRESS")
      ->take_all()
      ->default_val(std::vector<std::string>{"127.0.0.1:7470"});
  app.add_option("--metrics-listen", options.metrics_listen, "host:port of HTTP; empty: none")
      ->type_name("ADDRESS")
      ->default_val("127.0.0.1:9470");
  app.add_flag("--insecure", options.insecure,
               "Listen where other machines reach it, without encryption or authentication");
  app.add_option("--data-dir", options.data_dir, "Directory of blobs, tensors and runs")
      ->type_name("PATH")
      ->default_val(DefaultDataDir());
  app.add_flag("--begin-anew", options.begins_anew,
               "Start without the runs and tensors of a quantgate.db that is gone or empty");
  app.add_option("--device", options.devices, "cpu, cuda (every GPU) or cuda:N; repeatable")
      ->type_name("DEVICE")
      ->take_all()
      ->default_val(std::vector<std::string>{"cpu"});
  AddSizeOption(app, "--resident-bytes-max", options.resident_bytes_max, 0,
                "Tensors kept in each GPU's memory between calls; 0: half of it", "0");
  app.add_option("--threads", threads, "Threads of the CPU engine")
      ->check(CLI::Range(1, 1024))
      ->default_val(options.engine.threads);
  app.add_option("--queue-capacity", options.queue_capacity, "Runs that may wait")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--queue-workers", options.queue_workers, "Runs at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rank-deadline", seconds.rank_deadline, "Seconds that a rank waits for others")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  AddSizeOption(app, "--blob-bytes-max", options.blob_bytes_max, 1, "Largest blob", "64Gi");
  AddSizeOption(app, "--store-bytes-max", options.store_bytes_max, 1, "All blobs together",
                "256Gi");
  AddSizeOption(app, "--tensor-bytes-max", options.tensor_bytes_max, 1,
                "Largest tensor of a request", "8Gi");
  AddSizeOption(app, "--disk-reserve", options.disk_reserve_bytes, 0,
                "Room on the disk of the data directory below which it is not ready", "64Mi");
  app.add_option("--sessions-max", options.sessions.sessions_max, "Training sessions open at once")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  AddSizeOption(app, "--session-bytes-max", options.sessions.bytes_max, 0,
                "Tensors of all sessions", "16Gi");
  app.add_option("--grace", seconds.grace, "Seconds that runs have to finish after SIGTERM")
      ->take_last()
      ->check(CLI::Range(0, 86'400))
      ->capture_default_str();
}

std::string ReadyLine(const ServerOptions& options, const Server& server) {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < options.listen.size(); ++i) {
    std::string address = options.listen[i];
    if (server.ports()[i] != 0) {
      address = address.substr(0, address.rfind(':') + 1) + std::to_string(server.ports()[i]);
    }
    addresses.push_back(address);
  }
  std::string line = "quantgated ready on " + absl::StrJoin(addresses, " ");
  if (server.metrics_port() != 0) {
    const std::string& listen = options.metrics_listen;
    line += ", metrics on http://" + listen.substr(0, listen.rfind(':') + 1) +
            std::to_string(server.metrics_port()) + "/metrics";
  }
  return line;
}

int Serve(ServerOptions options, absl::Duration grace) {
  KeepLargeBuffers();
  if (!PrepareForLittleMemory()) return 2;
  RaiseDescriptorLimit();
  const sigset_t signals = BlockSignals();
  std::atomic<bool> is_device_lost{false};
  options.checks_hardware = true;
  options.on_hardware_checked = [](const std::string& key, const std::vector<std::string>& lines) {
    std::fprintf(stderr, "quantgated: self-check of %s: %s\n", key.c_str(),
                 lines.empty() ? "nothing to check" : lines[0].c_str());
  };
  options.on_device_lost = [&](const absl::Status& why) {
    std::fprintf(stderr, "quantgated: %s\n", std::string(why.message()).c_str());
    is_device_lost = true;
    kill(getpid(), SIGTERM);
  };
  options.log = &Log;
  options.start_http = &HttpEndpoint::Start;
  auto server = Server::Start(options);
  if (!server.ok()) {
    std::fprintf(stderr, "quantgated: %s\n", std::string(server.status().message()).c_str());
    return absl::IsUnavailable(server.status()) ? 4 : 2;
  }
  KeepThreadStacks();
  std::printf("%s\n", ReadyLine(options, **server).c_str());
  std::fflush(stdout);
  if (options.insecure) Log("--insecure: whoever reaches a listener may use and read everything");
  WaitForEnd(signals);
  std::fprintf(stderr, "quantgated: draining; a second signal cancels what runs\n");
  std::thread hurry([&] {
    WaitForEnd(signals);
    (*server)->Hurry();
  });
  (*server)->Shutdown(grace);
  // Wakes the thread that waits for a second signal.
  pthread_kill(hurry.native_handle(), SIGTERM);
  hurry.join();
  if (!is_device_lost) return 0;
  // Nothing is destroyed: the driver's clean-up would wait for a device that does not answer, and
  // the server's destructor for a rank that does not return.
  std::fflush(nullptr);
  std::_Exit(3);
}

/// What to do instead of serving.
struct Checking {
  bool is_asked = false;
  bool repairs = false;
};

void AddCheckOptions(CLI::App& app, Checking& checking) {
  auto* fsck = app.add_flag("--fsck", checking.is_asked, "Check the data directory and end");
  app.add_flag("--repair", checking.repairs, "With --fsck: set aside what is damaged")->needs(fsck);
}

/// Says which option an unknown one may be a misspelling of.
void SuggestOptions(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : app.remaining()) {
    const std::string nearest = NearestWord(word.substr(0, word.find('=')), known);
    if (!nearest.empty()) std::fprintf(stderr, "did you mean %s?\n", nearest.c_str());
  }
}

int CheckDataDir(const std::string& data_dir, bool repairs) {
  const auto result = CheckStore(data_dir, repairs, [](const std::string& line) {
    std::printf("problem: %s\n", line.c_str());
  });
  if (!result.ok()) {
    std::fprintf(stderr, "quantgated: %s\n", std::string(result.status().message()).c_str());
    return 4;
  }
  std::printf("%s\n", absl::StrCat(result->runs, " runs, ", result->events, " events, ",
                                   result->tensors, " tensors and ", result->blobs, " blobs (",
                                   result->blob_bytes, " bytes) checked: ", result->problems,
                                   " problems, ", result->mended, " mended")
                          .c_str());
  return result->problems == 0 ? 0 : 1;
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  quantgate::OpenStandardDescriptors();
  quantgate::IgnoreFileSizeSignal();
  CLI::App app("quantgated serves low-precision training arithmetic over gRPC.");
  app.footer(quantgate::kExamples);
  const quantgate::BuildDescription build = quantgate::DescribeBuild();
  app.set_version_flag("--version", "quantgated " + build.version + " (" + build.revision + ", " +
                                        build.compiler + ")");
  quantgate::ServerOptions options;
  int threads = options.engine.threads;
  quantgate::Seconds seconds;
  quantgate::AddOptions(app, options, threads, seconds);
  quantgate::Checking checking;
  quantgate::AddCheckOptions(app, checking);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) == 0) return 0;
    quantgate::SuggestOptions(app);
    return 2;
  }
  if (checking.is_asked) return quantgate::CheckDataDir(options.data_dir, checking.repairs);
  options.engine.threads = threads;
  options.rank_deadline = absl::Seconds(seconds.rank_deadline);
  return quantgate::Serve(options, absl::Seconds(seconds.grace));
}
