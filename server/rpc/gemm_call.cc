// Engine.Gemm.
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/rpc/convert_tensor.h"
#include "server/rpc/engine_calls.h"
#include "server/rpc/output_writer.h"

namespace quantgate {
namespace {

/// A GEMM whose tensors are still references.
struct GemmWork {
  TensorReference a, a_scale_inv, b, b_scale_inv, c, bias, d_scale;
  GemmDesc desc;

  std::array<TensorReference*, 7> references() {
    return {&a, &a_scale_inv, &b, &b_scale_inv, &c, &bias, &d_scale};
  }
  std::array<Tensor*, 7> tensors(GemmDesc& to) const {
    return {&to.a.data, &to.a.scale_inv, &to.b.data, &to.b.scale_inv, &to.c, &to.bias, &to.d_scale};
  }
};

absl::StatusOr<GemmLayout> LayoutFromName(const std::string& name) {
  if (name.empty() || name == "tn") return GemmLayout::kTN;
  if (name == "nn") return GemmLayout::kNN;
  if (name == "nt") return GemmLayout::kNT;
  return error::InvalidField("layout", Printable(name), "must be tn, nn or nt");
}

absl::StatusOr<DType> OutDTypeFromName(const std::string& name) {
  if (name.empty()) return DType::kF32;
  const auto dtype = ParseDType(name);
  if (dtype.ok() && (IsHighPrecision(*dtype) || IsFp8(*dtype))) return *dtype;
  return error::InvalidField("out_dtype", Printable(name),
                             "must be f32, bf16, f16, f8_e4m3 or f8_e5m2");
}

/// What `scaling` leaves open follows from the shape of scale_inv, where that leaves no doubt.
/// `rows` is m or n.
absl::StatusOr<ScaleMode> ScalingOf(const std::string& name, const TensorReference& scale_inv,
                                    int64_t rows, const std::string& field) {
  if (name == "none") return ScaleMode::kNone;
  if (name == "tensor") return ScaleMode::kTensor;
  if (name == "outer") return ScaleMode::kOuter;
  if (!name.empty()) {
    return error::InvalidField(field, Printable(name), "must be none, tensor or outer");
  }
  if (!scale_inv.has_value()) return ScaleMode::kNone;
  const Shape& shape = scale_inv.type->shape;
  const bool fits_tensor = shape == Shape{1};
  const bool fits_outer = shape == Shape{rows};
  if (fits_tensor != fits_outer) return fits_tensor ? ScaleMode::kTensor : ScaleMode::kOuter;
  return error::MissingField(
      field,
      absl::StrCat("scale_inv of shape ", ShapeText(shape), " with ", rows, " rows fits ",
                   fits_tensor ? "tensor and outer" : "neither tensor nor outer", "; say which"));
}

int64_t DimOf(const TensorReference& reference, size_t dim) {
  const Shape& shape = reference.type->shape;
  return dim < shape.size() ? shape[dim] : 0;
}

absl::Status SetTensors(ServiceContext& context, const v1::GemmRequest& request, GemmWork& work) {
  const int64_t bytes_max = context.options.tensor_bytes_max;
  QG_ASSIGN_OR_RETURN(work.a,
                      TensorReferenceFromProto(request.a().tensor(), "a.tensor", bytes_max));
  QG_ASSIGN_OR_RETURN(work.b,
                      TensorReferenceFromProto(request.b().tensor(), "b.tensor", bytes_max));
  QG_ASSIGN_OR_RETURN(work.a_scale_inv,
                      TensorReferenceFromProto(request.a().scale_inv(), "a.scale_inv", bytes_max));
  QG_ASSIGN_OR_RETURN(work.b_scale_inv,
                      TensorReferenceFromProto(request.b().scale_inv(), "b.scale_inv", bytes_max));
  QG_ASSIGN_OR_RETURN(work.c, TensorReferenceFromProto(request.c(), "c", bytes_max));
  QG_ASSIGN_OR_RETURN(work.bias, TensorReferenceFromProto(request.bias(), "bias", bytes_max));
  QG_ASSIGN_OR_RETURN(work.d_scale,
                      TensorReferenceFromProto(request.d_scale(), "d_scale", bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(work.a));
  QG_RETURN_IF_ERROR(RequireTensor(work.b));
  return context.loader.Resolve(work.references());
}

absl::StatusOr<GemmWork> CheckGemmRequest(ServiceContext& context, const v1::GemmRequest& request) {
  GemmWork work;
  GemmDesc& desc = work.desc;
  QG_ASSIGN_OR_RETURN(desc.layout, LayoutFromName(request.layout()));
  if (!request.arithmetic().empty()) {
    auto arithmetic = Arithmetic::Parse(request.arithmetic());
    if (!arithmetic.ok()) return error::AtField(arithmetic.status(), "arithmetic");
    desc.arithmetic = *arithmetic;
  }
  desc.alpha = request.has_alpha() ? request.alpha() : 1.0f;
  desc.beta = request.beta();
  desc.in_place = request.in_place();
  QG_ASSIGN_OR_RETURN(desc.out_dtype, OutDTypeFromName(request.out_dtype()));
  QG_RETURN_IF_ERROR(SetTensors(context, request, work));
  const int64_t m = DimOf(work.a, desc.layout == GemmLayout::kNT ? 1 : 0);
  const int64_t n = DimOf(work.b, desc.layout == GemmLayout::kTN ? 0 : 1);
  QG_ASSIGN_OR_RETURN(desc.a.scaling,
                      ScalingOf(request.a().scaling(), work.a_scale_inv, m, "a.scaling"));
  QG_ASSIGN_OR_RETURN(desc.b.scaling,
                      ScalingOf(request.b().scaling(), work.b_scale_inv, n, "b.scaling"));
  // Every rule of shapes and types, on tensors without memory.
  GemmDesc outline = desc;
  const auto references = work.references();
  const auto tensors = work.tensors(outline);
  for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = TensorLoader::Outline(*references[i]);
  const auto shape = CheckGemm(outline);
  if (!shape.ok()) return error::AtField(shape.status(), "");
  const TensorType out{desc.out_dtype, {shape->m, shape->n}};
  const auto count = CheckedElementCount(out.shape, out.dtype, "d");
  if (!count.ok() || *count > context.options.tensor_bytes_max / DTypeBytes(out.dtype)) {
    return error::InvalidField(
        "d", TensorTypeText(out),
        absl::StrCat("a tensor has at most ", context.options.tensor_bytes_max, " bytes"));
  }
  return work;
}

absl::Status Gemm(ServiceContext& context, GemmWork& work, const Cancellation& cancellation,
                  v1::GemmResponse& response) {
  const auto references = work.references();
  const auto tensors = work.tensors(work.desc);
  for (size_t i = 0; i < tensors.size(); ++i) {
    QG_ASSIGN_OR_RETURN(*tensors[i], context.loader.Load(*references[i], &cancellation));
  }
  const absl::Time start = absl::Now();
  QG_ASSIGN_OR_RETURN(const GemmResult result, context.engine.Gemm(work.desc, &cancellation));
  response.set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  response.set_arithmetic(result.arithmetic);
  response.set_note(result.note);
  response.set_text(GemmText(work.desc));
  OutputWriter writer(context.blobs, /*keep=*/false);
  QG_ASSIGN_OR_RETURN(Fingerprint fingerprint,
                      context.engine.FingerprintOf(result.d, &cancellation));
  QG_RETURN_IF_ERROR(writer.Write("d", result.d, fingerprint, response.mutable_d()));
  if (!result.amax.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(fingerprint, context.engine.FingerprintOf(result.amax, &cancellation));
  return writer.Write("amax", result.amax, fingerprint, response.mutable_amax());
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareGemm(ServiceContext& context, const v1::GemmRequest& request,
                                       v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(GemmWork work, CheckGemmRequest(context, request));
  return DeviceWork{
      "", [&context, &response, work = std::move(work)](const Cancellation& cancellation) mutable {
        return Gemm(context, work, cancellation, response);
      }};
}

}  // namespace quantgate
