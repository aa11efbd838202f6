// Engine.Quantize and Engine.Dequantize.
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/rpc/convert_recipe.h"
#include "server/rpc/convert_report.h"
#include "server/rpc/convert_tensor.h"
#include "server/rpc/engine_calls.h"
#include "server/rpc/output_writer.h"

namespace quantgate {
namespace {

/// A part of a QuantizedCopy under its name in files and messages (docs/definitions.md section 8).
struct Part {
  const char* name;
  Usage usage;
  Tensor QuantizedCopy::*member;
};
constexpr std::array<Part, 6> kParts = {{
    {"rowwise_data", Usage::kRowwise, &QuantizedCopy::data},
    {"rowwise_scale_inv", Usage::kRowwise, &QuantizedCopy::scale_inv},
    {"columnwise_data", Usage::kColumnwise, &QuantizedCopy::data},
    {"columnwise_scale_inv", Usage::kColumnwise, &QuantizedCopy::scale_inv},
    {"amax_rowwise", Usage::kRowwise, &QuantizedCopy::amax},
    {"amax_columnwise", Usage::kColumnwise, &QuantizedCopy::amax},
}};
constexpr char kScaleName[] = "scale";

absl::StatusOr<DType> HighPrecisionFromName(const std::string& name, const std::string& field) {
  if (name.empty()) return DType::kF32;
  const auto dtype = ParseDType(name);
  if (dtype.ok() && IsHighPrecision(*dtype)) return *dtype;
  return error::InvalidField(field, Printable(name), "must be f32, bf16 or f16");
}

float ScalarOf(const Tensor& tensor) { return tensor.has_value() ? *tensor.as<float>() : 0; }

struct QuantizeWork {
  TensorReference tensor;
  Recipe recipe;
  TensorRole role;
  Usages usages;
};

absl::StatusOr<QuantizeWork> CheckQuantize(ServiceContext& context,
                                           const v1::QuantizeRequest& request) {
  QG_ASSIGN_OR_RETURN(
      TensorReference tensor,
      TensorReferenceFromProto(request.tensor(), "tensor", context.options.tensor_bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(tensor));
  QG_ASSIGN_OR_RETURN(Recipe recipe, RecipeFromProto(request.recipe(), "recipe"));
  const auto role = ParseTensorRole(request.role());
  if (!role.ok()) {
    return error::InvalidField("role", Printable(request.role()),
                               "must be input, weight or grad_output");
  }
  if (!request.rowwise() && !request.columnwise()) {
    return error::MissingField("rowwise", "ask for rowwise, columnwise or both");
  }
  if (request.seed() != 0) {
    return error::InvalidField(
        "seed", absl::StrCat(request.seed()),
        absl::StrCat("recipe ", recipe.name(), " does not round stochastically"));
  }
  TensorReference* const references[] = {&tensor};
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  if (!IsHighPrecision(tensor.type->dtype)) {
    return error::InvalidField("tensor", TensorTypeText(*tensor.type),
                               "tensors of f32, bf16 and f16 are quantized");
  }
  if (tensor.type->shape.empty()) {
    return error::InvalidField("tensor", TensorTypeText(*tensor.type), "the rank is at least 1");
  }
  return QuantizeWork{std::move(tensor), std::move(recipe), *role,
                      Usages{request.rowwise(), request.columnwise()}};
}

absl::Status Quantize(ServiceContext& context, const QuantizeWork& work,
                      const Cancellation& cancellation, v1::QuantizeResponse& response) {
  const Usage usage = work.usages.rowwise ? Usage::kRowwise : Usage::kColumnwise;
  const Quantizer quantizer = work.recipe.QuantizerFor(work.role);
  QG_ASSIGN_OR_RETURN(const Tensor source, context.loader.Load(work.tensor, &cancellation));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                      context.engine.Quantize(source, quantizer, work.usages, {}, &cancellation));
  OutputWriter writer(context.blobs, /*keep=*/false);
  const auto write = [&](const char* name, const Tensor& tensor) -> absl::Status {
    if (!tensor.has_value()) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                        context.engine.FingerprintOf(tensor, &cancellation));
    return writer.Write(name, tensor, fingerprint, response.add_tensors());
  };
  for (const Part& part : kParts) {
    const std::optional<QuantizedCopy>& copy = quantized.copy(part.usage);
    if (copy.has_value()) QG_RETURN_IF_ERROR(write(part.name, (*copy).*part.member));
  }
  QG_RETURN_IF_ERROR(write(kScaleName, quantized.scale));
  QuantizationRecord record;
  record.role = work.role;
  record.usages = work.usages;
  record.quantizer = QuantizerText(quantizer);
  const QuantizedCopy& copy = *quantized.copy(usage);
  record.amax = ScalarOf(copy.amax);
  record.scale = ScalarOf(quantized.scale);
  record.scale_inv = ScalarOf(copy.scale_inv);
  record.counts = quantized.counts;
  *response.mutable_record() = QuantizationRecordToProto(record);
  response.set_source_dtype(std::string(DTypeName(source.dtype())));
  context.metrics.Quantized(work.recipe.name(), quantized.counts);
  return absl::OkStatus();
}

struct DequantizeWork {
  std::array<TensorReference, kParts.size()> parts;
  Usage usage = Usage::kRowwise;
  DType out_dtype = DType::kF32;
};

/// Codes and scale of the usage that is read.
absl::Status CheckDequantizeParts(const DequantizeWork& work) {
  const bool is_rowwise = work.usage == Usage::kRowwise;
  const TensorReference& data = work.parts[is_rowwise ? 0 : 2];
  const TensorReference& scale_inv = work.parts[is_rowwise ? 1 : 3];
  QG_RETURN_IF_ERROR(RequireTensor(data));
  if (!IsFp8(data.type->dtype)) {
    return error::InvalidField(data.field, TensorTypeText(*data.type),
                               "codes are f8_e4m3 or f8_e5m2");
  }
  if (!is_rowwise && data.type->shape.size() != 2) {
    return error::InvalidField(data.field, TensorTypeText(*data.type),
                               "columnwise codes are the transpose [K][M]");
  }
  QG_RETURN_IF_ERROR(RequireTensor(scale_inv));
  if (*scale_inv.type != TensorType{DType::kF32, {1}}) {
    return error::InvalidField(scale_inv.field, TensorTypeText(*scale_inv.type),
                               "a per-tensor scale_inv is f32[1]");
  }
  return absl::OkStatus();
}

absl::StatusOr<DequantizeWork> CheckDequantize(ServiceContext& context,
                                               const v1::DequantizeRequest& request) {
  DequantizeWork work;
  for (const auto& [name, source] : request.tensors()) {
    if (name == kScaleName) continue;  // Dequantization takes scale_inv.
    size_t index = 0;
    while (index < kParts.size() && name != kParts[index].name) ++index;
    const std::string field = absl::StrCat("tensors[", Printable(name), "]");
    if (index == kParts.size()) {
      return error::InvalidField(field, "given", "not a name that Quantize gives");
    }
    QG_ASSIGN_OR_RETURN(work.parts[index],
                        TensorReferenceFromProto(source, field, context.options.tensor_bytes_max));
  }
  for (size_t i = 0; i < kParts.size(); ++i) {
    if (!work.parts[i].has_value())
      work.parts[i].field = absl::StrCat("tensors[\"", kParts[i].name, "\"]");
  }
  const bool has_rowwise = work.parts[0].has_value();
  if (request.usage() == "columnwise" || (request.usage().empty() && !has_rowwise)) {
    work.usage = Usage::kColumnwise;
  } else if (!request.usage().empty() && request.usage() != "rowwise") {
    return error::InvalidField("usage", Printable(request.usage()),
                               "must be rowwise or columnwise");
  }
  QG_ASSIGN_OR_RETURN(work.out_dtype, HighPrecisionFromName(request.out_dtype(), "out_dtype"));
  std::vector<TensorReference*> references;
  for (TensorReference& part : work.parts) references.push_back(&part);
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  QG_RETURN_IF_ERROR(CheckDequantizeParts(work));
  return work;
}

absl::Status Dequantize(ServiceContext& context, const DequantizeWork& work,
                        const Cancellation& cancellation, v1::DequantizeResponse& response) {
  QuantizedTensor quantized;
  QuantizedCopy& copy = quantized.copy(work.usage).emplace();
  copy.format = QuantizerFormat::kFp8Tensor;
  const bool is_rowwise = work.usage == Usage::kRowwise;
  const size_t first = is_rowwise ? 0 : 2;
  for (size_t i = first; i < first + 2; ++i) {
    QG_ASSIGN_OR_RETURN(copy.*kParts[i].member, context.loader.Load(work.parts[i], &cancellation));
  }
  const Tensor& data = copy.data;
  copy.element = data.dtype();
  quantized.shape = is_rowwise ? data.shape() : Shape{data.shape()[1], data.shape()[0]};
  QG_ASSIGN_OR_RETURN(
      const Tensor result,
      context.engine.Dequantize(quantized, work.usage, work.out_dtype, &cancellation));
  QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                      context.engine.FingerprintOf(result, &cancellation));
  return OutputWriter(context.blobs, /*keep=*/false)
      .Write("data", result, fingerprint, response.mutable_data());
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareQuantize(ServiceContext& context,
                                           const v1::QuantizeRequest& request,
                                           v1::QuantizeResponse& response) {
  QG_ASSIGN_OR_RETURN(QuantizeWork work, CheckQuantize(context, request));
  std::string recipe = work.recipe.name();
  return DeviceWork{std::move(recipe), [&context, &response,
                                        work = std::move(work)](const Cancellation& cancellation) {
                      return Quantize(context, work, cancellation, response);
                    }};
}

absl::StatusOr<DeviceWork> PrepareDequantize(ServiceContext& context,
                                             const v1::DequantizeRequest& request,
                                             v1::DequantizeResponse& response) {
  QG_ASSIGN_OR_RETURN(DequantizeWork work, CheckDequantize(context, request));
  return DeviceWork{
      "", [&context, &response, work = std::move(work)](const Cancellation& cancellation) {
        return Dequantize(context, work, cancellation, response);
      }};
}

}  // namespace quantgate
