// Engine.Compare.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/report/element_types.h"
#include "server/runs/engine_calls.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

struct CompareWork {
  TensorReference subject, reference;
};

/// A hint for u8 tensors: files and tools without an FP8 type store its codes as bytes.
std::string HintOf(const CompareWork& work) {
  const DType subject = work.subject.type->dtype, reference = work.reference.type->dtype;
  if (subject != DType::kU8 && reference != DType::kU8) return "";
  const DType other = subject == DType::kU8 ? reference : subject;
  return absl::StrCat("; if the u8 are codes, say of what type (append @",
                      std::string(DTypeName(DTypeBytes(other) == 1 ? other : DType::kF8E4M3)), ")");
}

absl::StatusOr<CompareWork> CheckCompare(CallContext& context, const v1::CompareRequest& request) {
  const int64_t bytes_max = context.tensor_bytes_max;
  CompareWork work;
  QG_ASSIGN_OR_RETURN(work.subject,
                      TensorReferenceFromProto(request.subject(), "subject", bytes_max));
  QG_ASSIGN_OR_RETURN(work.reference,
                      TensorReferenceFromProto(request.reference(), "reference", bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(work.subject));
  QG_RETURN_IF_ERROR(RequireTensor(work.reference));
  TensorReference* const references[] = {&work.subject, &work.reference};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  if (work.subject.type->shape != work.reference.type->shape) {
    return Refuse(
        "subject", TensorTypeText(*work.subject.type),
        absl::StrCat("its shape must be that of reference ", TensorTypeText(*work.reference.type)));
  }
  const bool has_values = TraitsOf(work.subject.type->dtype).is_floating &&
                          TraitsOf(work.reference.type->dtype).is_floating;
  if (work.subject.type->dtype != work.reference.type->dtype && !has_values) {
    return Refuse("subject", TensorTypeText(*work.subject.type),
                  absl::StrCat("there is nothing to compare with reference ",
                               TensorTypeText(*work.reference.type),
                               ": neither equal dtypes nor real values", HintOf(work)));
  }
  return work;
}

absl::Status Compare(CallContext& context, Device& device, const CompareWork& work,
                     const Cancellation& cancellation, v1::CompareResponse& response) {
  QG_ASSIGN_OR_RETURN(const Tensor subject,
                      context.loader.Load(work.subject, device, &cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor reference,
                      context.loader.Load(work.reference, device, &cancellation));
  if (subject.dtype() == reference.dtype()) {
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        device.engine->CompareBits(subject, reference, &cancellation));
    *response.mutable_parity() = ParityReportToProto(parity);
  }
  if (TraitsOf(subject.dtype()).is_floating && TraitsOf(reference.dtype()).is_floating) {
    QG_ASSIGN_OR_RETURN(const ErrorReport measured,
                        device.engine->MeasureError(subject, reference, &cancellation));
    *response.mutable_error() = ErrorReportToProto(measured);
  }
  SetElementTypes(response, std::string(DTypeName(subject.dtype())),
                  std::string(DTypeName(reference.dtype())));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareCompare(CallContext& context, const v1::CompareRequest& request,
                                          v1::CompareResponse& response) {
  QG_ASSIGN_OR_RETURN(CompareWork work, CheckCompare(context, request));
  return DeviceWork{"", [&context, &response, work = std::move(work)](
                            Device& device, const Cancellation& cancellation) {
                      return Compare(context, device, work, cancellation, response);
                    }};
}

}  // namespace quantgate
