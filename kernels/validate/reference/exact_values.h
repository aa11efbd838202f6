// ExactValues: the exact values of a layer's outputs, from the same GEMMs under arithmetic `exact`.
// Results are kept by the contents of their operands, since variants of one run share many of them.
// Used by one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/run/content_key.h"

namespace quantgate {

class ExactValues {
 public:
  /// Gives a text about the bits that were needed and available. Calling it waits for the GEMM that
  /// counts them.
  using Note = std::function<absl::StatusOr<std::string>()>;
  /// A note whose text is known.
  static Note NoteOf(std::string text) {
    return [text = std::move(text)]() -> absl::StatusOr<std::string> { return text; };
  }

  /// The exact value of one output; both tensors are rounded once from the real number.
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

  /// The keys of tensors. Before asking for several values, start the keys of their operands.
  ContentKeys& contents() { return contents_; }
  /// Call before asking for values of another variant. Files the values of the variant before it
  /// and forgets the keys of that variant's tensors.
  absl::Status BeginVariant();

  /// The output or intermediate `name` computed from the request's original operands, in f32. In a
  /// linear layer each is one GEMM, rounded once. In other layers the whole layer runs under recipe
  /// bf16 with activation_dtype=f32 and arithmetic `exact`, so every operation rounds to f32.
  /// Computed once.
  absl::StatusOr<Tensor> Unquantized(const std::string& name);
  /// Begins to compute Unquantized(name), if the layer is linear.
  absl::Status StartUnquantized(const std::string& name);

  /// The exact value of a GEMM that the layer did, on the operands that it had. Does not wait if no
  /// earlier value has operands of these dtypes and shapes, since none can then be the same.
  absl::StatusOr<Value> OfGemm(const GemmDesc& desc);
  /// The exact value of a bias gradient of `dtype`, which sums the rows of `grad_output`.
  absl::StatusOr<Value> OfBiasGradient(const Tensor& grad_output, DType dtype);
  /// The exact value of an output that no GEMM made: wgrad of an empty batch.
  absl::StatusOr<Value> OfEmptySum(const std::string& name, DType dtype);

 private:
  struct Result {
    Tensor d;
    Note note;
  };
  /// A result that is known.
  absl::StatusOr<std::optional<Result>> Find(const GemmDesc& desc, DType out_dtype);
  /// Computes a result, whether it is known or not, and keeps it.
  absl::StatusOr<Result> Compute(const GemmDesc& desc, DType out_dtype);
  /// Compute in desc's dtype, which is not f32, and in f32.
  absl::StatusOr<Value> ComputeBoth(const GemmDesc& desc);
  absl::StatusOr<StartedGemm> Start(const GemmDesc& desc, DType out_dtype, bool also_f32);
  void Keep(const GemmDesc& desc, DType out_dtype, const Result& result);
  /// Moves unfiled_ to exact_.
  absl::Status File();
  absl::StatusOr<Value> InBothDTypes(const GemmDesc& desc);
  absl::StatusOr<GemmDesc> UnquantizedDesc(const std::string& name);
  /// Computes all values of a layer of several operations into unquantized_.
  absl::Status RunUnquantized();
  absl::StatusOr<GemmDesc> ColumnSumDesc(const Tensor& grad_output);
  /// Everything that an exact result depends on.
  absl::StatusOr<std::string> KeyOf(const GemmDesc& desc, DType out_dtype);

  Engine& engine_;
  const LayerRequest& request_;
  const Cancellation* const cancellation_;
  ContentKeys contents_;
  bool has_variant_ = false;
  std::map<std::string, Tensor> unquantized_;
  /// What every value so far depends on, except for contents.
  std::set<std::string> outlines_;
  std::map<std::string, Result> exact_;  ///< By KeyOf.
  struct Unfiled {
    GemmDesc desc;
    DType out_dtype;
    Result result;
  };
  std::vector<Unfiled> unfiled_;  ///< Not yet in exact_, since contents were not needed so far.
};

}  // namespace quantgate
