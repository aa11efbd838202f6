#include "tests/comm/overlap/overlap_bench_ranks.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/engine/cuda_module.h"

namespace quantgate {
namespace {

constexpr int kWarmUpCalls = 3;
constexpr size_t kCallsUnderWay = 2;

absl::StatusOr<Tensor> Normal(Engine& engine, uint64_t seed, Shape shape) {
  return engine.Generate({.seed = seed, .dtype = DType::kBF16, .shape = std::move(shape)}, nullptr);
}

/// Rowwise, under the largest of the ranks' amaxes.
absl::StatusOr<GemmOperand> Quantized(Rank& rank, const Tensor& source) {
  const Quantizer quantizer(QuantizerSpec{.format = QuantizerFormat::kFp8Tensor});
  const Usages usages{.rowwise = true, .columnwise = false};
  QuantizeArguments arguments;
  const GatherContext context{rank.engine(), rank.group(kWorldGroup), rank.faults()};
  QG_RETURN_IF_ERROR(ReduceAmaxes(context, source, quantizer, usages, arguments));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                      rank.engine().Quantize(source, quantizer, usages, arguments, nullptr));
  return OperandOf(*quantized.rowwise);
}

absl::Status MakeRank(Rank& rank, const BenchShape& shape, bool is_fp8, int size,
                      BenchRank& state) {
  Engine& engine = rank.engine();
  ProcessGroup& group = rank.group(kWorldGroup);
  const auto seed = static_cast<uint64_t>(rank.index());
  QG_ASSIGN_OR_RETURN(state.shard.data, Normal(engine, 1 + seed, {shape.tokens / size, shape.k}));
  QG_ASSIGN_OR_RETURN(state.whole.b.data, Normal(engine, 101 + seed, {shape.n, shape.k}));
  if (is_fp8) {
    QG_ASSIGN_OR_RETURN(state.shard, Quantized(rank, state.shard.data));
    QG_ASSIGN_OR_RETURN(state.whole.b, Quantized(rank, state.whole.b.data));
  }
  state.whole.a = state.shard;
  QG_ASSIGN_OR_RETURN(state.whole.a.data, group.AllGather(state.shard.data));
  state.whole.out_dtype = DType::kBF16;
  QG_ASSIGN_OR_RETURN(state.whole.arithmetic, Arithmetic::Parse("cublaslt"));
  QG_ASSIGN_OR_RETURN(const GemmResult partial, engine.Gemm(state.whole, nullptr));
  state.partial = partial.d;
  if (state.overlap != nullptr) return absl::OkStatus();
  state.buffers = std::make_unique<OverlapBuffers>(engine);
  QG_ASSIGN_OR_RETURN(state.overlap, Overlap::Create(group, *state.buffers));
  QG_ASSIGN_OR_RETURN(state.timed_overlap,
                      Overlap::Create(group, *state.buffers, {.keeps_timelines = true}));
  return absl::OkStatus();
}

}  // namespace

BenchRanks::BenchRanks(int size) : ranks_(static_cast<size_t>(size)) {
  WorldOptions options;
  for (int rank = 0; rank < size; ++rank) {
    engines_.push_back(ValueOrDie(MakeCudaEngine(rank)));
    options.engines.push_back(engines_.back().get());
  }
  copies_ = ValueOrDie(World::Create(options));
  options.backend = CollectiveBackend::kNccl;
  nccl_ = ValueOrDie(World::Create(std::move(options)));
}

// What is asked of a group goes before the group.
BenchRanks::~BenchRanks() { ranks_.clear(); }

std::string BenchRanks::Text() const {
  const DeviceDescription device = engines_[0]->Describe();
  return absl::StrCat(engines_.size(), " x ", device.name, ", driver ", device.driver, ", CUDA ",
                      device.cuda, ", cuBLASLt ", device.cublaslt, ", ", nccl_->transport().name());
}

void BenchRanks::RunOnRanks(const BenchWay& way, const std::function<absl::Status(Rank&)>& body) {
  DieUnlessOk((way.by_copies ? copies_ : nccl_)->Run(body, nullptr));
}

void BenchRanks::Make(const BenchShape& shape, bool is_fp8) {
  Drop();
  RunOnRanks({}, [&](Rank& rank) {
    return MakeRank(rank, shape, is_fp8, size(), ranks_[static_cast<size_t>(rank.index())]);
  });
}

void BenchRanks::Drop() {
  for (BenchRank& rank : ranks_) {
    rank.whole = {};
    rank.shard = {};
    rank.partial = {};
  }
}

std::vector<double> BenchRanks::TimeCalls(const BenchWay& way, int calls) {
  std::vector<std::vector<double>> seconds(ranks_.size());
  RunOnRanks(way, [&](Rank& rank) -> absl::Status {
    const auto index = static_cast<size_t>(rank.index());
    BenchRank& state = ranks_[index];
    std::deque<std::unique_ptr<Stopwatch>> under_way;
    const auto end_one = [&]() -> absl::Status {
      QG_ASSIGN_OR_RETURN(seconds[index].emplace_back(), under_way.front()->Seconds());
      under_way.pop_front();
      return absl::OkStatus();
    };
    for (int call = 0; call < kWarmUpCalls + calls; ++call) {
      under_way.push_back(rank.engine().StartStopwatch());
      QG_RETURN_IF_ERROR(way.run(rank, state, *state.overlap).status());
      QG_RETURN_IF_ERROR(under_way.back()->Stop());
      if (under_way.size() > kCallsUnderWay) QG_RETURN_IF_ERROR(end_one());
    }
    while (!under_way.empty()) QG_RETURN_IF_ERROR(end_one());
    return absl::OkStatus();
  });
  std::vector<double> slowest(static_cast<size_t>(calls), 0.0);
  for (const std::vector<double>& of_rank : seconds) {
    for (size_t call = 0; call < slowest.size(); ++call) {
      slowest[call] = std::max(slowest[call], of_rank[call + kWarmUpCalls]);
    }
  }
  return slowest;
}

std::vector<BenchOutput> BenchRanks::RunOnce(const BenchWay& way, bool keeps_timelines) {
  std::vector<BenchOutput> outputs(ranks_.size());
  RunOnRanks(way, [&](Rank& rank) -> absl::Status {
    const auto index = static_cast<size_t>(rank.index());
    BenchRank& state = ranks_[index];
    QG_ASSIGN_OR_RETURN(
        outputs[index],
        way.run(rank, state, keeps_timelines ? *state.timed_overlap : *state.overlap));
    return absl::OkStatus();
  });
  return outputs;
}

std::string BenchRanks::FingerprintsOf(const std::vector<BenchOutput>& outputs) {
  std::string text;
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    const Tensor& tensor = outputs[rank].tensor;
    absl::StrAppend(&text, ValueOrDie(engines_[rank]->FingerprintOf(tensor, nullptr)).Hex());
  }
  return text;
}

}  // namespace quantgate
