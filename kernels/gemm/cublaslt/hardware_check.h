// Is the hardware still what the models say? cuBLASLt against its model, bit for bit, over a fixed
// list of GEMMs and every algorithm that its heuristic returns for them: what a new driver or a new
// cuBLASLt may change, and this build would otherwise not notice.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/cancellation.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {

/// What of the epilogue a case asks for. FP8 outputs always have a d_scale.
enum class CaseEpilogue {
  kPlain,
  kSum,  ///< alpha * sum + beta * c; of f32 operands both are 1 (docs/tensor-cores.md section 3.6).
  kInPlace,  ///< c is the memory of d, alpha = beta = 1.
  kBias,
};

/// One GEMM, its data given by the seed.
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
  kQuick,  ///< A few seconds on an H200: every kind of operands, small shapes.
  kFull,   ///< Every layout, output and epilogue of each, more shapes and data.
};
std::vector<HardwareCase> HardwareCases(HardwareCheckSize size);

/// Its GEMM in host memory, under cublaslt.
absl::StatusOr<GemmDesc> DescOf(const HardwareCase& one);

/// The two sides. Descs have their tensors where `place` puts them; outputs may be anywhere that
/// `to_host` copies from.
struct HardwareCheckSides {
  std::function<absl::StatusOr<Tensor>(const Tensor&)> place;
  std::function<absl::StatusOr<Tensor>(const Tensor&)> to_host;
  std::function<absl::StatusOr<std::vector<CublasLtAlgorithm>>(const GemmDesc&)> algorithms;
  std::function<absl::StatusOr<GemmResult>(const GemmDesc&)> hardware;
  std::function<absl::StatusOr<GemmResult>(const GemmDesc&)> model;
};

struct OutputDifference {
  std::string gemm;       ///< GemmText, data and seed: it can be run again.
  std::string algorithm;  ///< CublasLtAlgorithm::ToString().
  bool is_amax = false;   ///< Of the reported amax; d was equal, and row and column mean nothing.
  int64_t row = 0, column = 0;  ///< Of the first output that differs, in row-major order.
  uint32_t hardware_bits = 0, model_bits = 0;
  int bytes = 4;      ///< Of an output: how many hex digits to write.
  int64_t count = 0;  ///< Outputs that differ,
  int64_t of = 0;     ///< of so many.
};

/// The first difference of two tensors of one type and shape in host memory; none if all bits are
/// equal. `gemm` and `algorithm` are left empty.
std::optional<OutputDifference> FirstDifference(const Tensor& hardware, const Tensor& model);

/// What CublasLtInventory() says of a class of algorithms.
enum class ClassStanding {
  kModelled,
  kNotModelled,  ///< Known to have no model: not compared.
  kUnlisted,     ///< It was never seen: compared with the model that its operands would have.
};

/// Runs of one kind of kernel on one class of operands.
struct HardwareClass {
  std::string operands;  ///< As in the inventory: "bf16", "FP8, fast".
  int algorithm_id = 0, tile = 0;
  int split_k = 1;         ///< 1: not split; negative: as the kernel likes.
  bool may_split = false;  ///< Whether the heuristic was allowed to split K.
  ClassStanding standing = ClassStanding::kModelled;
  std::string arithmetic;  ///< Compared with; empty where none was.
  int first_choices = 0;   ///< Of requests, where the heuristic ranked it first.
  int equal = 0;           ///< Runs with every output equal.
  int differing = 0;       ///< Runs with some output different.
  int not_modelled = 0;    ///< Runs without a model, not compared (and not run).
  int64_t outputs = 0, differing_outputs = 0;
  std::optional<OutputDifference> first;
};

struct HardwareCheck {
  int cases = 0;
  std::vector<HardwareClass> classes;  ///< By operands, id, tile, slices and request.
  std::vector<std::string> refusals;   ///< GEMMs of the list that the hardware did not take.

  int64_t runs() const;
  int64_t outputs() const;
  /// Whether something that has a model, or that nobody knew, computes otherwise, or is refused.
  bool has_drift() const;
};

/// Runs `cases`. Errors of either side other than UNIMPLEMENTED end it; so does `cancellation`.
absl::StatusOr<HardwareCheck> CheckHardware(const HardwareCheckSides& sides,
                                            const std::vector<HardwareCase>& cases,
                                            const Cancellation* cancellation);

/// The verdict, a line per drift, then a table of classes, tiles added up.
std::vector<std::string> HardwareCheckLines(const HardwareCheck& check);

/// What a check's result depends on besides its list: another key asks for another check.
struct HardwareCheckKey {
  std::string device, driver, cublaslt, build;
  /// "NVIDIA H200, driver 580.159.04, cuBLASLt 13.1.0, build 1.4.0, quick".
  std::string ToString(HardwareCheckSize size) const;
};

}  // namespace quantgate
