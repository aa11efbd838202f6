// Rates of the CPU engine beside the machine's ceilings, measured in the same run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

/// One line of `quantgate bench`. A line without a ceiling is a ceiling itself.
struct BenchLine {
  std::string what;
  double rate = 0;              ///< In `unit`; for latencies, seconds.
  std::string unit;             ///< "GB/s", "G multiply-adds/s", "s".
  std::string ceiling;          ///< The line that `ratio` is relative to.
  std::optional<double> ratio;  ///< rate / ceiling, or latency / latency.
};

/// Called with what is measured next; an error ends the benchmark.
using BenchProgress = std::function<absl::Status(const std::string& what)>;

/// Best rate per second of `units` over repetitions of `work` that take `seconds` together (at
/// least three); an interrupt ends them early.
double BestRate(double units, double seconds, const std::function<void()>& work);

/// Quantization of a 64 MiB bf16 tensor against memcpy, GEMMs of 1024^3 against fp32 fused
/// multiply-adds, each on one thread and on all.
absl::StatusOr<std::vector<BenchLine>> BenchEngine(double seconds, const BenchProgress& progress);

}  // namespace quantgate
