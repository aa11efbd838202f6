// Layers divided over the ranks of a world on the CPU, and comparisons of them with one rank.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/comm/group/world.h"
#include "kernels/comm/overlap/overlap.h"
#include "kernels/layer/layer_sharding.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {

/// Recipes under which a rank's part equals what the part gives alone on one rank.
inline constexpr const char* kDividedRecipes[] = {
    "bf16",
    "bf16:activation_dtype=f16",
    "fp8_delayed",
    R"(custom:rules=[{"quantizer":"fp8_delayed"}])",
    "fp8_current",
    "fp8_current:backward_override=high_precision",
    "fp8_current:backward_override=dequantized",
    "fp8_rowwise",
    "fp8_rowwise:backward_override=high_precision",
    "fp8_rowwise:backward_override=dequantized",
    "fp8_block",
    "fp8_block:x_block_dim=2,w_block_dim=1,grad_block_dim=1",
    "fp8_block:backward_override=high_precision",
    "fp8_block:backward_override=dequantized",
    "mxfp8",
    "mxfp8:backward_override=high_precision",
    "mxfp8:backward_override=dequantized",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "mxfp4:backward_override=dequantized",
    "nvfp4:disable_stochastic_rounding=true",
    "nvfp4:disable_stochastic_rounding=true,disable_rht=true",
    "nvfp4:backward_override=high_precision",
    "nvfp4:backward_override=dequantized",
    "nvfp4:disable_rht=true,row_scaled_activation=true,backward_override=dequantized",
    // Other libraries' steps, under the amax of all ranks where there is one.
    "fp8_current:scale_rule=inverse,scale_dtype=source,element_operation=divide,"
    "operation_dtype=source,zero_scale=dtype_epsilon,zero_sign=drop",
    "fp8_block:scale_rule=reciprocal_product,element_operation=reciprocal",
    "mxfp8:scale_rule=torchao_rceil",
    "mxfp4:scale_rule=gguf,element_rounding=nearest_zero,zero_sign=drop_rounded",
    "nvfp4:disable_rht=true,disable_stochastic_rounding=true,scale_rule=vllm,zero_sign=drop",
};

struct ParallelSetup {
  int size = 2;
  bool sequence_parallel = false;
  ReductionProfile profile = {};
  std::vector<int64_t> rows = {};  ///< ParallelStep::rows.
  ScheduleNoise noise = {};
  OverlapPlan column_overlap = {}, row_overlap = {};
  bool keeps_timelines = false;
};

/// N ranks of one thread each, in one group "tp".
class TestWorld {
 public:
  explicit TestWorld(int size, ScheduleNoise noise = {});
  World& world() { return *world_; }

 private:
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<World> world_;
};

/// The step of one rank, without its end of overlapped calls.
ParallelStep StepOf(const ParallelSetup& setup, ProcessGroup& tp);
/// A rank's part of a whole request, with its end of overlapped calls.
struct RankPart {
  static absl::StatusOr<std::unique_ptr<RankPart>> Make(Rank& rank, const LayerRequest& whole,
                                                        const ParallelSetup& setup);
  explicit RankPart(Rank& rank) : buffers(rank.engine()) {}

  OverlapBuffers buffers;
  std::unique_ptr<Overlap> overlap;
  LayerRequest request;
};

/// The part of rank `rank` of a whole request, as a request of one rank: without a group and with
/// all of dim 0.
LayerRequest AloneShard(const LayerRequest& whole, int rank, int size);

/// Results by rank.
std::vector<LayerResult> RunRanks(const LayerRequest& whole, const Recipe& recipe,
                                  const ParallelSetup& setup);
absl::StatusOr<std::vector<LayerResult>> TryRanks(const LayerRequest& whole, const Recipe& recipe,
                                                  const ParallelSetup& setup);

/// The same on the ranks of a world with one group "tp"; results are in the memory of their
/// engines.
absl::StatusOr<std::vector<LayerResult>> TryRanks(World& world, const LayerRequest& whole,
                                                  const Recipe& recipe,
                                                  const Arithmetic& arithmetic,
                                                  const ParallelSetup& setup);

/// The whole layer's output from those of all ranks: joined if it is divided, else rank 0's, which
/// must equal every other rank's. Not for outputs that are summands of rows (db of a row-parallel
/// layer under sequence parallelism).
Tensor Joined(const LayerSpec& spec, const std::string& output, bool sequence_parallel,
              const std::vector<LayerResult>& results);

/// p0 + p1 + ... in fp32, in this order, rounded once to the dtype of the parts; independent of the
/// code under test.
Tensor SumByHand(const std::vector<Tensor>& parts);
/// x + row in every row, in fp32, rounded to x's dtype.
Tensor AddRowByHand(const Tensor& x, const Tensor& row);
Tensor RowsOf(const Tensor& tensor, int64_t begin, int64_t count);
Tensor JoinRowsByHand(const std::vector<Tensor>& parts);
Tensor JoinColumnsByHand(const std::vector<Tensor>& parts);

/// `rows` of `columns` to as many columns, with a bias.
LayerRequest SquareLinear(ParallelMode mode, int64_t rows, int64_t columns);

}  // namespace quantgate
