// Quantized tensors divided along M over a group: one amax for all of them, and codes and scales
// joined as if the whole tensor had been quantized (docs/ranks.md section 3).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/process_group.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

/// What of a divided tensor travels.
enum class GatherMethod {
  kSource,  ///< High precision; the whole is quantized, once.
  kCodes,   ///< Codes and scales of the directions that are read.
  kValues,  ///< What the shards' codes stand for, in high precision; the whole is quantized again.
};

/// How an operand of this role is gathered, from shards of rows[i] x columns: codes under recipes
/// of one rule and whole blocks in every shard (32 rows and columns of mxfp8, 16 of nvfp4, 128 of
/// fp8_block with 1-D blocks); values under hybrid; the source under custom, without a quantizer,
/// of row-scaled nvfp4, 2-D fp8_block, and where a shard has no whole blocks.
GatherMethod GatherMethodOf(const Recipe& recipe, TensorRole role, std::span<const int64_t> rows,
                            int64_t columns);

/// The directions in which a shard is quantized for kCodes, where `wanted` are read of the whole:
/// per-tensor FP8 sends rowwise codes only, which are transposed after.
Usages ShardUsages(const Quantizer& quantizer, Usages wanted);

/// Where a gather runs, and who may disturb it.
struct GatherContext {
  Engine& engine;
  ProcessGroup& group;
  const SeededFaults& faults;
  const Cancellation* cancellation = nullptr;
};

/// Puts into `arguments` the maxima over the group of what quantizing each shard would find by
/// itself: one MAX over both directions together. Nothing where the rule has no amax of the whole
/// tensor: then nobody calls the group. Empty shards take part.
absl::Status ReduceAmaxes(const GatherContext& context, const Tensor& shard,
                          const Quantizer& quantizer, Usages usages, QuantizeArguments& arguments);

/// Which of `all` tensors a member has: those from `first` on.
struct AmaxPlaces {
  int64_t first = 0, all = 1;
};
/// Likewise of several tensors, each by itself, by one MAX over the vector of all tensors' amaxes.
/// A tensor that a member does not have has the amax 0 there. One entry of `arguments` for each of
/// `tensors`, one of which there is at least.
absl::Status ReduceAmaxesOfAll(const GatherContext& context, std::span<const Tensor> tensors,
                               const AmaxPlaces& places, const Quantizer& quantizer, Usages usages,
                               std::span<QuantizeArguments> arguments);

/// Each of these, f32 [1], becomes its maximum over the group, by one MAX; nobody calls the group
/// where there are none.
absl::Status ReduceMaxima(const GatherContext& context, std::span<Tensor* const> amaxes);

/// FAILED_PRECONDITION on every member, naming `name` and the direction, unless what of a shard's
/// copy stands for all shards is the same everywhere: a per-tensor scale, an amax.
absl::Status CheckCommonScale(const GatherContext& context, const std::string& name,
                              const QuantizedCopy& copy, Usage usage);

/// The whole tensor in `usages`, from shards that were quantized under kCodes. Per-tensor scales
/// and amaxes must agree: FAILED_PRECONDITION on every member, before any code moves, naming
/// `name`. FAILED_PRECONDITION where a shard lacks a direction. Counts are left zero: they are of
/// quantizations, and this is none.
absl::StatusOr<QuantizedTensor> GatherCodes(const GatherContext& context, const std::string& name,
                                            const QuantizedTensor& shard, Usages usages);

/// High precision along dim 0. FAILED_PRECONDITION naming `name` unless that gives `rows` entries.
absl::StatusOr<Tensor> GatherRows(const GatherContext& context, const std::string& name,
                                  const Tensor& shard, int64_t rows);

}  // namespace quantgate
