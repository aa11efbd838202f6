// Arithmetic: the named rule by which a GEMM accumulates and rounds. The names are part of the API;
// a report always states which arithmetic ran and whether it was hardware or a model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

enum class ArithmeticFamily {
  kAuto,
  kSm70,  ///< Models of tensor cores by architecture (kernels/gemm/models/rules.h); likewise below.
  kSm75,
  kSm80,
  kSm86,
  kSm89,
  kSm90,
  kSm90MmaFp8,  ///< Hopper's mma.sync FP8, which adds in another way than its wgmma.
  kSm100,
  kSm120,
  kExact,        ///< The correctly rounded result of the real-number GEMM.
  kFp32,         ///< Sequential fp32 FMA over k.
  kCublasLt,     ///< The hardware through cuBLASLt, the subject under test; CUDA engine only.
  kSm100MmaFp8,  ///< Blackwell's (B200) mma.sync FP8, "sm100:mma": the rule of kSm90MmaFp8.
  kInt32,        ///< Sums of integers.
};
/// "sm90", "sm90_mma_fp8", "exact", "auto".
std::string_view ArithmeticFamilyName(ArithmeticFamily family);
/// Whether the family is a model of tensor cores.
bool IsTensorCore(ArithmeticFamily family);

/// How sm90 accumulates FP8: as the recipe chooses for each GEMM, or as the name says ("sm90:fast",
/// "sm90:split").
enum class Accumulation { kRecipe, kFast, kSplit };

struct Arithmetic {
  ArithmeticFamily family = ArithmeticFamily::kAuto;
  Accumulation accumulation = Accumulation::kRecipe;
  int split_k = 1;  ///< Slices of K (docs/tensor-cores.md section 3.2, Split-K); 1: not split.
  /// Whether accumulators are fp16 ("sm80:acc=f16"), as in the instructions with an fp16 result.
  bool f16_accumulate = false;
  /// For cublaslt only: whether an algorithm may have any number of slices ("cublaslt:splitk=any")
  /// and not only split_k.
  bool any_split_k = false;
  /// For cublaslt only: the index of the algorithm among those that the heuristic returns
  /// ("cublaslt:algorithm=3"); 0 is its first choice.
  int algorithm = 0;

  /// Parses "sm90", "sm90:fast", "sm90:split,splitk=3", "sm80:acc=f16", "exact", "fp32", "auto",
  /// "cublaslt:split,splitk=any,algorithm=2". INVALID_ARGUMENT names the value and the known names.
  /// Does not check whether an engine has the arithmetic: Engine::CheckArithmetic does.
  static absl::StatusOr<Arithmetic> Parse(std::string_view text);
  /// The canonical text: Parse(ToString()) == *this.
  std::string ToString() const;
  /// This arithmetic with kAuto replaced by sm90, which is what kAuto stands for on the CPU engine
  /// with high-precision and per-tensor FP8 operands. For other operands see ResolvedFor in gemm.h.
  Arithmetic Resolved() const;
  /// The model that gives this arithmetic's bits: sm90 for cublaslt, itself for others.
  Arithmetic Model() const;
  friend bool operator==(const Arithmetic&, const Arithmetic&) = default;
};

/// What `quantgate info` says of one arithmetic.
struct ArithmeticDescription {
  std::string name;
  std::string summary;   ///< The rule in words.
  std::string source;    ///< Where the rule comes from.
  std::string evidence;  ///< What the rule was checked against.
  bool is_hardware = false;
};

/// Every arithmetic of this build, in the order of listings.
const std::vector<ArithmeticDescription>& AllArithmetics();

}  // namespace quantgate
