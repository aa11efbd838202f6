// A weight whose rows are divided over the ranks of a group (FSDP) and put together when a pass
// needs it: docs/ranks.md section 6. The group is an argument of every call that meets it;
// all its members call alike, those without rows too.
//
// | format                | gathered for forward       | for backward               |
// |-----------------------|----------------------------|----------------------------|
// | per-tensor FP8        | rowwise codes              | the same, then transposed  |
// | mxfp8                 | rowwise codes and scales   | columnwise codes, scales   |
// | fp8_block, tiles      | rowwise codes and scales   | the same, then transposed  |
// | nvfp4, tiles          | rowwise codes and scales   | the same, then transposed  |
// | directions of two     | both directions            | both directions            |
// | rules                 |                            |                            |
// | held in high precision| the rows; quantized whole  | likewise                   |
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/training/sharding/shard_bounds.h"
#include "kernels/training/training_session.h"

namespace quantgate {

struct ShardedWeightSpec {
  std::string name;    ///< In errors: "fc1.weight".
  Shape shape;         ///< Of the whole weight: [O][K].
  ShardBounds bounds;  ///< Rows of each rank.
  Quantizer quantizer;
  /// What passes read: rowwise, and columnwise where there is a backward.
  Usages usages = {true, true};
  WeightStorage storage = WeightStorage::kQuantized;
  /// False: what was gathered for forward is kept for backward, in every usage.
  bool reshard_after_forward = true;
};

/// Whether the directions' rules differ, or columnwise codes are made from rowwise ones.
bool HasTwoRules(const Quantizer& quantizer);
/// Whether columnwise codes are gathered as rowwise ones and turned: a shard need not have them.
bool IsTurnedAfter(const Quantizer& quantizer);

enum class WeightPass { kForward, kBackward };

class ShardedWeight {
 public:
  /// INVALID_ARGUMENT naming weight, field and rule: bounds; shards of block formats that do not
  /// begin at a block; 1-D blocks of fp8_block, and of nvfp4 for backward; nvfp4 under two rules
  /// or, for backward, with stochastic rounding or 4over6, whose transposed codes are not the
  /// columnwise ones; row-scaled nvfp4; columnwise amaxes of rowwise codes (CheckGroupAmaxes).
  static absl::StatusOr<ShardedWeight> Create(ShardedWeightSpec spec, int ranks);

  /// Quantizes this rank's rows (f32, bf16 or f16; the dtype of the weight is that of the first
  /// call) under the amax of all ranks' rows. What was gathered before is dropped. Arguments: seed,
  /// call_id and, under delayed scaling, scale; where the rows begin is added. `amax_group`: the
  /// scale is of the largest of its members' amaxes, each of all ranks' rows; a group that is the
  /// same of all ranks, but for members that have rows of the same weight.
  absl::Status Update(const GatherContext& context, const Tensor& rows, QuantizeArguments arguments,
                      ProcessGroup* amax_group = nullptr);
  /// Rows that were quantized elsewhere, a checkpoint's: with the shapes and formats of Update's,
  /// in the directions that gathers from now on read.
  absl::Status Replace(QuantizedTensor shard);

  /// The whole weight in the usages of this pass. FAILED_PRECONDITION before the first Update, and
  /// on every rank where scales of the whole tensor are not the same on all.
  absl::StatusOr<QuantizedTensor> Gather(const GatherContext& context, WeightPass pass);
  /// Drops what is kept between forward and backward.
  void Reshard() { gathered_.reset(); }

  /// This rank's quantized rows.
  const QuantizedTensor& shard() const { return shard_; }
  /// f32 [1] of the last Update: max |x| over all ranks' rows under delayed scaling; else absent.
  const Tensor& delayed_amax() const { return delayed_amax_; }

 private:
  explicit ShardedWeight(ShardedWeightSpec spec) : spec_(std::move(spec)) {}

  bool is_hybrid() const;
  Usages UsagesOf(WeightPass pass) const;
  absl::StatusOr<QuantizedTensor> GatherRule(const GatherContext& context, Usages usages);
  absl::StatusOr<QuantizedTensor> GatherHybrid(const GatherContext& context);
  absl::StatusOr<QuantizedTensor> QuantizeGathered(const GatherContext& context, Usages usages);
  void SeedGatherFaults(const GatherContext& context, QuantizedTensor& whole);

  ShardedWeightSpec spec_;
  std::optional<DType> dtype_;  ///< Of the weight, whatever updates come through.
  QuantizedTensor shard_;
  Tensor rows_;                  ///< WeightStorage::kHighPrecision.
  QuantizeArguments arguments_;  ///< Of the last update, without places.
  Tensor delayed_amax_;
  std::optional<QuantizedTensor> gathered_;
  std::optional<QuantizedTensor> first_;  ///< Only what seeded faults read.
};

}  // namespace quantgate
