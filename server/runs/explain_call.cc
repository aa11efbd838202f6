// Engine.Explain.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/validate/diagnosis/gemm_hypotheses.h"
#include "kernels/validate/explain/explain_codes.h"
#include "kernels/validate/explain/explain_gemm.h"
#include "server/runs/engine_calls.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

using Difference = v1::ExplainResponse::Difference;

ExecutionContext ContextOf(const CallContext& context, const Cancellation& cancellation) {
  return {context.host.isa, context.host.threads, &cancellation};
}

template <typename Location>
Difference LocationToProto(const Location& at) {
  Difference proto;
  proto.set_row(at.row);
  proto.set_column(at.column);
  proto.set_given(at.given);
  proto.set_expected(at.expected);
  return proto;
}

v1::ExplainResponse::GemmCandidate CandidateToProto(const GemmCandidate& candidate) {
  v1::ExplainResponse::GemmCandidate proto;
  proto.set_arithmetic(candidate.arithmetic);
  proto.set_rule(candidate.rule);
  proto.set_match_count(candidate.match_count);
  proto.set_output_count(candidate.output_count);
  if (candidate.first_difference.has_value()) {
    *proto.mutable_first_difference() = LocationToProto(*candidate.first_difference);
  }
  return proto;
}

v1::ExplainResponse::StochasticSpread SpreadToProto(const SpreadResult& spread) {
  v1::ExplainResponse::StochasticSpread proto;
  proto.set_count(spread.count);
  proto.set_variance(spread.variance);
  proto.set_bias(spread.bias);
  proto.set_slope(spread.slope);
  proto.set_chi_square(spread.chi_square);
  proto.set_bins(spread.bins);
  proto.set_rarest(spread.rarest);
  proto.set_level(kSpreadLevel);
  return proto;
}

v1::ExplainResponse::CodesCandidate CandidateToProto(const CodesCandidate& candidate) {
  v1::ExplainResponse::CodesCandidate proto;
  proto.set_element(candidate.element);
  proto.set_block(candidate.block);
  proto.set_scale_rule(candidate.scale_rule);
  proto.set_scale_origin(candidate.scale_origin);
  for (const std::string& library : candidate.libraries) proto.add_libraries(library);
  proto.set_element_rule(candidate.element_rule);
  proto.set_is_deterministic(candidate.is_deterministic);
  proto.set_scale_match_count(candidate.scale_matches);
  proto.set_scale_count(candidate.scale_count);
  proto.set_code_match_count(candidate.code_matches);
  proto.set_code_count(candidate.code_count);
  if (candidate.first_difference.has_value()) {
    *proto.mutable_first_difference() = LocationToProto(*candidate.first_difference);
  }
  const CodesEvidence& evidence = candidate.evidence;
  proto.set_scale_distinct_count(evidence.scale_distinct);
  proto.set_amax_distinct_count(evidence.amax_distinct);
  proto.set_between_count(evidence.between_count);
  proto.set_tie_count(evidence.tie_count);
  proto.set_telling_count(evidence.telling_count);
  proto.set_overflow_count(evidence.overflow_count);
  proto.set_zero_telling_count(evidence.zero_telling_count);
  proto.set_step_up_count(evidence.step_up_count);
  proto.set_step_down_count(evidence.step_down_count);
  proto.set_off_tie_max(evidence.off_tie_max);
  if (evidence.spread.has_value()) *proto.mutable_spread() = SpreadToProto(*evidence.spread);
  proto.set_is_established(candidate.is_established);
  proto.set_zero_point_match_count(candidate.zero_matches);
  proto.set_zero_point_count(candidate.zero_count);
  return proto;
}

struct CodesWork {
  SlotReferences references;
  ExplainCodesRequest request;  ///< With outlines of the tensors.
};

absl::StatusOr<CodesWork> CheckCodes(CallContext& context,
                                     const v1::ExplainRequest::Codes& request) {
  const int64_t bytes_max = context.tensor_bytes_max;
  CodesWork work;
  SlotReferences& references = work.references;
  QG_RETURN_IF_ERROR(AddReference("source", request.source(), bytes_max, references));
  QG_RETURN_IF_ERROR(AddReference("codes", request.codes(), bytes_max, references));
  QG_RETURN_IF_ERROR(AddReference("scale_inv", request.scale_inv(), bytes_max, references));
  QG_RETURN_IF_ERROR(AddReference("amax", request.amax(), bytes_max, references));
  QG_RETURN_IF_ERROR(AddReference("zero_point", request.zero_point(), bytes_max, references));
  QG_RETURN_IF_ERROR(RequireTensors(references, {"source", "codes", "scale_inv"}));
  QG_ASSIGN_OR_RETURN(work.request.scale_layout,
                      ScaleLayoutFromName(request.scale_layout(), "scale_layout"));
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  work.request.source = OutlineOf(references, "source");
  work.request.codes = OutlineOf(references, "codes");
  work.request.scale_inv = OutlineOf(references, "scale_inv");
  work.request.zero_point = OutlineOf(references, "zero_point");
  for (Tensor* const tensor : {&work.request.scale_inv, &work.request.zero_point}) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(
        *tensor, tensor->Reinterpret(tensor->dtype(),
                                     FlattenScales(tensor->shape(), work.request.codes.shape(),
                                                   work.request.scale_layout)));
  }
  work.request.amax = OutlineOf(references, "amax");
  QG_RETURN_IF_ERROR(CheckExplainCodes(work.request));
  return work;
}

absl::Status ExplainCodesOf(CallContext& context, Device& device, const CodesWork& work,
                            const Cancellation& cancellation, v1::ExplainResponse& response) {
  const auto load = [&](const std::string& slot) {
    return context.loader.LoadToHost(work.references.at(slot), device, &cancellation);
  };
  ExplainCodesRequest request = work.request;
  QG_RETURN_IF_ERROR(LoadSlot("source", load, request.source));
  QG_RETURN_IF_ERROR(LoadSlot("codes", load, request.codes));
  QG_RETURN_IF_ERROR(LoadSlot("scale_inv", load, request.scale_inv));
  QG_RETURN_IF_ERROR(LoadSlot("amax", load, request.amax));
  QG_RETURN_IF_ERROR(LoadSlot("zero_point", load, request.zero_point));
  QG_ASSIGN_OR_RETURN(const CodesExplanation explanation,
                      ExplainCodes(request, ContextOf(context, cancellation)));
  for (const CodesCandidate& candidate : explanation.candidates) {
    *response.add_codes() = CandidateToProto(candidate);
  }
  response.set_tried(explanation.tried);
  for (const std::string& line : explanation.conclusion) response.add_conclusion(line);
  response.set_is_established(explanation.is_established);
  response.set_cause(explanation.cause);
  return absl::OkStatus();
}

struct GemmExplainWork {
  GemmWork gemm;
  TensorReference d;
};

absl::StatusOr<GemmExplainWork> CheckGemmSubject(CallContext& context,
                                                 const v1::ExplainRequest::Gemm& request) {
  for (const auto& [field, value] : {std::pair("gemm.arithmetic", &request.gemm().arithmetic()),
                                     {"gemm.out_dtype", &request.gemm().out_dtype()}}) {
    if (!value->empty()) {
      return Refuse(field, Printable(*value), "must be empty: Explain finds it");
    }
  }
  QG_ASSIGN_OR_RETURN(TensorReference d,
                      TensorReferenceFromProto(request.d(), "d", context.tensor_bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(d));
  TensorReference* const references[] = {&d};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  // The output's type decides what c may be; fp32 takes every operand that any arithmetic takes.
  v1::GemmRequest gemm = request.gemm();
  gemm.set_arithmetic("fp32");
  gemm.set_out_dtype(std::string(DTypeName(d.type->dtype)));
  QG_ASSIGN_OR_RETURN(GemmWork work, CheckGemmRequest(context, gemm));
  QG_RETURN_IF_ERROR(CheckExplainGemm({work.plan.desc(), OutlineOf(d)}).status());
  return GemmExplainWork{std::move(work), std::move(d)};
}

absl::Status ExplainGemmOf(CallContext& context, Device& device, const GemmExplainWork& work,
                           const Cancellation& cancellation, v1::ExplainResponse& response) {
  QG_ASSIGN_OR_RETURN(
      const GemmPlan loaded, work.gemm.plan.WithTensors([&](const std::string& slot) {
        return context.loader.LoadToHost(work.gemm.references.at(slot), device, &cancellation);
      }));
  const std::unique_ptr<Engine> host =
      MakeCpuEngine({.isa = context.host.isa, .threads = context.host.threads});
  QG_ASSIGN_OR_RETURN(const GemmPlan plan, loaded.Dequantized(*host, &cancellation));
  const absl::Time start = SteadyNow();
  ExplainGemmRequest request;
  request.desc = plan.desc();
  QG_ASSIGN_OR_RETURN(request.d, context.loader.LoadToHost(work.d, device, &cancellation));
  QG_ASSIGN_OR_RETURN(const GemmExplanation explanation,
                      ExplainGemm(request, ContextOf(context, cancellation)));
  for (const GemmCandidate& candidate : explanation.candidates) {
    *response.add_gemm() = CandidateToProto(candidate);
  }
  response.set_tried(explanation.tried);
  response.set_sample_count(explanation.sample_count);
  response.set_is_established(explanation.is_established);
  const auto& candidates = explanation.candidates;
  if (std::none_of(candidates.begin(), candidates.end(),
                   [](const GemmCandidate& one) { return one.is_entire(); })) {
    QG_ASSIGN_OR_RETURN(
        const Diagnosis diagnosis,
        DiagnoseGemm(request.desc, request.d, DiagnosisBudget::Of(SteadyNow() - start)));
    *response.mutable_diagnosis() = DiagnosisToProto(diagnosis);
  }
  return absl::OkStatus();
}

/// Work that runs `explain` and adds to the response how long it took.
template <typename Work>
DeviceWork Timed(CallContext& context, v1::ExplainResponse& response, Work work,
                 absl::Status (*explain)(CallContext&, Device&, const Work&, const Cancellation&,
                                         v1::ExplainResponse&)) {
  return DeviceWork{"", [&context, &response, work = std::move(work), explain](
                            Device& device, const Cancellation& cancellation) {
                      const absl::Time start = SteadyNow();
                      QG_RETURN_IF_ERROR(explain(context, device, work, cancellation, response));
                      response.set_seconds(absl::ToDoubleSeconds(SteadyNow() - start));
                      return absl::OkStatus();
                    }};
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareExplain(CallContext& context, const v1::ExplainRequest& request,
                                          v1::ExplainResponse& response) {
  if (request.has_gemm()) {
    QG_ASSIGN_OR_RETURN(GemmExplainWork work, CheckGemmSubject(context, request.gemm()));
    return Timed<GemmExplainWork>(context, response, std::move(work), ExplainGemmOf);
  }
  if (request.has_codes()) {
    QG_ASSIGN_OR_RETURN(CodesWork work, CheckCodes(context, request.codes()));
    return Timed<CodesWork>(context, response, std::move(work), ExplainCodesOf);
  }
  return RefuseAbsent("subject", "give gemm or codes");
}

}  // namespace quantgate
