#include "server/metrics/accuracy_series.h"

#include <utility>

#include "kernels/validate/plan.h"

namespace quantgate {
namespace {

// Relative errors and cosine distances: from fp32 noise to no resemblance, by decades.
const Buckets kErrorBuckets = {1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6,
                               1e-5,  1e-4,  1e-3, 1e-2, 0.1,  1};
// ULP distances by powers of four; the last finite one is the distance of two 16-bit codes.
const Buckets kUlpBuckets = {0, 1, 2, 4, 16, 64, 256, 1024, 4096, 16384, 65536};

/// The kinds of output tensors, whatever their weight or expert.
LabelAxis TensorAxis() {
  return {"tensor", {"y", "dx", "dw", "main_grad", "db", "dgamma", "dbeta", "norm_out", "other"}};
}

}  // namespace

AccuracySeries::AccuracySeries(prometheus::Registry& registry)
    : parity_checks_(CounterFamily(registry, "quantgate_parity_checks_total",
                                   "Output tensors compared bit by bit."),
                     SeriesStart::kFirstEvent,
                     {RecipeAxis("recipe_a", {"other"}),
                      RecipeAxis("recipe_b", {"exact"}),
                      ModeAxis(),
                      {"result", {"equal", "differs"}}}),
      mismatched_(CounterFamily(registry, "quantgate_mismatched_elements_total",
                                "Elements of outputs that differ from the exact result."),
                  SeriesStart::kFirstEvent,
                  {RecipeAxis("recipe", {"other"}), ModeAxis(), TensorAxis()}),
      rel_rmse_(HistogramFamily(registry, "quantgate_error_rel_rmse",
                                "Relative Frobenius error against the unquantized result."),
                SeriesStart::kFirstEvent,
                {RecipeAxis("recipe", {"other"}), ModeAxis(), TensorAxis()}, kErrorBuckets),
      max_ulp_(HistogramFamily(registry, "quantgate_error_max_ulp",
                               "Largest ULP distance from the exact result."),
               SeriesStart::kFirstEvent,
               {RecipeAxis("recipe", {"other"}), ModeAxis(), TensorAxis()}, kUlpBuckets),
      cosine_distance_(HistogramFamily(registry, "quantgate_error_cosine_distance",
                                       "1 - cosine similarity to the unquantized result."),
                       SeriesStart::kFirstEvent,
                       {RecipeAxis("recipe", {"other"}), ModeAxis(), TensorAxis()}, kErrorBuckets),
      quantizer_elements_(
          CounterFamily(registry, "quantgate_quantizer_elements_total",
                        "Elements quantized, by class."),
          SeriesStart::kFirstEvent,
          {RecipeAxis("recipe", {"other"}),
           {"class", {"normal", "zero", "subnormal", "flushed", "saturated", "inf", "nan"}}}) {}

void AccuracySeries::Quantized(std::string_view recipe, const QuantizationCounts& counts) {
  const std::pair<std::string_view, int64_t> classes[] = {{"normal", counts.normal},
                                                          {"zero", counts.zero},
                                                          {"subnormal", counts.subnormal},
                                                          {"flushed", counts.flushed_to_zero},
                                                          {"saturated", counts.saturated},
                                                          {"inf", counts.infinite},
                                                          {"nan", counts.nan}};
  for (const auto& [name, count] : classes) {
    quantizer_elements_(recipe, name).Increment(static_cast<double>(count));
  }
}

void AccuracySeries::Measured(const VariantReport& report, std::string_view reference_recipe) {
  const std::string_view recipe = report.recipe_name;
  const std::string_view mode = report.backward_override;
  for (const OutputReport& output : report.outputs) {
    if (output.is_intermediate) continue;
    const std::string_view tensor = OutputWord(output.tensor);
    const ParityReport& parity = output.against_exact.parity;
    parity_checks_(recipe, "exact", mode, parity.equal ? "equal" : "differs").Increment();
    mismatched_(recipe, mode, tensor).Increment(static_cast<double>(parity.mismatch_count));
    max_ulp_(recipe, mode, tensor)
        .Observe(Bounded(static_cast<double>(parity.worst_ulp), kUlpBuckets));
    const ErrorReport& error = output.against_unquantized;
    rel_rmse_(recipe, mode, tensor).Observe(Bounded(error.relative_frobenius, kErrorBuckets));
    cosine_distance_(recipe, mode, tensor).Observe(Bounded(1.0 - error.cosine, kErrorBuckets));
  }
  for (const TensorComparison& comparison : report.against_reference) {
    parity_checks_(recipe, reference_recipe, mode, comparison.parity.equal ? "equal" : "differs")
        .Increment();
  }
}

}  // namespace quantgate
