#include "server/runs/gemm_algorithms.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/algorithm_inventory.h"
#include "server/report/element_types.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

/// What differs between two results of one GEMM.
struct ResultDifference {
  bool equal = false;  ///< d and, where the output has one, amax.
  int64_t mismatch_count = 0;
  std::optional<v1::ElementPair> first;
};

class AlgorithmComparison {
 public:
  AlgorithmComparison(Engine& engine, const GemmDesc& desc, const GemmResult& first,
                      const Cancellation& cancellation)
      : engine_(engine), desc_(desc), first_(first), cancellation_(cancellation) {}

  absl::Status Add(const CublasLtAlgorithm& algorithm, const GemmResult& result,
                   v1::AlgorithmResult& proto) {
    proto.set_index(algorithm.index);
    proto.set_description(algorithm.ToString());
    proto.set_arithmetic(result.arithmetic.ToString());
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                        engine_.FingerprintOf(result.d, &cancellation_));
    *proto.mutable_fingerprint() = FingerprintToProto(fingerprint);
    QG_ASSIGN_OR_RETURN(ResultDifference difference, Compare(result, first_));
    proto.set_equal_to_first(difference.equal);
    proto.set_mismatch_count(difference.mismatch_count);
    if (difference.first) *proto.mutable_first_difference() = *difference.first;

    QG_ASSIGN_OR_RETURN(const GemmResult* model, ModelResult(algorithm));
    if (model == nullptr) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(difference, Compare(result, *model));
    proto.set_model(model->arithmetic.ToString());
    proto.set_equal_to_model(difference.equal);
    proto.set_model_mismatch_count(difference.mismatch_count);
    if (difference.first) *proto.mutable_first_model_difference() = *difference.first;
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<ResultDifference> Compare(const GemmResult& subject, const GemmResult& reference) {
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        engine_.CompareBits(subject.d, reference.d, &cancellation_));
    ResultDifference difference;
    difference.equal = parity.equal;
    difference.mismatch_count = parity.mismatch_count;
    if (parity.mismatch_count > 0) {
      difference.first = ElementPairToProto(parity.first);
      const std::string dtype(DTypeName(subject.d.dtype()));
      SetElementTypes(*difference.first, dtype, dtype);
    }
    if (!subject.amax.has_value()) return difference;
    QG_ASSIGN_OR_RETURN(const ParityReport amax,
                        engine_.CompareBits(subject.amax, reference.amax, &cancellation_));
    difference.equal = difference.equal && amax.equal;
    return difference;
  }

  /// Null where no arithmetic models the algorithm for this GEMM. Algorithms share their models.
  absl::StatusOr<const GemmResult*> ModelResult(const CublasLtAlgorithm& algorithm) {
    const std::optional<Arithmetic> arithmetic = ModelOf(desc_, algorithm);
    if (!arithmetic.has_value()) return nullptr;
    const auto [place, is_new] = models_.try_emplace(arithmetic->ToString());
    if (is_new) {
      GemmDesc desc = desc_;
      desc.arithmetic = *arithmetic;
      absl::StatusOr<GemmResult> result = engine_.Gemm(desc, &cancellation_);
      if (result.ok()) {
        place->second = *std::move(result);
      } else if (!absl::IsUnimplemented(result.status())) {
        return result.status();
      }
    }
    return place->second.has_value() ? &*place->second : nullptr;
  }

  Engine& engine_;
  const GemmDesc& desc_;
  const GemmResult& first_;
  const Cancellation& cancellation_;
  std::map<std::string, std::optional<GemmResult>> models_;
};

}  // namespace

absl::StatusOr<TimedGemm> RunTimedGemm(Engine& engine, const GemmDesc& desc,
                                       const Cancellation& cancellation) {
  const std::unique_ptr<Stopwatch> stopwatch = engine.StartStopwatch();
  TimedGemm ran;
  QG_ASSIGN_OR_RETURN(ran.result, engine.Gemm(desc, &cancellation));
  QG_RETURN_IF_ERROR(stopwatch->Stop());
  QG_ASSIGN_OR_RETURN(ran.seconds, stopwatch->Seconds());
  return ran;
}

absl::Status CompareAlgorithms(Engine& engine, const GemmDesc& desc, const TimedGemm& first,
                               const Cancellation& cancellation, v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(const std::vector<CublasLtAlgorithm> algorithms,
                      engine.Algorithms(desc, &cancellation));
  AlgorithmComparison comparison(engine, desc, first.result, cancellation);
  for (const CublasLtAlgorithm& algorithm : algorithms) {
    TimedGemm ran = first;
    if (algorithm.index != 0) {
      GemmDesc one = desc;
      one.arithmetic.algorithm = algorithm.index;
      QG_ASSIGN_OR_RETURN(ran, RunTimedGemm(engine, one, cancellation));
    }
    v1::AlgorithmResult& proto = *response.add_algorithms();
    proto.set_seconds(ran.seconds);
    QG_RETURN_IF_ERROR(comparison.Add(algorithm, ran.result, proto));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
