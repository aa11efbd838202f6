// TensorReference: a tensor as a request names it, checked as far as it can be without looking into
// the stores.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "kernels/tensor/generate/generate.h"
#include "server/digest.h"
#include "server/tensor_record.h"

namespace quantgate {

struct TensorReference {
  enum class Kind { kAbsent, kInline, kStored, kGenerated };
  Kind kind = Kind::kAbsent;
  std::string field;  ///< Where the request names it: "spec.linear.x".
  std::optional<TensorType>
      type;                 ///< Absent only for a stored tensor that the tensor store must know.
  std::string bytes;        ///< For kInline.
  Digest digest;            ///< For kInline and kStored.
  GeneratorSpec generator;  ///< For kGenerated.

  bool has_value() const { return kind != Kind::kAbsent; }
};

/// The tensors of a request by the slots of its plan: "x", "a.scale_inv".
using SlotReferences = std::map<std::string, TensorReference>;

/// A tensor of this type without memory, for checks of dtypes and shapes only; no value for an
/// absent reference.
Tensor OutlineOf(const TensorReference& reference);
/// The outline of the tensor in `slot`; no value for a slot that the request leaves out.
Tensor OutlineOf(const SlotReferences& references, const std::string& slot);

/// "gen:normal,seed=1,shape=256x512,dtype=bf16": what the command line takes.
std::string GeneratorText(const GeneratorSpec& spec);
/// The tensor's name on the command line: a gen: or digest: reference. The type must
/// be known.
std::string ReferenceText(const TensorReference& reference);

}  // namespace quantgate
