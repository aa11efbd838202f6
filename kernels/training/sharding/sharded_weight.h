// A weight whose rows are divided over the ranks of a group (FSDP) and gathered when a pass needs
// it (docs/ranks.md section 6). The group is an argument of every collective call; all its
// members, also those without rows, must make the same calls.
//
// | format                | gathered for forward       | for backward               |
// |-----------------------|----------------------------|----------------------------|
// | per-tensor FP8        | rowwise codes              | the same, then transposed  |
// | mxfp8                 | rowwise codes and scales   | columnwise codes, scales   |
// | fp8_rowwise           | rowwise codes and scales   | columnwise codes; scales of|
// |                       |                            | columns are on all ranks   |
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
  std::string name;    ///< The weight's name in errors: "fc1.weight".
  Shape shape;         ///< The whole weight's: [O][K].
  ShardBounds bounds;  ///< The rows of each rank.
  Quantizer quantizer;
  /// The directions that passes read: rowwise, and columnwise if there is a backward.
  Usages usages = {true, true};
  WeightStorage storage = WeightStorage::kQuantized;
  /// False: the weight that forward gathered, in every usage, is kept for backward.
  bool reshard_after_forward = true;
};

/// Whether columnwise codes are the gathered rowwise codes transposed, so that a shard need not
/// have columnwise codes.
bool IsTurnedAfter(const Quantizer& quantizer);

enum class WeightPass { kForward, kBackward };

class ShardedWeight {
 public:
  /// INVALID_ARGUMENT naming weight, field and rule: bounds; shards of block formats that do not
  /// begin at a block; 1-D blocks of fp8_block, and of nvfp4 for backward; nvfp4 under two rules
  /// or, for backward, with stochastic rounding or 4over6, whose transposed codes are not the
  /// columnwise ones; row-scaled nvfp4; columnwise amaxes of rowwise codes (CheckGroupAmaxes).
  static absl::StatusOr<ShardedWeight> Create(ShardedWeightSpec spec, int ranks);

  /// Quantizes this rank's rows (f32, bf16 or f16; the first call sets the dtype of the weight)
  /// with the amax of all ranks' rows, fp8_rowwise columnwise with those of their columns. Drops
  /// what was gathered before. `arguments`: seed, call_id and, under delayed scaling, scale; the
  /// offset of the rows is added. `amax_group`: the scale comes from the largest amax of the
  /// group's members, each the amax of all ranks' rows. All ranks must name the same group, except
  /// for members that have rows of the same weight.
  absl::Status Update(const GatherContext& context, const Tensor& rows, QuantizeArguments arguments,
                      ProcessGroup* amax_group = nullptr);
  /// Replaces this rank's rows by rows that were quantized before, such as a checkpoint's. They
  /// must have the shapes and formats that Update gives, in the directions that later gathers read.
  absl::Status Replace(QuantizedTensor shard);

  /// The whole weight in the usages of this pass. FAILED_PRECONDITION before the first Update, and,
  /// on every rank, if the ranks have different scales of the whole tensor.
  absl::StatusOr<QuantizedTensor> Gather(const GatherContext& context, WeightPass pass);
  /// Drops the weight that is kept between forward and backward.
  void Reshard() { gathered_.reset(); }

  /// This rank's quantized rows.
  const QuantizedTensor& shard() const { return shard_; }
  /// max |x| over all ranks' rows in the last Update, f32 [1], under delayed scaling; else absent.
  const Tensor& delayed_amax() const { return delayed_amax_; }

 private:
  explicit ShardedWeight(ShardedWeightSpec spec) : spec_(std::move(spec)) {}

  bool is_hybrid() const;
  Usages UsagesOf(WeightPass pass) const;
  absl::StatusOr<QuantizedTensor> GatherRule(const GatherContext& context, Usages usages);
  absl::StatusOr<QuantizedTensor> GatherHybrid(const GatherContext& context);
  absl::StatusOr<QuantizedTensor> QuantizeGathered(const GatherContext& context, Usages usages);
  /// The columnwise copy of this rank's rows under the scales of all ranks' columns (fp8_rowwise).
  absl::StatusOr<QuantizedCopy> ColumnsOf(const GatherContext& context, const Tensor& rows) const;
  void SeedGatherFaults(const GatherContext& context, QuantizedTensor& whole);

  ShardedWeightSpec spec_;
  std::optional<DType> dtype_;  ///< The dtype of the weight, also if an update has another.
  QuantizedTensor shard_;
  Tensor rows_;                  ///< This rank's rows, under WeightStorage::kHighPrecision.
  QuantizeArguments arguments_;  ///< Those of the last update, without row offsets.
  Tensor delayed_amax_;
  std::optional<QuantizedTensor> gathered_;
  std::optional<QuantizedTensor> first_;  ///< Only what seeded faults read.
};

}  // namespace quantgate
