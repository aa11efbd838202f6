#include "client/cli/render_json.h"

#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/number_text.h"
#include "client/cli/verdict_text.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

Json RealOf(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

void SetReal32(Json& json, const std::string& key, float value) {
  json[key] = RealOf(value);
  json[key + "_bits"] = HexBits(std::bit_cast<uint32_t>(value), "f32");
}

template <typename Repeated>
Json ListOf(const Repeated& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(item);
  return list;
}

template <typename Repeated, typename Function>
Json ListOf(const Repeated& items, Function function) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(function(item));
  return list;
}

Json OfParity(const v1::ParityReport& parity, const std::string& dtype) {
  Json json;
  json["equal"] = parity.equal();
  json["element_count"] = parity.element_count();
  json["mismatch_count"] = parity.mismatch_count();
  const bool differs = parity.mismatch_count() > 0;
  json["first"] = differs ? JsonOf(parity.first(), dtype, dtype) : Json();
  json["worst"] = differs ? JsonOf(parity.worst(), dtype, dtype) : Json();
  json["worst_ulp"] = parity.worst_ulp();
  json["ulp_histogram"] = ListOf(parity.ulp_histogram(), [](const v1::UlpBucket& bucket) {
    return Json{{"lower", bucket.lower()}, {"upper", bucket.upper()}, {"count", bucket.count()}};
  });
  json["class_confusion"] = ListOf(parity.class_confusion(), [](const v1::ClassConfusion& cell) {
    return Json{{"subject", cell.subject_class()},
                {"reference", cell.reference_class()},
                {"count", cell.count()}};
  });
  return json;
}

Json OfBudgetTerm(const v1::BudgetTerm& term) {
  Json json;
  json["stage"] = term.stage();
  SetReal(json, "share", term.share());
  SetReal(json, "mean", term.mean());
  SetReal(json, "rms", term.rms());
  SetReal(json, "max_abs", term.max_abs());
  return json;
}

Json OfBudget(const v1::ErrorBudget& budget) {
  Json json;
  json["tensor"] = budget.tensor();
  json["element_count"] = budget.element_count();
  json["non_finite_count"] = budget.non_finite_count();
  json["total"] = OfBudgetTerm(budget.total());
  json["terms"] =
      ListOf(budget.terms(), [](const v1::BudgetTerm& term) { return OfBudgetTerm(term); });
  SetReal(json, "closure", budget.closure());
  return json;
}

Json OfCell(const v1::HeatMapCell& cell) {
  return Json{
      {"row_begin", cell.row_begin()},         {"row_end", cell.row_end()},
      {"column_begin", cell.column_begin()},   {"column_end", cell.column_end()},
      {"rms_error", RealOf(cell.rms_error())}, {"max_abs_error", RealOf(cell.max_abs_error())}};
}

Json OfError(const v1::ErrorReport& error, const std::string& dtype,
             const std::string& reference_dtype) {
  Json json;
  json["element_count"] = error.element_count();
  json["non_finite_count"] = error.non_finite_count();
  SetReal(json, "max_abs", error.max_abs());
  json["max_abs_at"] =
      error.has_max_abs_at() ? JsonOf(error.max_abs_at(), dtype, reference_dtype) : Json();
  SetReal(json, "mean_abs", error.mean_abs());
  SetReal(json, "rms", error.rms());
  SetReal(json, "max_rel", error.max_rel());
  json["max_rel_at"] =
      error.has_max_rel_at() ? JsonOf(error.max_rel_at(), dtype, reference_dtype) : Json();
  SetReal(json, "mean_rel", error.mean_rel());
  SetReal(json, "bias", error.bias());
  SetReal(json, "sqnr_db", error.sqnr_db());
  SetReal(json, "cosine", error.cosine());
  SetReal(json, "relative_frobenius", error.relative_frobenius());
  json["saturated_count"] = error.saturated_count();
  json["flushed_to_zero_count"] = error.flushed_to_zero_count();
  json["subnormal_count"] = error.subnormal_count();
  json["heat_map"] = {{"rows", error.heat_map().rows()},
                      {"columns", error.heat_map().columns()},
                      {"row_edges", ListOf(error.heat_map().row_edges())},
                      {"column_edges", ListOf(error.heat_map().column_edges())},
                      {"rms_error", ListOf(error.heat_map().rms_error(), RealOf)},
                      {"max_abs_error", ListOf(error.heat_map().max_abs_error(), RealOf)}};
  json["worst_blocks"] = ListOf(error.worst_blocks(), OfCell);
  return json;
}

Json OfNearer(const v1::NearerReport& nearer) {
  Json json;
  json["subject_nearer"] = nearer.subject_nearer();
  json["reference_nearer"] = nearer.reference_nearer();
  json["tied"] = nearer.tied();
  SetReal(json, "subject_rms", nearer.subject_rms());
  SetReal(json, "reference_rms", nearer.reference_rms());
  return json;
}

Json OfComparison(const v1::TensorComparison& comparison, const std::string& dtype,
                  const std::string& error_reference_dtype) {
  Json json;
  json["tensor"] = comparison.tensor();
  json["reference"] = comparison.reference();
  json["parity"] = comparison.has_parity() ? OfParity(comparison.parity(), dtype) : Json();
  json["error"] =
      comparison.has_error() ? OfError(comparison.error(), dtype, error_reference_dtype) : Json();
  json["nearer"] = comparison.has_nearer() ? OfNearer(comparison.nearer()) : Json();
  return json;
}

Json OfBound(const v1::BoundCheck& bound) {
  Json json;
  json["pass"] = bound.pass();
  json["violation_count"] = bound.violation_count();
  SetReal(json, "worst_ratio", bound.worst_ratio());
  SetReal(json, "factor", bound.factor());
  json["derivation"] = bound.derivation();
  return json;
}

Json OfOutput(const v1::OutputReport& output) {
  const std::string& dtype = output.tensor().type().dtype();
  Json json = JsonOf(output.tensor());
  json["intermediate"] = output.intermediate();
  json["arithmetic"] = output.arithmetic();
  // `unquantized` and `exact` are rounded once to f32 for errors; parity rounds `exact` to the
  // dtype.
  json["against_unquantized"] = output.has_against_unquantized()
                                    ? OfError(output.against_unquantized(), dtype, "f32")
                                    : Json();
  json["against_exact"] =
      output.has_against_exact() ? OfComparison(output.against_exact(), dtype, "f32") : Json();
  json["bound"] = output.has_bound() ? OfBound(output.bound()) : Json();
  json["exact_note"] = output.exact_note();
  return json;
}

/// What a variant on one rank and each rank of several say alike.
template <typename Report>
Json SavedOf(const Report& report) {
  return ListOf(report.saved(), [](const v1::SavedOperand& saved) {
    return Json{{"name", saved.name()},
                {"content", saved.content()},
                {"at_save", FingerprintText(saved.at_save())},
                {"at_use", saved.used() ? Json(FingerprintText(saved.at_use())) : Json()},
                {"used", saved.used()}};
  });
}

template <typename Report>
Json QuantizationsOf(const Report& report) {
  return ListOf(report.quantizations(),
                [](const v1::QuantizationRecord& record) { return JsonOf(record); });
}

template <typename Report>
Json GemmsOf(const Report& report) {
  return ListOf(report.gemms(), [](const v1::GemmLine& gemm) {
    return Json{{"role", gemm.role()},
                {"output", gemm.output()},
                {"text", gemm.text()},
                {"a_source", gemm.a_source()},
                {"b_source", gemm.b_source()},
                {"arithmetic", gemm.arithmetic()},
                {"is_hardware", gemm.is_hardware()},
                {"algorithm", gemm.algorithm().empty() ? Json() : Json(gemm.algorithm())}};
  });
}

template <typename Report>
Json StagesOf(const Report& report) {
  return ListOf(report.stages(), [](const v1::StageTime& stage) {
    return Json{{"stage", stage.stage()}, {"seconds", RealOf(stage.seconds())}};
  });
}

Json OfRank(const v1::RankReport& rank) {
  Json json;
  json["rank"] = rank.rank();
  json["device"] = rank.device();
  json["outputs"] =
      ListOf(rank.outputs(), [](const v1::NamedTensor& tensor) { return JsonOf(tensor); });
  json["saved"] = SavedOf(rank);
  json["quantizations"] = QuantizationsOf(rank);
  json["gemms"] = GemmsOf(rank);
  json["stages"] = StagesOf(rank);
  if (!rank.overlaps().empty()) {
    json["overlaps"] =
        ListOf(rank.overlaps(), [](const v1::OverlapReport& overlap) { return JsonOf(overlap); });
  }
  return json;
}

Json OfVariant(const v1::VariantReport& variant) {
  Json json;
  json["label"] = variant.label();
  json["recipe"] = variant.recipe();
  json["recipe_name"] = variant.recipe_name();
  json["recipe_digest"] = variant.recipe_digest();
  json["backward_override"] = variant.backward_override();
  json["arithmetic"] = variant.arithmetic();
  json["is_hardware"] = variant.is_hardware();
  json["outputs"] = ListOf(variant.outputs(), OfOutput);
  json["against_reference"] =
      ListOf(variant.against_reference(), [&](const v1::TensorComparison& comparison) {
        const v1::OutputReport* output = FindOutput(variant, comparison.tensor());
        const std::string dtype = output == nullptr ? "" : output->tensor().type().dtype();
        // Parity is only there for equal dtypes; without it the reference's is not known here.
        return OfComparison(comparison, dtype, comparison.has_parity() ? dtype : "");
      });
  json["saved"] = SavedOf(variant);
  json["quantizations"] = QuantizationsOf(variant);
  json["error_budgets"] = ListOf(variant.error_budgets(),
                                 [](const v1::ErrorBudget& budget) { return OfBudget(budget); });
  json["gemms"] = GemmsOf(variant);
  json["stages"] = StagesOf(variant);
  json["notes"] = ListOf(variant.notes());
  json["state"] =
      ListOf(variant.state(), [](const v1::NamedTensor& tensor) { return JsonOf(tensor); });
  if (!variant.ranks().empty()) json["ranks"] = ListOf(variant.ranks(), OfRank);
  return json;
}

Json OfPair(const v1::PairSummary& pair) {
  Json json;
  json["subject"] = pair.subject();
  json["reference"] = pair.reference();
  json["tensor"] = pair.tensor();
  json["comparable"] = pair.comparable();
  json["mismatch_count"] = pair.mismatch_count();
  json["element_count"] = pair.element_count();
  SetReal(json, "relative_frobenius", pair.relative_frobenius());
  return json;
}

Json OfSubject(const SubjectComparison& comparison) {
  Json json;
  json["tensor"] = comparison.tensor;
  json["dtype"] = comparison.dtype;
  json["reference_dtype"] = comparison.reference_dtype;
  json["subject"] = comparison.subject_name;
  json["reference"] = comparison.reference_name;
  json["difference"] = comparison.difference;
  json["bound"] = comparison.bound ? OfBound(*comparison.bound) : Json();
  const v1::CompareResponse& result = comparison.result;
  json["parity"] = result.has_parity() ? OfParity(result.parity(), comparison.dtype) : Json();
  json["error"] = result.has_error()
                      ? OfError(result.error(), comparison.dtype, comparison.reference_dtype)
                      : Json();
  return json;
}

Json OfInput(const v1::InputTensor& input) {
  Json json;
  json["name"] = input.name();
  json.update(JsonOf(input.type()));
  json["digest"] = input.has_digest()
                       ? Json(absl::StrCat(absl::BytesToHexString(input.digest().sha256()), "/",
                                           input.digest().size()))
                       : Json();
  json["fingerprint"] = FingerprintText(input.fingerprint());
  json["source"] = input.source();
  return json;
}

/// All of a run but its variants and pairs.
void AddRunFacts(const v1::RunReport& run, Json& json) {
  json["run_id"] = run.run_id();
  json["environment"] = JsonOf(run.environment());
  json["inputs"] = ListOf(run.inputs(), OfInput);
  json["reference"] = run.has_reference() ? Json(run.reference()) : Json();
  json["seconds"] = RealOf(run.seconds());
  json["reproduce"] = run.reproduce();
}

}  // namespace

Json JsonOf(const v1::Verdict& verdict) {
  return Json{{"criterion", RequirementText(verdict.criterion())},
              {"pass", verdict.pass()},
              {"threshold", verdict.threshold()},
              {"source", verdict.source()},
              {"found", verdict.found()},
              {"finding", verdict.finding()},
              {"non_finite", verdict.non_finite()},
              {"non_finite_inputs", verdict.non_finite_inputs()},
              {"text", VerdictLine(verdict)}};
}

Json JsonOf(const v1::SessionStepResponse& response) {
  Json json = JsonHead("session_step");
  json["step"] = response.step();
  json["outputs"] =
      ListOf(response.outputs(), [](const v1::NamedTensor& tensor) { return JsonOf(tensor); });
  json["saved"] = SavedOf(response);
  json["quantizations"] = QuantizationsOf(response);
  json["gemms"] = GemmsOf(response);
  json["stages"] = StagesOf(response);
  json["notes"] = ListOf(response.notes());
  if (!response.ranks().empty()) json["ranks"] = ListOf(response.ranks(), OfRank);
  json["rank_differences"] = ListOf(response.rank_differences());
  return json;
}

Json JsonOf(const v1::OverlapReport& overlap) {
  Json json{{"stage", overlap.stage()}};
  SetReal(json, "total_seconds", overlap.total_seconds());
  SetReal(json, "compute_seconds", overlap.compute_seconds());
  SetReal(json, "communication_seconds", overlap.communication_seconds());
  SetReal(json, "exposed_seconds", overlap.exposed_seconds());
  SetReal(json, "idle_seconds", overlap.idle_seconds());
  SetReal(json, "efficiency", overlap.efficiency());
  json["tasks"] = ListOf(overlap.tasks(), [](const v1::OverlapTask& task) {
    return Json{{"name", task.name()},
                {"resource", task.resource()},
                {"begin_seconds", RealOf(task.begin_seconds())},
                {"end_seconds", RealOf(task.end_seconds())}};
  });
  return json;
}

void SetReal(Json& json, const std::string& key, double value) {
  json[key] = RealOf(value);
  json[key + "_bits"] = HexBits(std::bit_cast<uint64_t>(value), "f64");
}

Json JsonHead(const std::string& kind) {
  return Json{{"schema_version", kJsonSchemaVersion}, {"kind", kind}};
}

Json JsonOf(const v1::ElementPair& pair, const std::string& dtype,
            const std::string& reference_dtype) {
  Json json;
  json["coordinate"] = ListOf(pair.coordinate());
  json["subject"] = RealOf(pair.subject());
  json["subject_bits"] = HexBits(pair.subject_bits(), dtype);
  json["reference"] = RealOf(pair.reference());
  json["reference_bits"] = HexBits(pair.reference_bits(), reference_dtype);
  return json;
}

Json JsonOf(const v1::TensorDescriptor& type) {
  return Json{{"dtype", type.dtype()}, {"shape", ListOf(type.shape())}};
}

Json JsonOf(const v1::NamedTensor& tensor) {
  Json json;
  json["tensor"] = tensor.name();
  json.update(JsonOf(tensor.type()));
  json["fingerprint"] = FingerprintText(tensor.fingerprint());
  json["digest"] = tensor.has_digest()
                       ? Json(absl::StrCat(absl::BytesToHexString(tensor.digest().sha256()), "/",
                                           tensor.digest().size()))
                       : Json();
  return json;
}

Json JsonOf(const v1::TensorRecord& record) {
  Json json;
  json["name"] = record.name();
  json.update(JsonOf(record.type()));
  json["digest"] =
      absl::StrCat(absl::BytesToHexString(record.digest().sha256()), "/", record.digest().size());
  json["fingerprint"] = FingerprintText(record.fingerprint());
  json["statistics"] = nullptr;
  if (!record.has_statistics()) return json;
  const v1::TensorStatistics& statistics = record.statistics();
  Json values;
  SetReal(values, "amax", statistics.amax());
  SetReal(values, "mean", statistics.mean());
  SetReal(values, "rms", statistics.rms());
  values["zero_count"] = statistics.zero_count();
  values["subnormal_count"] = statistics.subnormal_count();
  values["infinite_count"] = statistics.infinite_count();
  values["nan_count"] = statistics.nan_count();
  const std::map<int32_t, int64_t> histogram(statistics.exponent_histogram().begin(),
                                             statistics.exponent_histogram().end());
  values["exponent_histogram"] = ListOf(histogram, [](const auto& bucket) {
    return Json{{"exponent", bucket.first}, {"count", bucket.second}};
  });
  json["statistics"] = values;
  return json;
}

Json JsonOf(const v1::QuantizationRecord& record) {
  Json json;
  json["role"] = record.role();
  json["tensor"] = record.tensor().empty() ? Json() : Json(record.tensor());
  json["rowwise"] = record.rowwise();
  json["columnwise"] = record.columnwise();
  json["quantizer"] = record.quantizer();
  if (!record.amax_group().empty()) json["amax_group"] = record.amax_group();
  // What a format does not have is left out.
  if (record.has_amax()) SetReal32(json, "amax", record.amax());
  if (record.has_amax_columnwise()) SetReal32(json, "amax_columnwise", record.amax_columnwise());
  if (record.has_scale()) SetReal32(json, "scale", record.scale());
  if (record.has_scale_inv()) SetReal32(json, "scale_inv", record.scale_inv());
  const std::map<int32_t, int64_t> codes(record.scale_codes().begin(), record.scale_codes().end());
  json["scale_codes"] = ListOf(codes, [](const auto& bucket) {
    return Json{{"code", bucket.first}, {"count", bucket.second}};
  });
  const v1::QuantizationCounts& counts = record.counts();
  json["counts"] = Json{{"normal", counts.normal()},
                        {"zero", counts.zero()},
                        {"subnormal", counts.subnormal()},
                        {"flushed_to_zero", counts.flushed_to_zero()},
                        {"saturated", counts.saturated()},
                        {"infinite", counts.infinite()},
                        {"nan", counts.nan()}};
  return json;
}

Json JsonOf(const v1::Environment& environment) {
  Json json;
  json["version"] = environment.version();
  json["build"] = environment.build();
  json["devices"] = ListOf(environment.devices(), [](const v1::DeviceDescription& device) {
    return Json{{"id", device.id()},
                {"name", device.name()},
                {"architecture", device.architecture()},
                {"driver", device.driver()},
                {"multiprocessors", device.multiprocessors()},
                {"sm_clock_mhz", device.sm_clock_mhz()},
                {"memory_clock_mhz", device.memory_clock_mhz()},
                {"memory_bytes", device.memory_bytes()},
                {"stage_clock", device.stage_clock()}};
  });
  json["cuda"] = environment.cuda();
  json["cublaslt"] = environment.cublaslt();
  json["nccl"] = environment.nccl();
  return json;
}

Json JsonOf(const ReportDocument& document) {
  Json json = JsonHead(document.kind);
  json["title"] = document.title;
  json["command"] = document.command;
  json["verdict"] = JsonOf(document.verdict);
  json["comparisons"] = ListOf(document.comparisons, OfSubject);
  json["remarks"] = ListOf(document.remarks);
  json["run"] = nullptr;
  if (!document.has_run) return json;
  Json run;
  AddRunFacts(document.run, run);
  run["variants"] = ListOf(document.run.variants(), OfVariant);
  run["pairs"] = ListOf(document.run.pairs(), OfPair);
  run["verdict"] = JsonOf(document.run.verdict());
  json["run"] = run;
  return json;
}

std::string JsonText(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string JsonDocument(const ReportDocument& document) {
  return JsonText(JsonOf(document), 2) + "\n";
}

std::string JsonLines(const ReportDocument& document) {
  std::string lines;
  const auto add = [&](const std::string& kind, const Json& body) {
    Json line = JsonHead(kind);
    line.update(body);
    absl::StrAppend(&lines, JsonText(line, -1), "\n");
  };
  for (const SubjectComparison& comparison : document.comparisons) {
    add("comparison", OfSubject(comparison));
  }
  for (const v1::VariantReport& variant : document.run.variants()) {
    add("variant", OfVariant(variant));
  }
  for (const v1::PairSummary& pair : document.run.pairs()) add("pair", OfPair(pair));
  Json rest{{"title", document.title},
            {"command", document.command},
            {"verdict", JsonOf(document.verdict)},
            {"remarks", ListOf(document.remarks)}};
  if (document.has_run) AddRunFacts(document.run, rest);
  add("verdict", rest);
  return lines;
}

}  // namespace quantgate
