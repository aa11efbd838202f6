// Engine.Explain.
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/validate/explain_codes.h"
#include "kernels/validate/explain_gemm.h"
#include "server/runs/engine_calls.h"
#include "server/runs/gemm_request.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"

namespace quantgate {
namespace {

using Difference = v1::ExplainResponse::Difference;

ExecutionContext ContextOf(const ServiceContext& context, const Cancellation& cancellation) {
  return {context.options.engine.isa, context.options.engine.threads, &cancellation};
}

/// The detail of a refusal that only the tensors' contents or shapes together could give.
absl::Status AtAnyField(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? WithinField("", status) : status;
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
  return proto;
}

struct CodesWork {
  TensorReference source, codes, scale_inv, amax;
  ScaleLayout scale_layout = ScaleLayout::kLogical;

  std::array<TensorReference*, 4> references() { return {&source, &codes, &scale_inv, &amax}; }
};

absl::StatusOr<CodesWork> CheckCodes(ServiceContext& context,
                                     const v1::ExplainRequest::Codes& request) {
  const int64_t bytes_max = context.options.tensor_bytes_max;
  CodesWork work;
  QG_ASSIGN_OR_RETURN(work.source, TensorReferenceFromProto(request.source(), "source", bytes_max));
  QG_ASSIGN_OR_RETURN(work.codes, TensorReferenceFromProto(request.codes(), "codes", bytes_max));
  QG_ASSIGN_OR_RETURN(work.scale_inv,
                      TensorReferenceFromProto(request.scale_inv(), "scale_inv", bytes_max));
  QG_ASSIGN_OR_RETURN(work.amax, TensorReferenceFromProto(request.amax(), "amax", bytes_max));
  for (const TensorReference* needed : {&work.source, &work.codes, &work.scale_inv}) {
    QG_RETURN_IF_ERROR(RequireTensor(*needed));
  }
  QG_ASSIGN_OR_RETURN(work.scale_layout,
                      ScaleLayoutFromName(request.scale_layout(), "scale_layout"));
  QG_RETURN_IF_ERROR(context.loader.Resolve(work.references()));
  return work;
}

absl::Status ExplainCodesOf(ServiceContext& context, Device& device, CodesWork& work,
                            const Cancellation& cancellation, v1::ExplainResponse& response) {
  ExplainCodesRequest request;
  request.scale_layout = work.scale_layout;
  QG_ASSIGN_OR_RETURN(request.source,
                      context.loader.LoadToHost(work.source, device, &cancellation));
  QG_ASSIGN_OR_RETURN(request.codes, context.loader.LoadToHost(work.codes, device, &cancellation));
  QG_ASSIGN_OR_RETURN(request.scale_inv,
                      context.loader.LoadToHost(work.scale_inv, device, &cancellation));
  QG_ASSIGN_OR_RETURN(request.scale_inv,
                      request.scale_inv.Reinterpret(
                          request.scale_inv.dtype(),
                          FlattenScales(request.scale_inv.shape(), request.codes.shape())));
  QG_ASSIGN_OR_RETURN(request.amax, context.loader.LoadToHost(work.amax, device, &cancellation));
  const auto explanation = ExplainCodes(request, ContextOf(context, cancellation));
  if (!explanation.ok()) return AtAnyField(explanation.status());
  for (const CodesCandidate& candidate : explanation->candidates) {
    *response.add_codes() = CandidateToProto(candidate);
  }
  response.set_tried(explanation->tried);
  for (const std::string& line : explanation->conclusion) response.add_conclusion(line);
  response.set_is_established(explanation->is_established);
  return absl::OkStatus();
}

struct GemmExplainWork {
  GemmWork gemm;
  TensorReference d;
};

absl::StatusOr<GemmExplainWork> CheckGemmSubject(ServiceContext& context,
                                                 const v1::ExplainRequest::Gemm& request) {
  for (const auto& [field, value] : {std::pair("gemm.arithmetic", &request.gemm().arithmetic()),
                                     {"gemm.out_dtype", &request.gemm().out_dtype()}}) {
    if (!value->empty()) {
      return Refuse(field, Printable(*value), "must be empty: it is looked for");
    }
  }
  GemmExplainWork work;
  QG_ASSIGN_OR_RETURN(work.d,
                      TensorReferenceFromProto(request.d(), "d", context.options.tensor_bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(work.d));
  TensorReference* const references[] = {&work.d};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  // The output's type decides what c may be; fp32 takes every operand that any arithmetic takes.
  v1::GemmRequest gemm = request.gemm();
  gemm.set_arithmetic("fp32");
  gemm.set_out_dtype(std::string(DTypeName(work.d.type->dtype)));
  QG_ASSIGN_OR_RETURN(work.gemm, CheckGemmRequest(context, gemm));
  return work;
}

absl::Status ExplainGemmOf(ServiceContext& context, Device& device, GemmExplainWork& work,
                           const Cancellation& cancellation, v1::ExplainResponse& response) {
  QG_RETURN_IF_ERROR(LoadGemmToHost(context, device, work.gemm, cancellation));
  ExplainGemmRequest request;
  request.desc = work.gemm.desc;
  QG_ASSIGN_OR_RETURN(request.d, context.loader.LoadToHost(work.d, device, &cancellation));
  const auto explanation = ExplainGemm(request, ContextOf(context, cancellation));
  if (!explanation.ok()) return AtAnyField(explanation.status());
  for (const GemmCandidate& candidate : explanation->candidates) {
    *response.add_gemm() = CandidateToProto(candidate);
  }
  response.set_tried(explanation->tried);
  response.set_sample_count(explanation->sample_count);
  return absl::OkStatus();
}

/// `explain` with its time.
template <typename Work>
DeviceWork Timed(ServiceContext& context, v1::ExplainResponse& response, Work work,
                 absl::Status (*explain)(ServiceContext&, Device&, Work&, const Cancellation&,
                                         v1::ExplainResponse&)) {
  return DeviceWork{"", [&context, &response, work = std::move(work), explain](
                            Device& device, const Cancellation& cancellation) mutable {
                      const absl::Time start = SteadyNow();
                      QG_RETURN_IF_ERROR(explain(context, device, work, cancellation, response));
                      response.set_seconds(absl::ToDoubleSeconds(SteadyNow() - start));
                      return absl::OkStatus();
                    }};
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareExplain(ServiceContext& context,
                                          const v1::ExplainRequest& request,
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
