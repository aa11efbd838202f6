#include "server/runs/tensor_calls.h"

#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/runs/tensor_statistics.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

/// Identity of what a mutating request asks for, apart from its request id.
Sha256 ContentOf(const TensorReference& reference, const std::string& name) {
  const std::string text = ReferenceText(reference) + "\n" + name;
  return Sha256Of(std::as_bytes(std::span(text)));
}

absl::Status CheckLabels(const std::string& name, const std::string& request_id) {
  QG_RETURN_IF_ERROR(CheckName(name, "name"));
  return request_id.empty() ? absl::OkStatus() : CheckToken(request_id, "request_id");
}

void AddStatistics(const TensorStatistics& statistics, v1::TensorStatistics& proto) {
  proto.set_amax(statistics.amax);
  proto.set_mean(statistics.mean);
  proto.set_rms(statistics.rms);
  proto.set_zero_count(statistics.zero_count);
  proto.set_subnormal_count(statistics.subnormal_count);
  proto.set_infinite_count(statistics.infinite_count);
  proto.set_nan_count(statistics.nan_count);
  for (const auto& [exponent, count] : statistics.exponent_histogram) {
    (*proto.mutable_exponent_histogram())[exponent] = count;
  }
}

/// `name`, `request_id` and `response` refer to gRPC's messages, which live until the call is
/// answered.
DeviceWork Register(CallContext& context, TensorReference reference, const std::string& name,
                    const std::string& request_id, v1::TensorRecord& response) {
  return {"",
          [&context, reference = std::move(reference), &name, &request_id, &response](
              Device& device, const Cancellation& cancellation) -> absl::Status {
            const Sha256 content = ContentOf(reference, name);
            QG_ASSIGN_OR_RETURN(auto record, context.tensors.FindRequest(request_id, content));
            if (!record.has_value()) {
              QG_ASSIGN_OR_RETURN(record, context.loader.Register(reference, name, request_id,
                                                                  content, device, &cancellation));
            }
            response = TensorRecordToProto(*record);
            return absl::OkStatus();
          }};
}

absl::Status DescribeLoaded(CallContext& context, const TensorReference& reference,
                            bool with_statistics, Device& device, const Cancellation& cancellation,
                            v1::TensorRecord& response) {
  TensorRecord record;
  record.type = *reference.type;
  if (reference.kind == TensorReference::Kind::kStored) {
    QG_ASSIGN_OR_RETURN(const auto known, context.tensors.Find(reference.digest));
    for (const TensorRecord& candidate : known) {
      if (candidate.type == record.type) record.name = candidate.name;
    }
  }
  QG_ASSIGN_OR_RETURN(const Tensor tensor, context.loader.Load(reference, device, &cancellation));
  record.digest = reference.digest;
  if (reference.kind == TensorReference::Kind::kGenerated) {
    QG_ASSIGN_OR_RETURN(const Tensor host, device.engine->ToHost(tensor, &cancellation));
    record.digest = Digest::Of(host.bytes());
  }
  QG_ASSIGN_OR_RETURN(record.fingerprint, device.engine->FingerprintOf(tensor, &cancellation));
  response = TensorRecordToProto(record);
  if (!with_statistics) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const Tensor host,
                      context.loader.LoadToHost(reference, device, &cancellation));
  auto statistics = MeasureStatistics(host, &cancellation);
  if (!statistics.ok()) return WithinField("tensor.type", statistics.status());
  AddStatistics(*statistics, *response.mutable_statistics());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceWork> PreparePutTensor(CallContext& context,
                                            const v1::PutTensorRequest& request,
                                            v1::TensorRecord& response) {
  QG_RETURN_IF_ERROR(CheckLabels(request.name(), request.request_id()));
  QG_ASSIGN_OR_RETURN(
      TensorReference reference,
      TensorReferenceFromProto(request.tensor(), "tensor", context.tensor_bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(reference));
  if (reference.kind == TensorReference::Kind::kGenerated) {
    return Refuse("tensor.generate", "given", "Tensors.Generate makes tensors");
  }
  TensorReference* const references[] = {&reference};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  return Register(context, std::move(reference), request.name(), request.request_id(), response);
}

absl::StatusOr<DeviceWork> PrepareGenerateTensor(CallContext& context,
                                                 const v1::GenerateTensorRequest& request,
                                                 v1::TensorRecord& response) {
  QG_RETURN_IF_ERROR(CheckLabels(request.name(), request.request_id()));
  TensorReference reference;
  reference.kind = TensorReference::Kind::kGenerated;
  reference.field = "spec";
  QG_ASSIGN_OR_RETURN(reference.generator,
                      GeneratorFromProto(request.spec(), "spec", context.tensor_bytes_max));
  reference.type = TensorType{reference.generator.dtype, reference.generator.shape};
  return Register(context, std::move(reference), request.name(), request.request_id(), response);
}

absl::StatusOr<DeviceWork> PrepareDescribeTensor(CallContext& context,
                                                 const v1::DescribeTensorRequest& request,
                                                 v1::TensorRecord& response) {
  QG_ASSIGN_OR_RETURN(
      TensorReference reference,
      TensorReferenceFromProto(request.tensor(), "tensor", context.tensor_bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(reference));
  if (reference.kind == TensorReference::Kind::kStored &&
      !context.blobs.Contains(reference.digest)) {
    return error::BlobNotFound(reference.digest);
  }
  TensorReference* const references[] = {&reference};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  return DeviceWork{
      "", [&context, reference = std::move(reference), with_statistics = request.with_statistics(),
           &response](Device& device, const Cancellation& cancellation) {
        return DescribeLoaded(context, reference, with_statistics, device, cancellation, response);
      }};
}

absl::Status ListTensors(CallContext& context, const v1::ListTensorsRequest& request,
                         v1::ListTensorsResponse& response) {
  QG_ASSIGN_OR_RETURN(const Page page, PageFromProto(request.page_size(), request.page_token()));
  QG_ASSIGN_OR_RETURN(const TensorPage found, context.tensors.List(page.before_id, page.size));
  for (const TensorRecord& record : found.records) {
    *response.add_tensors() = TensorRecordToProto(record);
  }
  response.set_next_page_token(PageToken(found.next_before_id));
  return absl::OkStatus();
}

}  // namespace quantgate
