// The hardware check: does the hardware still compute what the models say? It compares cuBLASLt
// with its model, bit for bit, over a fixed list of GEMMs and every algorithm that the heuristic
// returns for them, and so finds what a new driver or a new cuBLASLt has changed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {

/// The epilogue of a case. FP8 outputs always have a d_scale as well.
enum class CaseEpilogue {
  kPlain,
  kSum,      ///< alpha * sum + beta * c; both are 1 for f32 operands (docs/tensor-cores.md
             ///< section 3.6).
  kInPlace,  ///< c is the memory of d, alpha = beta = 1.
  kBias,
};

/// One GEMM of the list; the seed determines its data.
struct HardwareCase {
  GemmShape shape{};
  DType a = DType::kBF16, b = DType::kBF16, out = DType::kBF16;
  GemmLayout layout = GemmLayout::kTN;
  ScaleMode a_scaling = ScaleMode::kNone, b_scaling = ScaleMode::kNone;
  bool use_split_accumulator = false;
  CaseEpilogue epilogue = CaseEpilogue::kPlain;
  Distribution distribution = Distribution::kNormal;
  uint64_t seed = 0;
};

enum class HardwareCheckSize {
  kQuick,  ///< Every kind of operands in small shapes; a few seconds on an H200.
  kFull,   ///< Also every layout, output and epilogue of each kind, and more shapes and data.
};
std::vector<HardwareCase> HardwareCases(HardwareCheckSize size);

/// The GEMM of a case under arithmetic cublaslt, with its tensors in host memory.
absl::StatusOr<GemmDesc> DescOf(const HardwareCase& one);

/// The two sides of the check. `place` puts a tensor where the sides want it; all descs that they
/// get have such tensors. Outputs may be anywhere that `to_host` copies from.
struct HardwareCheckSides {
  std::function<absl::StatusOr<Tensor>(const Tensor&)> place;
  std::function<absl::StatusOr<Tensor>(const Tensor&)> to_host;
  std::function<absl::StatusOr<std::vector<CublasLtAlgorithm>>(const GemmDesc&)> algorithms;
  std::function<absl::StatusOr<GemmResult>(const GemmDesc&)> hardware;
  std::function<absl::StatusOr<GemmResult>(const GemmDesc&)> model;
};

/// The first output that differs between hardware and model.
struct OutputDifference {
  std::string gemm;       ///< GemmText, data and seed, from which the GEMM can be run again.
  std::string algorithm;  ///< CublasLtAlgorithm::ToString().
  bool is_amax = false;   ///< The reported amax differs and d does not; row and column are unused.
  int64_t row = 0, column = 0;  ///< Place of the first output that differs, in row-major order.
  uint32_t hardware_bits = 0, model_bits = 0;
  int bytes = 4;      ///< Bytes of an output.
  int64_t count = 0;  ///< How many outputs differ,
  int64_t of = 0;     ///< out of how many.
};

/// The first difference of two tensors of one type and shape in host memory, without `gemm` and
/// `algorithm`; none where all bits are equal.
std::optional<OutputDifference> FirstDifference(const Tensor& hardware, const Tensor& model);

/// What CublasLtInventory() knows of a class of algorithms.
enum class ClassStanding {
  kModelled,
  kNotModelled,  ///< The class has no model and is not compared.
  kUnlisted,     ///< The class was never seen; it is compared with the model of its operands.
};

/// The runs of one kind of kernel on one class of operands.
struct HardwareClass {
  std::string operands;  ///< As in the inventory: "bf16", "FP8, fast".
  int algorithm_id = 0, tile = 0;
  int split_k = 1;         ///< 1: not split; negative: the kernel decides.
  bool may_split = false;  ///< Whether the heuristic was allowed to split K.
  ClassStanding standing = ClassStanding::kModelled;
  std::string arithmetic;  ///< The arithmetic that it was compared with; empty: none.
  int first_choices = 0;   ///< Requests for which the heuristic ranked it first.
  int equal = 0;           ///< Runs with every output equal.
  int differing = 0;       ///< Runs with some output different.
  int not_modelled = 0;    ///< Runs without a model, not compared (and not run).
  int64_t outputs = 0, differing_outputs = 0;
  std::optional<OutputDifference> first;
};

struct HardwareCheck {
  int cases = 0;
  std::vector<HardwareClass> classes;  ///< By operands, id, tile, slices and request.
  std::vector<std::string> refusals;   ///< GEMMs of the list that the hardware refused.

  int64_t runs() const;
  int64_t outputs() const;
  /// Whether a class that has a model or is unlisted differs from its model, or a GEMM was refused.
  bool has_drift() const;
};

/// Runs `cases`. An error of either side other than UNIMPLEMENTED ends the check; so does
/// `cancellation`.
absl::StatusOr<HardwareCheck> CheckHardware(const HardwareCheckSides& sides,
                                            const std::vector<HardwareCase>& cases,
                                            const Cancellation* cancellation);

/// The result as text: the verdict, a line for each drift, then a table of classes over all tiles.
std::vector<std::string> HardwareCheckLines(const HardwareCheck& check);

/// What the result of a check depends on besides its list; a result holds only for its own key.
struct HardwareCheckKey {
  std::string device, driver, cublaslt, build;
  /// "NVIDIA H200, driver 580.159.04, cuBLASLt 13.1.0, build 1.4.0, quick".
  std::string ToString(HardwareCheckSize size) const;
};

}  // namespace quantgate
