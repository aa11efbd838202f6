// What a run through the service takes beside its stages: a linear layer under fp8_current, forward
// and backward, from tensors that the device has, over loopback. Per size, medians: the time until
// the client has the report, what the report says, and each stage.
//
//   server_execute_bench [--device=cpu] [--runs=21] [SIZE ...]     default: 512 and 4096
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

using Clock = std::chrono::steady_clock;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// What was seen in every run, by name, in the order in which names were first seen.
class Times {
 public:
  void Add(const std::string& name, double seconds) {
    if (!seconds_.contains(name)) names_.push_back(name);
    seconds_[name].push_back(seconds);
  }
  void Print() const {
    for (const std::string& name : names_) {
      std::printf("  %-28s %8.3f ms\n", name.c_str(), Median(seconds_.at(name)) * 1e3);
    }
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> seconds_;
};

/// One run; false where it failed.
bool Execute(TestServer& server, const v1::ExecuteRequest& request, Times& times) {
  const auto start = Clock::now();
  grpc::ClientContext context;
  const auto reader = server.engine().Execute(&context, request);
  v1::VariantReport variant;
  double seconds_of_report = 0;
  for (v1::RunEvent event; reader->Read(&event);) {
    if (event.has_variant()) variant = event.variant().report();
    if (event.has_finished()) seconds_of_report = event.finished().report().seconds();
  }
  const grpc::Status status = reader->Finish();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!status.ok() || variant.stages().empty()) {
    std::fprintf(stderr, "the run failed: %s\n", status.error_message().c_str());
    return false;
  }
  double stages = 0;
  for (const v1::StageTime& stage : variant.stages()) stages += stage.seconds();
  times.Add("until the client has it", seconds);
  times.Add("the report's seconds", seconds_of_report);
  times.Add("the variant's stages together", stages);
  for (const v1::StageTime& stage : variant.stages()) times.Add(stage.stage(), stage.seconds());
  return true;
}

bool Measure(const std::string& device, int64_t size, int runs) {
  TestServer server([&](ServerOptions& options) { options.devices = {device}; });
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(size, size, size);
  *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "auto");
  Times warm_up, times;
  for (int i = 0; i < 3; ++i) {
    if (!Execute(server, request, warm_up)) return false;
  }
  for (int i = 0; i < runs; ++i) {
    if (!Execute(server, request, times)) return false;
  }
  std::printf("%lld^3 on %s, medians of %d runs\n", static_cast<long long>(size), device.c_str(),
              runs);
  times.Print();
  return true;
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  std::string device = "cpu";
  int runs = 21;
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    int64_t size = 0;
    if (option.first == "--device") {
      device = option.second;
    } else if (option.first == "--runs") {
      (void)absl::SimpleAtoi(option.second, &runs);
    } else if (absl::SimpleAtoi(option.first, &size)) {
      sizes.push_back(size);
    }
  }
  if (sizes.empty()) sizes = {512, 4096};
  for (const int64_t size : sizes) {
    if (!quantgate::Measure(device, size, runs)) return 1;
  }
  return 0;
}
