// Arithmetic: the named rule by which a GEMM accumulates and rounds. Names are part of the API; a
// report always says which one ran and whether it was hardware or a model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quantgate {

enum class ArithmeticFamily { kAuto, kSm90, kExact, kFp32 };

/// How sm90 accumulates FP8: as the recipe says per GEMM, or forced by name ("sm90:fast",
/// "sm90:split").
enum class Accumulation { kRecipe, kFast, kSplit };

struct Arithmetic {
  ArithmeticFamily family = ArithmeticFamily::kAuto;
  Accumulation accumulation = Accumulation::kRecipe;
  int split_k = 1;  ///< Slices of K (docs/tensor-cores.md section 3.2, Split-K); 1: not split.

  /// Parses "sm90", "sm90:fast", "sm90:split,splitk=3", "exact", "fp32", "auto". INVALID_ARGUMENT
  /// names the value and the known names; UNIMPLEMENTED for a name that needs hardware this build
  /// cannot drive.
  static absl::StatusOr<Arithmetic> Parse(std::string_view text);
  /// The canonical text: Parse(ToString()) == *this.
  std::string ToString() const;
  /// This with kAuto replaced by what runs on the CPU engine (sm90).
  Arithmetic Resolved() const;
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
