// The speed of communication beside GEMMs on GPUs of one host: a tensor-parallel layer's all-gather
// and GEMM, GEMM and reduce-scatter. Each of the two alone, one after the other, and overlapped, as
// multiples of the larger of the two alone. tests/hardware/torch_overlap_rates.py measures torch's
// at the same shapes and in the same way.
//
//   overlap_cuda_bench [--ranks N] [--tokens M] [--hidden H,H,...] [--widths 4,1] [--only TEXT]
//                      [--timelines]
//
// One line of JSON for each way. Of hidden size H and width W the layer has W * H features, divided
// over the ranks: all-gather and GEMM multiply x [M][H] by w [W H / N][H], GEMM and reduce-scatter
// x [M][W H / N] by w [H][W H / N]. --only: overlapped ways whose text contains it ("gemm bf16
// ring"), beside what they are compared with. --timelines: when the tasks of one call ran on rank
// 0, and what that says.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"
#include "tests/comm/overlap/overlap_bench_ranks.h"

namespace quantgate {
namespace {

constexpr int kRounds = 5;
constexpr double kBatchSeconds = 0.1;

struct Options {
  int ranks = 4;
  int64_t tokens = 16384;
  std::vector<int64_t> hidden = {8192, 16384, 32768};
  std::vector<int64_t> widths = {4, 1};
  std::string only;
  bool keeps_timelines = false;
};

using Kind = BenchWay::Kind;
using Made = absl::StatusOr<BenchOutput>;

Made OutputOf(absl::StatusOr<Tensor> tensor) {
  if (!tensor.ok()) return tensor.status();
  return BenchOutput{*std::move(tensor), "", {}};
}

BenchWay Gemm() {
  return {"gemm", Kind::kGemm, false, [](Rank& rank, BenchRank& state, Overlap&) -> Made {
            QG_ASSIGN_OR_RETURN(const GemmResult result, rank.engine().Gemm(state.whole, nullptr));
            return BenchOutput{result.d, result.note, {}};
          }};
}

BenchWay AllGather(std::string name, bool by_copies) {
  return {std::move(name), Kind::kCommunication, by_copies,
          [](Rank& rank, BenchRank& state, Overlap&) {
            return OutputOf(rank.group(kWorldGroup).AllGather(state.shard.data));
          }};
}

std::vector<int64_t> RowsOf(const BenchRank& state, int size) {
  return std::vector<int64_t>(static_cast<size_t>(size), state.partial.shape()[0] / size);
}

BenchWay ReduceScatter(std::string name, ReductionProfile profile, bool by_copies) {
  return {
      std::move(name), Kind::kCommunication, by_copies,
      [profile](Rank& rank, BenchRank& state, Overlap&) {
        ProcessGroup& group = rank.group(kWorldGroup);
        return OutputOf(group.ReduceScatter(state.partial, RowsOf(state, group.size()), profile));
      }};
}

BenchWay Gathering(std::string name, const AllGatherGemmCall& how) {
  return {std::move(name), Kind::kBoth, false,
          [how](Rank&, BenchRank& state, Overlap& overlap) -> Made {
            AllGatherGemmCall call = how;
            call.name = {"bench", "fc1_fprop", "bench"};
            call.gemm = state.whole;
            call.gemm.a = state.shard;
            QG_ASSIGN_OR_RETURN(GatheredGemm done, overlap.AllGatherGemm(call));
            QG_RETURN_IF_ERROR(done.gathered.Release());
            return BenchOutput{done.gemm.d, done.gemm.note, done.timeline};
          }};
}

BenchWay Reducing(std::string name, const ReduceScatterGemmCall& how) {
  return {std::move(name), Kind::kBoth, false,
          [how](Rank& rank, BenchRank& state, Overlap& overlap) -> Made {
            ReduceScatterGemmCall call = how;
            call.name = {"bench", "fc2_fprop", "bench"};
            call.gemm = state.whole;
            call.rows = RowsOf(state, rank.group(kWorldGroup).size());
            QG_ASSIGN_OR_RETURN(ScatteredGemm done, overlap.ReduceScatterGemm(call));
            return BenchOutput{done.y, done.gemm.note, done.timeline};
          }};
}

/// The first of kind kBoth is what the bits of the others are compared with.
std::vector<BenchWay> WaysToGather(int ranks) {
  std::vector<BenchWay> ways = {Gemm(), AllGather("all-gather by nccl", false),
                                AllGather("all-gather by peer copies", true),
                                Gathering("gather, then gemm", {.method = OverlapMethod::kNone})};
  for (const int pieces : {1, 2, 4, 8}) {
    ways.push_back(Gathering(absl::StrCat("ring_exchange, pieces ", pieces), {.pieces = pieces}));
  }
  if (ranks % 2 == 0) ways.push_back(Gathering("ring_exchange, aggregate", {.aggregate = true}));
  return ways;
}

std::vector<BenchWay> WaysToReduce() {
  const ReductionProfile order{ReductionKind::kUbP2p};
  std::vector<BenchWay> ways = {
      Gemm(), ReduceScatter("reduce-scatter in order, by nccl", order, false),
      ReduceScatter("reduce-scatter in order, by peer copies", order, true),
      ReduceScatter("ncclReduceScatter", {ReductionKind::kNccl}, false),
      Reducing("gemm, then reduce-scatter", {.method = OverlapMethod::kNone, .profile = order})};
  for (const int pieces : {1, 2, 4, 8}) {
    ways.push_back(Reducing(absl::StrCat("ring_exchange, pieces ", pieces), {.pieces = pieces}));
  }
  for (const int splits : {2, 4, 8}) {
    ways.push_back(
        Reducing(absl::StrCat("pipeline, splits ", splits),
                 {.method = OverlapMethod::kPipeline, .profile = order, .splits = splits}));
  }
  return ways;
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Medians over rounds in which the ways take turns, so that all see the same clocks.
std::vector<double> TimeWays(BenchRanks& ranks, const std::vector<BenchWay>& ways) {
  std::vector<int> calls;
  for (const BenchWay& way : ways) {
    const double one = MedianOf(ranks.TimeCalls(way, 3));
    calls.push_back(std::clamp(static_cast<int>(std::ceil(kBatchSeconds / one)), 5, 50));
  }
  std::vector<std::vector<double>> seconds(ways.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const std::vector<double> batch = ranks.TimeCalls(ways[i], calls[i]);
      seconds[i].insert(seconds[i].end(), batch.begin(), batch.end());
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_way : seconds) medians.push_back(MedianOf(std::move(of_way)));
  return medians;
}

/// The larger of the GEMM and of the fastest communication.
double LargerAlone(const std::vector<BenchWay>& ways, const std::vector<double>& seconds) {
  std::map<Kind, double> alone;
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto [known, is_new] = alone.emplace(ways[i].kind, seconds[i]);
    if (!is_new) known->second = std::min(known->second, seconds[i]);
  }
  return std::max(alone.at(Kind::kGemm), alone.at(Kind::kCommunication));
}

void PrintTimeline(const OverlapTimeline& timeline) {
  const OverlapFigures figures = FiguresOf(timeline);
  std::printf(
      "  rank 0: total %.3f ms, compute %.3f, communication %.3f, exposed %.3f, idle %.3f\n",
      figures.total_s * 1e3, figures.compute_s * 1e3, figures.communication_s * 1e3,
      figures.exposed_s * 1e3, figures.idle_s * 1e3);
  for (const TaskRecord& task : timeline.tasks) {
    std::printf("    %8.3f %8.3f  %-8s %s\n", task.begin_s * 1e3, task.end_s * 1e3,
                std::string(OverlapResourceName(task.resource)).c_str(), task.name.c_str());
  }
}

/// One of the two operations at one shape in one precision.
void RunCase(BenchRanks& ranks, const Options& options, const std::string& operation,
             const BenchShape& shape, bool is_fp8, std::vector<BenchWay> ways) {
  const std::string payload = is_fp8 ? "fp8" : "bf16";
  const std::string text = absl::StrCat(operation, " ", payload, " ");
  const auto first = std::find_if(ways.begin(), ways.end(),
                                  [](const BenchWay& way) { return way.kind == Kind::kBoth; });
  const auto is_unwanted = [&](const BenchWay& way) {
    return !absl::StrContains(text + way.name, options.only);
  };
  ways.erase(std::remove_if(std::next(first), ways.end(), is_unwanted), ways.end());
  if (std::next(first) == ways.end()) return;  // Nothing of this case is asked for.
  ranks.Make(shape, is_fp8);
  const std::vector<double> seconds = TimeWays(ranks, ways);
  const double alone = LargerAlone(ways, seconds);
  std::string reference;
  for (size_t i = 0; i < ways.size(); ++i) {
    std::string bits, note;
    if (ways[i].kind == Kind::kBoth) {
      const std::vector<BenchOutput> outputs = ranks.RunOnce(ways[i], false);
      const std::string fingerprints = ranks.FingerprintsOf(outputs);
      if (reference.empty()) reference = fingerprints;
      bits = fingerprints == reference ? "same" : "other";
      note = outputs[0].note;
    }
    std::printf(R"({"program": "quantgate", "operation": "%s", "payload": "%s", "ranks": %d, )"
                R"("tokens": %lld, "n": %lld, "k": %lld, "way": "%s", "ms": %.4f, "ratio": %.3f, )"
                R"("bits": "%s", "note": "%s"})"
                "\n",
                operation.c_str(), payload.c_str(), ranks.size(),
                static_cast<long long>(shape.tokens), static_cast<long long>(shape.n),
                static_cast<long long>(shape.k), ways[i].name.c_str(), seconds[i] * 1e3,
                seconds[i] / alone, bits.c_str(), note.c_str());
    if (options.keeps_timelines && ways[i].kind == Kind::kBoth) {
      ranks.RunOnce(ways[i], true);  // Warms up.
      PrintTimeline(ranks.RunOnce(ways[i], true)[0].timeline);
    }
    std::fflush(stdout);
  }
  ranks.Drop();
}

void RunAll(const Options& options) {
  BenchRanks ranks(options.ranks);
  std::printf("%s\n", ranks.Text().c_str());
  for (const int64_t width : options.widths) {
    for (const int64_t hidden : options.hidden) {
      const int64_t features = width * hidden / options.ranks;
      for (const bool is_fp8 : {false, true}) {
        RunCase(ranks, options, "all_gather_gemm", {options.tokens, features, hidden}, is_fp8,
                WaysToGather(options.ranks));
        RunCase(ranks, options, "gemm_reduce_scatter", {options.tokens, hidden, features}, is_fp8,
                WaysToReduce());
      }
    }
  }
}

[[noreturn]] void ExitWithUsage(const std::string& problem) {
  std::fprintf(stderr,
               "%s\nusage: overlap_cuda_bench [--ranks N] [--tokens M] [--hidden H,H,...] "
               "[--widths W,W,...] [--only TEXT] [--timelines]\n",
               problem.c_str());
  std::exit(2);
}

std::vector<int64_t> NumbersOf(std::string_view name, const std::string& text) {
  std::vector<int64_t> numbers;
  for (const auto part : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back()) || numbers.back() < 1) {
      ExitWithUsage(absl::StrCat(std::string(name), " is ", text, ": expected numbers >= 1"));
    }
  }
  return numbers;
}

Options ParsedOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--timelines") {
      options.keeps_timelines = true;
      continue;
    }
    if (i + 1 == argc) ExitWithUsage(absl::StrCat(std::string(name), ": no such flag or no value"));
    const std::string value = argv[++i];
    if (name == "--ranks") {
      options.ranks = static_cast<int>(NumbersOf(name, value)[0]);
    } else if (name == "--tokens") {
      options.tokens = NumbersOf(name, value)[0];
    } else if (name == "--hidden") {
      options.hidden = NumbersOf(name, value);
    } else if (name == "--widths") {
      options.widths = NumbersOf(name, value);
    } else if (name == "--only") {
      options.only = value;
    } else {
      ExitWithUsage(absl::StrCat(std::string(name), ": no such flag"));
    }
  }
  if (options.ranks < 2 || options.ranks > kWorldSizeMax) {
    ExitWithUsage(absl::StrCat("--ranks is ", options.ranks, ": expected 2 to ", kWorldSizeMax));
  }
  return options;
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  const quantgate::Options options = quantgate::ParsedOptions(argc, argv);
  const auto devices = quantgate::CountCudaDevices();
  if (!devices.ok() || *devices < options.ranks) {
    std::printf("left out: %d ranks need as many GPUs, and here %s\n", options.ranks,
                devices.ok() ? absl::StrCat("there are ", *devices).c_str()
                             : std::string(devices.status().message()).c_str());
    return 0;
  }
  quantgate::RunAll(options);
  return 0;
}
