#include "client/tensor_source.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"

namespace quantgate {

v1::TensorDescriptor DescriptorOf(const Tensor& tensor) {
  v1::TensorDescriptor descriptor;
  descriptor.set_dtype(std::string(DTypeName(tensor.dtype())));
  descriptor.mutable_shape()->Add(tensor.shape().begin(), tensor.shape().end());
  return descriptor;
}

v1::TensorSource InlineScalar(float value) {
  v1::TensorSource source;
  v1::InlineTensor& tensor = *source.mutable_inline_();
  tensor.mutable_type()->set_dtype("f32");
  tensor.mutable_type()->add_shape(1);
  tensor.set_data(&value, sizeof(value));
  return source;
}

absl::StatusOr<v1::TensorSource> TensorSources::ResolveStored(const TensorName& name) {
  v1::TensorSource source;
  *source.mutable_stored() = name.stored;
  if (!name.reinterpreted) return source;
  v1::TensorDescriptor descriptor = name.stored.type();
  if (!name.stored.has_type()) {
    v1::DescribeTensorRequest request;
    *request.mutable_tensor() = source;
    QG_ASSIGN_OR_RETURN(const v1::TensorRecord record, connection_.DescribeTensor(request));
    descriptor = record.type();
  }
  QG_ASSIGN_OR_RETURN(const DType from, ParseDType(descriptor.dtype()));
  const Shape shape(descriptor.shape().begin(), descriptor.shape().end());
  QG_ASSIGN_OR_RETURN(const Shape viewed, ReinterpretedShape(shape, from, *name.reinterpreted));
  descriptor.set_dtype(std::string(DTypeName(*name.reinterpreted)));
  descriptor.clear_shape();
  descriptor.mutable_shape()->Add(viewed.begin(), viewed.end());
  *source.mutable_stored()->mutable_type() = descriptor;
  return source;
}

absl::StatusOr<v1::TensorSource> TensorSources::Resolve(std::string_view field,
                                                        const std::string& text) {
  QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName(field, text));
  v1::TensorSource source;
  switch (name.kind) {
    case TensorName::Kind::kGenerated:
      *source.mutable_generate() = name.generator;
      if (progress_) progress_(text, 0, 0);
      return source;
    case TensorName::Kind::kDigest:
      return ResolveStored(name);
    case TensorName::Kind::kSafetensors:
    case TensorName::Kind::kNpy:
      break;
  }
  files_.insert(name.path);
  QG_ASSIGN_OR_RETURN(const Tensor tensor, LoadTensor(name));
  return Place(text, tensor);
}

absl::StatusOr<v1::TensorSource> TensorSources::Place(const std::string& what,
                                                      const Tensor& tensor) {
  v1::TensorSource source;
  const auto size = static_cast<int64_t>(tensor.byte_size());
  if (placement_ == Placement::kInlineWhenSmall && size <= kInlineTensorBytesMax &&
      bytes_inline_ + size <= kInlineTogetherBytesMax) {
    bytes_inline_ += size;
    v1::InlineTensor& inline_tensor = *source.mutable_inline_();
    *inline_tensor.mutable_type() = DescriptorOf(tensor);
    inline_tensor.set_data(tensor.data(), tensor.byte_size());
    return source;
  }
  QG_ASSIGN_OR_RETURN(const v1::TensorRecord record, Store(what, tensor));
  *source.mutable_stored()->mutable_digest() = record.digest();
  *source.mutable_stored()->mutable_type() = DescriptorOf(tensor);
  return source;
}

absl::StatusOr<v1::TensorRecord> TensorSources::Store(const std::string& what,
                                                      const Tensor& tensor) {
  const v1::Digest digest = DigestOf(tensor.bytes());
  UploadProgress progress;
  if (progress_) {
    progress = [&](int64_t done, int64_t size) { progress_(what, done, size); };
  }
  QG_ASSIGN_OR_RETURN(const Upload upload,
                      UploadBlob(connection_, SharedBytesOf(tensor), digest, progress));
  bytes_sent_ += upload.bytes_sent;
  v1::PutTensorRequest request;
  v1::StoredTensor& stored = *request.mutable_tensor()->mutable_stored();
  *stored.mutable_digest() = digest;
  *stored.mutable_type() = DescriptorOf(tensor);
  request.set_name(what);
  request.set_request_id(NewRequestId());
  return connection_.PutTensor(request);
}

}  // namespace quantgate
