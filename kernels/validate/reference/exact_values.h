// Exact values of a layer's outputs: the same GEMMs under arithmetic `exact`. Results are kept by
// the identity of their operands, since variants of one run share many of them. Used by one thread.
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

  /// What tensors are known by here. Whoever asks for several values starts the keys of the tensors
  /// that they are of.
  ContentKeys& contents() { return contents_; }
  /// Before the values of another variant: files those of the one before, and forgets the keys of
  /// its tensors.
  absl::Status BeginVariant();

  /// The output or intermediate `name` from the request's original operands, in f32. Of a linear
  /// layer each is one GEMM, rounded once; of others, the whole layer under the recipe bf16 with
  /// activation_dtype=f32 and arithmetic `exact`: every operation rounds to f32. Computed once.
  absl::StatusOr<Tensor> Unquantized(const std::string& name);
  /// Begins the one of that name of a linear layer.
  absl::Status StartUnquantized(const std::string& name);

  /// A GEMM that the layer did, on the operands it had. Waits for nothing where no value so far is
  /// of operands of these dtypes and shapes: then none can be the same.
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
  /// One that is known.
  absl::StatusOr<std::optional<Result>> Find(const GemmDesc& desc, DType out_dtype);
  /// Computed, whether it is known or not; from then on it is.
  absl::StatusOr<Result> Compute(const GemmDesc& desc, DType out_dtype);
  /// The same in desc's dtype, which is not f32, and in f32.
  absl::StatusOr<Value> ComputeBoth(const GemmDesc& desc);
  absl::StatusOr<StartedGemm> Start(const GemmDesc& desc, DType out_dtype, bool also_f32);
  void Keep(const GemmDesc& desc, DType out_dtype, const Result& result);
  /// Moves unfiled_ to exact_.
  absl::Status File();
  absl::StatusOr<Value> InBothDTypes(const GemmDesc& desc);
  absl::StatusOr<GemmDesc> UnquantizedDesc(const std::string& name);
  /// All of a layer of several operations into unquantized_.
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
  /// Of every value so far, all that it depends on but for contents.
  std::set<std::string> outlines_;
  std::map<std::string, Result> exact_;  ///< By what they depend on.
  struct Unfiled {
    GemmDesc desc;
    DType out_dtype;
    Result result;
  };
  std::vector<Unfiled> unfiled_;  ///< Not yet among exact_: nobody has asked for contents since.
};

}  // namespace quantgate
