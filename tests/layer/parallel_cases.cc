#include "tests/layer/parallel_cases.h"

#include <cstring>
#include <utility>

#include "kernels/layer/layer_program.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

/// The parameter that a gradient is of; none for y, dx, norm_out.
std::string ParameterOf(const LayerSpec& spec, const std::string& output) {
  for (const LayerParameter& parameter : ParametersOf(spec)) {
    if (output == parameter.gradient || output == parameter.main_grad) return parameter.name;
  }
  return "";
}

Tensor JoinPieces(const std::vector<Tensor>& parts, const ShardRule& rule) {
  const bool is_rows = rule.dim == 0;
  std::vector<Tensor> pieces;
  for (int piece = 0; piece < rule.parts; ++piece) {
    for (const Tensor& part : parts) {
      EXPECT_TRUE(rule.parts == 1 || is_rows) << "columns in one part only";
      const int64_t count = part.shape()[0] / rule.parts;
      pieces.push_back(rule.parts == 1 ? part : RowsOf(part, piece * count, count));
    }
  }
  return is_rows ? JoinRowsByHand(pieces) : JoinColumnsByHand(pieces);
}

}  // namespace

TestWorld::TestWorld(int size, ScheduleNoise noise) {
  WorldOptions options;
  options.noise = noise;
  for (int i = 0; i < size; ++i) {
    engines_.push_back(MakeCpuEngine({.threads = 1}));
    options.engines.push_back(engines_.back().get());
  }
  world_ = *World::Create(std::move(options));
  std::vector<int> all;
  for (int i = 0; i < size; ++i) all.push_back(i);
  EXPECT_TRUE(world_->AddGroups("tp", {all}).ok());
}

ParallelStep StepOf(const ParallelSetup& setup, ProcessGroup& tp) {
  return {.tp = &tp,
          .sequence_parallel = setup.sequence_parallel,
          .profile = setup.profile,
          .rows = setup.rows,
          .column_overlap = setup.column_overlap,
          .row_overlap = setup.row_overlap};
}

LayerRequest AloneShard(const LayerRequest& whole, int rank, int size) {
  const auto engine = MakeCpuEngine({.threads = 1});
  ParallelStep step;
  step.size_without_group = size;
  step.rank_without_group = rank;
  LayerRequest shard = *ShardLayer(*engine, whole, step);
  shard.parallel = nullptr;
  return shard;
}

absl::StatusOr<std::unique_ptr<RankPart>> RankPart::Make(Rank& rank, const LayerRequest& whole,
                                                         const ParallelSetup& setup) {
  auto part = std::make_unique<RankPart>(rank);
  ParallelStep step = StepOf(setup, rank.group("tp"));
  QG_ASSIGN_OR_RETURN(part->overlap, Overlap::Create(*step.tp, part->buffers,
                                                     {.keeps_timelines = setup.keeps_timelines}));
  step.overlap = part->overlap.get();
  QG_ASSIGN_OR_RETURN(part->request, ShardLayer(rank.engine(), whole, std::move(step)));
  return part;
}

absl::StatusOr<std::vector<LayerResult>> TryRanks(World& world, const LayerRequest& whole,
                                                  const Recipe& recipe,
                                                  const Arithmetic& arithmetic,
                                                  const ParallelSetup& setup) {
  std::vector<LayerResult> results(static_cast<size_t>(setup.size));
  const absl::Status status = world.Run(
      [&](Rank& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(const auto part, RankPart::Make(rank, whole, setup));
        QG_ASSIGN_OR_RETURN(results[static_cast<size_t>(rank.index())],
                            RunLayer(rank.engine(), part->request, recipe, arithmetic, nullptr));
        return absl::OkStatus();
      },
      nullptr);
  if (!status.ok()) return status;
  return results;
}

absl::StatusOr<std::vector<LayerResult>> TryRanks(const LayerRequest& whole, const Recipe& recipe,
                                                  const ParallelSetup& setup) {
  TestWorld world(setup.size, setup.noise);
  return TryRanks(world.world(), whole, recipe, Arithmetic{}, setup);
}

std::vector<LayerResult> RunRanks(const LayerRequest& whole, const Recipe& recipe,
                                  const ParallelSetup& setup) {
  auto results = TryRanks(whole, recipe, setup);
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *std::move(results)
                      : std::vector<LayerResult>(static_cast<size_t>(setup.size));
}

Tensor Joined(const LayerSpec& spec, const std::string& output, bool sequence_parallel,
              const std::vector<LayerResult>& results) {
  std::vector<Tensor> parts;
  for (const LayerResult& result : results) parts.push_back(OutputOf(result, output));
  const std::string parameter = ParameterOf(spec, output);
  ShardRule rule;
  bool is_by_rows = false;
  if (!parameter.empty()) {
    rule = ParameterShardRule(spec, parameter);
  } else if (output == "y") {
    rule = OutputColumns(spec);
    is_by_rows = sequence_parallel && DividesOutputRows(spec);
  } else if (output == "dx") {
    rule = InputColumns(spec);
    is_by_rows = sequence_parallel && DividesInputRows(spec);
  }
  if (is_by_rows) return JoinRowsByHand(parts);
  if (rule.dim != -1) return JoinPieces(parts, rule);
  for (const Tensor& part : parts) EXPECT_TRUE(SameBits(part, parts[0])) << output;
  return parts[0];
}

Tensor SumByHand(const std::vector<Tensor>& parts) {
  std::vector<float> sum = ToValues(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::vector<float> values = ToValues(parts[i]);
    for (size_t at = 0; at < sum.size(); ++at) sum[at] = sum[at] + values[at];
  }
  return FromValues(parts[0].dtype(), parts[0].shape(), sum);
}

Tensor AddRowByHand(const Tensor& x, const Tensor& row) {
  std::vector<float> values = ToValues(x);
  const std::vector<float> added = ToValues(*CastTensor(row, x.dtype(), ExecutionContext()));
  for (size_t at = 0; at < values.size(); ++at) values[at] += added[at % added.size()];
  return FromValues(x.dtype(), x.shape(), values);
}

Tensor RowsOf(const Tensor& tensor, int64_t begin, int64_t count) {
  const size_t row = tensor.byte_size() / static_cast<size_t>(tensor.shape()[0]);
  Shape shape = tensor.shape();
  shape[0] = count;
  return *Tensor::FromBytes(
      tensor.dtype(), shape,
      tensor.bytes().subspan(static_cast<size_t>(begin) * row, static_cast<size_t>(count) * row));
}

Tensor JoinRowsByHand(const std::vector<Tensor>& parts) {
  Shape shape = parts[0].shape();
  std::vector<std::byte> bytes;
  shape[0] = 0;
  for (const Tensor& part : parts) {
    shape[0] += part.shape()[0];
    bytes.insert(bytes.end(), part.bytes().begin(), part.bytes().end());
  }
  return *Tensor::FromBytes(parts[0].dtype(), shape, bytes);
}

Tensor JoinColumnsByHand(const std::vector<Tensor>& parts) {
  Shape shape = parts[0].shape();
  shape.back() = 0;
  for (const Tensor& part : parts) shape.back() += part.columns();
  std::vector<std::byte> bytes;
  for (int64_t row = 0; row < parts[0].rows(); ++row) {
    for (const Tensor& part : parts) {
      const size_t width = static_cast<size_t>(part.columns()) * DTypeBytes(part.dtype());
      const auto line = part.bytes().subspan(static_cast<size_t>(row) * width, width);
      bytes.insert(bytes.end(), line.begin(), line.end());
    }
  }
  return *Tensor::FromBytes(parts[0].dtype(), shape, bytes);
}

LayerRequest SquareLinear(ParallelMode mode, int64_t rows, int64_t columns) {
  LayerRequest request;
  request.layer.kind = LayerKind::kLinear;
  request.layer.parallel_mode = mode;
  request.x = Generated(Distribution::kLogNormalOutliers, 1, DType::kBF16, {rows, columns});
  request.grad_output = Generated(Distribution::kNormal, 2, DType::kBF16, {rows, columns});
  request.parameters["weight"] =
      Generated(Distribution::kNormal, 3, DType::kF32, {columns, columns});
  request.parameters["bias"] = Generated(Distribution::kNormal, 4, DType::kBF16, {columns});
  request.seed = 7;
  return request;
}

}  // namespace quantgate
