// Quantized tensors whose rows (M) are divided over a group: one amax for all shards, and codes and
// scales joined as if the whole tensor had been quantized (docs/ranks.md section 3).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/process_group.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

/// What the ranks send to gather a divided tensor.
enum class GatherMethod {
  kSource,  ///< The high-precision source; the whole tensor is quantized after the gather.
  kCodes,   ///< Codes and scales of the directions that are read.
  kValues,  ///< The shards' dequantized values, in high precision; the whole is quantized again.
};

/// How an operand of this role is gathered from shards of rows[i] x columns:
/// - kCodes under recipes of one rule with whole blocks in every shard (32 rows and columns under
///   mxfp8, 16 under nvfp4, 128 under fp8_block with 1-D blocks);
/// - kValues under hybrid;
/// - kSource under custom, without a quantizer, under row-scaled nvfp4, fp8_rowwise and 2-D
///   fp8_block, and where a shard has a partial block.
GatherMethod GatherMethodOf(const Recipe& recipe, TensorRole role, std::span<const int64_t> rows,
                            int64_t columns);

/// The directions in which a shard is quantized for kCodes where `wanted` are read of the whole
/// tensor. Per-tensor FP8 sends only rowwise codes, which are transposed after the gather.
Usages ShardUsages(const Quantizer& quantizer, Usages wanted);

/// The engine and the group of a gather, and the faults that tests seed in it.
struct GatherContext {
  Engine& engine;
  ProcessGroup& group;
  const SeededFaults& faults;
  const Cancellation* cancellation = nullptr;
};

/// Puts into `arguments` the maxima over the group of the amaxes that quantizing each shard would
/// find, by one MAX over both directions together. Empty shards take part. Does nothing, and makes
/// no collective call, where the quantizer's rule has no amax of the whole tensor.
absl::Status ReduceAmaxes(const GatherContext& context, const Tensor& shard,
                          const Quantizer& quantizer, Usages usages, QuantizeArguments& arguments);

/// The position of a member's tensors among the `all` tensors of the group: they begin at `first`.
struct AmaxPlaces {
  int64_t first = 0, all = 1;
};
/// As ReduceAmaxes for several tensors, each with an amax of its own, by one MAX over the vector of
/// all tensors' amaxes. A member counts 0 for a tensor that it does not have. `tensors` is not
/// empty and has as many entries as `arguments`.
absl::Status ReduceAmaxesOfAll(const GatherContext& context, std::span<const Tensor> tensors,
                               const AmaxPlaces& places, const Quantizer& quantizer, Usages usages,
                               std::span<QuantizeArguments> arguments);

/// Replaces each amax, f32 [1], by its maximum over the group, by one MAX. Makes no collective call
/// where there are none.
absl::Status ReduceMaxima(const GatherContext& context, std::span<Tensor* const> amaxes);

/// FAILED_PRECONDITION on every member, naming `name` and the direction, unless the parts of a
/// shard's copy that hold for the whole tensor, its per-tensor scale and amax and the scales of
/// columns of fp8_rowwise, are equal on all members.
absl::Status CheckCommonScale(const GatherContext& context, const std::string& name,
                              const QuantizedCopy& copy, Usage usage);

/// The whole tensor in `usages`, from shards that were quantized for kCodes. FAILED_PRECONDITION on
/// every member, naming `name` and before any code moves, unless per-tensor scales and amaxes
/// agree; FAILED_PRECONDITION where a shard lacks a direction. The result's counts are zero, since
/// nothing is quantized here.
absl::StatusOr<QuantizedTensor> GatherCodes(const GatherContext& context, const std::string& name,
                                            const QuantizedTensor& shard, Usages usages);

/// The members' shards in high precision, joined along dim 0. FAILED_PRECONDITION naming `name`
/// unless the result has `rows` rows.
absl::StatusOr<Tensor> GatherRows(const GatherContext& context, const std::string& name,
                                  const Tensor& shard, int64_t rows);

}  // namespace quantgate
