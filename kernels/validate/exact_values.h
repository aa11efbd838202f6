// Exact values of a layer's outputs: the same GEMMs under arithmetic `exact`. Results are kept by
// the identity of their operands, since variants of one run share many of them. Used by one thread.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/content_key.h"

namespace quantgate {

class ExactValues {
 public:
  /// Bits needed and available, in words; asking waits for the GEMM that counts them.
  using Note = std::function<absl::StatusOr<std::string>()>;
  /// One that is known.
  static Note NoteOf(std::string text) {
    return [text = std::move(text)]() -> absl::StatusOr<std::string> { return text; };
  }

  /// One output, each rounded once from the real-number value.
  struct Value {
    Tensor own;  ///< In the output's own dtype.
    Tensor f32;
    Note note;
  };

  ExactValues(Engine& engine, const LayerRequest& request, const Cancellation* cancellation)
      : engine_(engine),
        request_(request),
        cancellation_(cancellation),
        contents_(engine, cancellation) {}

  /// What tensors are known by here. Whoever asks for several values prepares the tensors that they
  /// are of.
  ContentKeys& contents() { return contents_; }

  /// The output or intermediate `name` from the request's original operands, in f32. Of a linear
  /// layer each is one GEMM, rounded once; of others, the whole layer under the recipe bf16 with
  /// activation_dtype=f32 and arithmetic `exact`: every operation rounds to f32. Computed once.
  absl::StatusOr<Tensor> Unquantized(const std::string& name);
  /// The same of a linear layer in two steps, so that a device has these GEMMs to do before anybody
  /// asks what their operands contain: begins the one of that name...
  absl::Status StartUnquantized(const std::string& name);
  /// ...and files all that were begun, for OfGemm to find.
  absl::Status FileUnquantized();

  /// A GEMM that the layer did, on the operands it had.
  absl::StatusOr<Value> OfGemm(const GemmDesc& desc);
  /// A bias's gradient of `dtype`, which sums the rows of `grad_output`.
  absl::StatusOr<Value> OfBiasGradient(const Tensor& grad_output, DType dtype);
  /// An output that no GEMM made: wgrad of an empty batch.
  absl::StatusOr<Value> OfEmptySum(const std::string& name, DType dtype);

 private:
  struct Result {
    Tensor d;
    Note note;
  };
  /// `contents`: ContentsOf(desc).
  absl::StatusOr<Result> Exact(GemmDesc desc, DType out_dtype, const std::string& contents);
  /// The same, whether it is known or not.
  absl::StatusOr<Result> Compute(GemmDesc desc, DType out_dtype);
  absl::StatusOr<Value> InBothDTypes(const GemmDesc& desc);
  absl::StatusOr<GemmDesc> UnquantizedDesc(const std::string& name);
  /// All of a layer of several operations into unquantized_.
  absl::Status RunUnquantized();
  absl::StatusOr<GemmDesc> ColumnSumDesc(const Tensor& grad_output);
  /// What identifies every tensor that the GEMM reads.
  absl::StatusOr<std::string> ContentsOf(const GemmDesc& desc);

  Engine& engine_;
  const LayerRequest& request_;
  const Cancellation* const cancellation_;
  ContentKeys contents_;
  std::map<std::string, Tensor> unquantized_;
  std::map<std::string, Result> exact_;               ///< By what they depend on.
  std::vector<std::pair<GemmDesc, Result>> unfiled_;  ///< Begun, and not yet among exact_.
};

}  // namespace quantgate
