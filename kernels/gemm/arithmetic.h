// Arithmetic: the named rule by which a GEMM accumulates and rounds. Names are part of the API; a
// report always says which one ran and whether it was hardware or a model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

enum class ArithmeticFamily {
  kAuto,
  kSm70,  ///< Tensor cores by architecture: the rules of kernels/gemm/models/rules.h.
  kSm75,
  kSm80,
  kSm86,
  kSm89,
  kSm90,
  kSm90MmaFp8,  ///< Hopper's mma.sync FP8, which adds otherwise than its wgmma.
  kSm100,
  kSm120,
  kExact,
  kFp32,
  kCublasLt,  ///< Hardware, through cuBLASLt: the subject under test. The CUDA engine only.
};
/// "sm90", "sm90_mma_fp8", "exact", "auto".
std::string_view ArithmeticFamilyName(ArithmeticFamily family);
/// Whether the family is a model of tensor cores.
bool IsTensorCore(ArithmeticFamily family);

/// How sm90 accumulates FP8: as the recipe says per GEMM, or forced by name ("sm90:fast",
/// "sm90:split").
enum class Accumulation { kRecipe, kFast, kSplit };

struct Arithmetic {
  ArithmeticFamily family = ArithmeticFamily::kAuto;
  Accumulation accumulation = Accumulation::kRecipe;
  int split_k = 1;  ///< Slices of K (docs/tensor-cores.md section 3.2, Split-K); 1: not split.
  /// Accumulators in fp16 ("sm80:acc=f16"): the instructions with an fp16 result.
  bool f16_accumulate = false;
  /// cublaslt alone: whether algorithms with any number of slices may be chosen
  /// ("cublaslt:splitk=any") rather than those with split_k of them.
  bool any_split_k = false;
  /// cublaslt alone: which of the algorithms that the heuristic returns, in its order
  /// ("cublaslt:algorithm=3"); 0 is its first choice.
  int algorithm = 0;

  /// Parses "sm90", "sm90:fast", "sm90:split,splitk=3", "sm80:acc=f16", "exact", "fp32", "auto",
  /// "cublaslt:split,splitk=any,algorithm=2". INVALID_ARGUMENT names the value and the known names.
  /// Whether an engine has the arithmetic is Engine::CheckArithmetic's to say.
  static absl::StatusOr<Arithmetic> Parse(std::string_view text);
  /// The canonical text: Parse(ToString()) == *this.
  std::string ToString() const;
  /// This with kAuto replaced by what runs high-precision and per-tensor FP8 operands on the CPU
  /// engine (sm90). Other operands may take another: ResolvedFor in gemm.h.
  Arithmetic Resolved() const;
  /// The model that gives this arithmetic's bits: sm90 for cublaslt, itself for others.
  Arithmetic Model() const;
  friend bool operator==(const Arithmetic&, const Arithmetic&) = default;
};

/// One line of `quantgate info`.
struct ArithmeticDescription {
  std::string name;
  std::string summary;   ///< The rule in words.
  std::string source;    ///< Where the rule comes from.
  std::string evidence;  ///< What it was checked against.
  bool is_hardware = false;
};

const std::vector<ArithmeticDescription>& AllArithmetics();

}  // namespace quantgate
