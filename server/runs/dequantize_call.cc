// Engine.Dequantize.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/runs/engine_calls.h"
#include "server/runs/output_writer.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"

namespace quantgate {
namespace {

absl::StatusOr<DType> HighPrecisionFromName(const std::string& name, const std::string& field) {
  if (name.empty()) return DType::kF32;
  const auto dtype = ParseDType(name);
  if (dtype.ok() && IsHighPrecision(*dtype)) return *dtype;
  return Refuse(field, Printable(name), "must be f32, bf16 or f16");
}

struct DequantizeWork {
  std::array<TensorReference, kQuantizedParts.size()> parts;
  Usage usage = Usage::kRowwise;
  DType out_dtype = DType::kF32;
  DescribedCopy described;  ///< Outlines.
};

absl::Status SetParts(const v1::DequantizeRequest& request, int64_t bytes_max,
                      DequantizeWork& work) {
  for (const auto& [name, source] : request.tensors()) {
    // Dequantization takes scale_inv; the rest is for the next cast.
    if (name == kScalePart || name == kAmaxHistoryPart) continue;
    size_t index = 0;
    while (index < kQuantizedParts.size() && name != kQuantizedParts[index].name) ++index;
    const std::string field = absl::StrCat("tensors[", Printable(name), "]");
    if (index == kQuantizedParts.size()) {
      return Refuse(field, "given", "not a name that Quantize gives");
    }
    QG_ASSIGN_OR_RETURN(work.parts[index], TensorReferenceFromProto(source, field, bytes_max));
  }
  for (size_t i = 0; i < kQuantizedParts.size(); ++i) {
    if (work.parts[i].has_value()) continue;
    work.parts[i].field = absl::StrCat("tensors[\"", kQuantizedParts[i].name, "\"]");
  }
  return absl::OkStatus();
}

/// The parts of the usage that is read, each made a tensor by `load`.
template <typename LoadPart>
absl::StatusOr<QuantizedCopy> CopyOf(const DequantizeWork& work, LoadPart load) {
  QuantizedCopy copy;
  for (size_t i = 0; i < kQuantizedParts.size(); ++i) {
    if (kQuantizedParts[i].usage != work.usage) continue;
    QG_ASSIGN_OR_RETURN(copy.*kQuantizedParts[i].member, load(work.parts[i]));
  }
  return copy;
}

absl::StatusOr<DequantizeWork> CheckDequantize(ServiceContext& context,
                                               const v1::DequantizeRequest& request) {
  DequantizeWork work;
  QG_RETURN_IF_ERROR(SetParts(request, context.options.tensor_bytes_max, work));
  const bool has_rowwise = work.parts[0].has_value();
  if (request.usage() == "columnwise" || (request.usage().empty() && !has_rowwise)) {
    work.usage = Usage::kColumnwise;
  } else if (!request.usage().empty() && request.usage() != "rowwise") {
    return Refuse("usage", Printable(request.usage()), "must be rowwise or columnwise");
  }
  QG_ASSIGN_OR_RETURN(work.out_dtype, HighPrecisionFromName(request.out_dtype(), "out_dtype"));
  std::vector<TensorReference*> references;
  for (TensorReference& part : work.parts) references.push_back(&part);
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  QG_RETURN_IF_ERROR(RequireTensor(work.parts[work.usage == Usage::kRowwise ? 0 : 2]));
  QG_ASSIGN_OR_RETURN(QuantizedCopy outlines,
                      CopyOf(work, [](const TensorReference& part) -> absl::StatusOr<Tensor> {
                        return TensorLoader::Outline(part);
                      }));
  QG_ASSIGN_OR_RETURN(work.described,
                      DescribeCopy(request.description(), work.usage, std::move(outlines)));
  const QuantizedCopy& copy = work.described.copy;
  if (copy.format == QuantizerFormat::kNvfp4 && work.usage == Usage::kColumnwise) {
    return StatusOf({.code = absl::StatusCode::kUnimplemented,
                     .field = "usage",
                     .value = "columnwise",
                     .rule = "columnwise nvfp4 codes are not dequantized, as in Transformer "
                             "Engine; read rowwise"});
  }
  QG_RETURN_IF_ERROR(CheckResultBytes({work.out_dtype, work.described.shape}, "data",
                                      context.options.tensor_bytes_max));
  return work;
}

absl::Status Dequantize(ServiceContext& context, Device& device, const DequantizeWork& work,
                        const Cancellation& cancellation, v1::DequantizeResponse& response) {
  QuantizedTensor quantized;
  quantized.shape = work.described.shape;
  QG_ASSIGN_OR_RETURN(const QuantizedCopy loaded, CopyOf(work, [&](const TensorReference& part) {
                        return context.loader.Load(part, device, &cancellation);
                      }));
  QuantizedCopy& copy = quantized.copy(work.usage).emplace(work.described.copy);
  for (const QuantizedPart& part : kQuantizedParts) {
    const Tensor& bytes = loaded.*part.member;
    if (part.usage != work.usage || !bytes.has_value()) continue;
    // What the outline was found to be: U8 codes are FP4.
    const Tensor& outline = work.described.copy.*part.member;
    QG_ASSIGN_OR_RETURN(copy.*part.member, bytes.Reinterpret(outline.dtype(), outline.shape()));
  }
  if (work.described.scale_layout != ScaleLayout::kLogical && BlockLength(copy.format) > 1) {
    QG_ASSIGN_OR_RETURN(
        copy.scale_inv,
        device.engine->ConvertScales(
            copy.scale_inv, ScaleArrayOf(copy.format, copy.block_dim, work.usage, quantized.shape),
            work.described.scale_layout, ScaleLayout::kLogical));
  }
  QG_ASSIGN_OR_RETURN(
      const Tensor result,
      device.engine->Dequantize(quantized, work.usage, work.out_dtype, &cancellation));
  QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                      device.engine->FingerprintOf(result, &cancellation));
  return OutputWriter(context.blobs, *device.engine, KeepOutputs::kLarge)
      .Write("data", result, fingerprint, response.mutable_data());
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareDequantize(ServiceContext& context,
                                             const v1::DequantizeRequest& request,
                                             v1::DequantizeResponse& response) {
  QG_ASSIGN_OR_RETURN(DequantizeWork work, CheckDequantize(context, request));
  return DeviceWork{"", [&context, &response, work = std::move(work)](
                            Device& device, const Cancellation& cancellation) {
                      return Dequantize(context, device, work, cancellation, response);
                    }};
}

}  // namespace quantgate
