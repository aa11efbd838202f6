// A CPU engine that pretends to be a GPU. Its cuBLASLt has a few algorithms with the bits of their
// models, except for one that a test spoils. For tests, without a GPU, of code that uses an
// engine's hardware.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/engine/forwarding_engine.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"

namespace quantgate {

class PretendHardware : public ForwardingEngine {
 public:
  explicit PretendHardware(std::unique_ptr<Engine> cpu = MakeCpuEngine({.threads = 2}))
      : ForwardingEngine(*cpu), cpu_(std::move(cpu)) {}

  static CublasLtAlgorithm AlgorithmOf(int index, int id, int tile, int split_k = 1) {
    CublasLtAlgorithm algorithm;
    algorithm.index = index;
    algorithm.id = id;
    algorithm.tile = tile;
    algorithm.split_k = split_k;
    return algorithm;
  }

  /// What the heuristic returns: `whole`, or with splitk=any `splitting`.
  std::vector<CublasLtAlgorithm> whole = {AlgorithmOf(0, 66, 20), AlgorithmOf(1, 66, 26)};
  std::vector<CublasLtAlgorithm> splitting = {AlgorithmOf(0, 66, 20, 3), AlgorithmOf(1, 66, 20)};
  /// The algorithm that gives one wrong bit, the lowest of element spoilt_element of d; negative:
  /// none.
  int spoilt_algorithm = -1;
  int64_t spoilt_element = 0;
  /// The algorithm whose reported amax is wrong; negative: none.
  int spoilt_amax = -1;

  DeviceDescription Describe() const override {
    DeviceDescription description;
    description.id = "cuda:0";
    description.name = "Pretended GPU";
    description.architecture = "sm_90";
    description.driver = "1.2.3";
    description.cuda = "13.0";
    description.cublaslt = "13.1.0";
    description.multiprocessors = 132;
    description.sm_clock_mhz = 1980;
    description.memory_clock_mhz = 3201;
    description.memory_bytes = kMemoryBytes;
    return description;
  }
  DeviceMemory Memory() const override { return {0, 0, kMemoryBytes}; }
  absl::Status CheckArithmetic(const Arithmetic&) const override { return absl::OkStatus(); }

  absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(const GemmDesc& desc,
                                                            const Cancellation*) override {
    QG_RETURN_IF_ERROR(CheckCublasLtGemm(desc).status());
    return desc.arithmetic.any_split_k ? splitting : whole;
  }

  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override {
    GemmDesc hardware = desc;
    const bool is_auto = desc.arithmetic.family == ArithmeticFamily::kAuto;
    if (is_auto) hardware.arithmetic.family = ArithmeticFamily::kCublasLt;
    const bool is_hardware = hardware.arithmetic.family == ArithmeticFamily::kCublasLt;
    if (!is_hardware || (is_auto && !CheckCublasLtGemm(hardware).ok())) {
      return ForwardingEngine::StartGemm(desc, cancellation);
    }
    QG_ASSIGN_OR_RETURN(const std::vector<CublasLtAlgorithm> algorithms,
                        Algorithms(hardware, cancellation));
    const CublasLtAlgorithm& algorithm =
        algorithms.at(static_cast<size_t>(hardware.arithmetic.algorithm));
    GemmDesc model = hardware;
    model.arithmetic = hardware.arithmetic.Model();
    model.arithmetic.split_k = std::max(1, algorithm.split_k);
    QG_ASSIGN_OR_RETURN(GemmResult result, forwarded().Gemm(model, cancellation));
    Arithmetic ran{ArithmeticFamily::kCublasLt};
    ran.accumulation = ResolvedFor(hardware).accumulation;
    ran.split_k = model.arithmetic.split_k;
    result.arithmetic = ran;
    result.note = algorithm.ToString();
    if (algorithm.index == spoilt_algorithm) {
      FlipLowestBit(result.d, spoilt_element);
    }
    if (algorithm.index == spoilt_amax) FlipLowestBit(result.amax, 0);
    return ReadyGemm(std::move(result));
  }

 private:
  static constexpr int64_t kMemoryBytes = int64_t{1} << 30;

  static void FlipLowestBit(Tensor& tensor, int64_t element) {
    auto* const byte = tensor.data() + element * DTypeBytes(tensor.dtype());
    *byte ^= std::byte{1};
  }

  const std::unique_ptr<Engine> cpu_;
};

}  // namespace quantgate
