// The ways in which the tensors of ExplainCodesRequest may be read: orientations and packings of
// codes, and orders of scales.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/validate/explain/explain_candidates.h"
#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {

/// Whether stored scales of dtype `given` may be those of a rule that stores `rule`. bf16 and f16
/// may be what a rule gives as f32; u8 is any scale of one byte, i32 four E8M0 codes.
bool IsScaleDType(DType given, DType rule);

/// The scales alone, as they are given: a matrix of their last dim.
StoredCodes AsGiven(const Tensor& scales);

/// The block shapes whose scales have the shape of the given ones.
std::vector<CodeBlocks> BlocksThatFit(const StoredCodes& stored);

/// Of each stored scale the amax of the tile that its block lies in.
std::shared_ptr<const BlockMaxima> MaximaOf(const StoredCodes& stored, const CodeBlocks& blocks,
                                            const ExecutionContext& context);

/// Reads a request. Not thread-safe.
class StoredReader {
 public:
  /// Keeps the references.
  StoredReader(const ExplainCodesRequest& request, const std::vector<float>& source,
               const ExecutionContext& context)
      : request_(request), source_(source), context_(context) {}

  /// The codes as those of a format in an orientation, with the scales as each array that they may
  /// be. Empty if the shape of the codes does not fit.
  absl::StatusOr<std::vector<StoredCodes>> Read(const CodeFormat& format, CodePacking packing,
                                                bool transposed);
  /// Sets the global amax and the amaxes of rows: given ones, or those of the elements.
  void SetAmaxes(StoredCodes& stored) const;

 private:
  enum class Bytes { kOne, kNibbles, kSixBits };
  std::shared_ptr<const CodedElements> Elements(Bytes bytes, bool transposed);
  /// The given scales in the logical layout, as each array that has their type and shape.
  absl::StatusOr<std::vector<Tensor>> LogicalScales(bool transposed) const;

  const ExplainCodesRequest& request_;
  const std::vector<float>& source_;
  const ExecutionContext& context_;
  std::map<std::pair<Bytes, bool>, std::shared_ptr<const CodedElements>> elements_;
};

}  // namespace quantgate
