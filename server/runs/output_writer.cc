#include "server/runs/output_writer.h"

#include "kernels/base/status_macros.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

absl::StatusOr<std::vector<Fingerprint>> FingerprintsOfAll(Engine& engine,
                                                           const std::vector<NamedTensor>& named,
                                                           const Cancellation* cancellation) {
  std::vector<Tensor> tensors;
  for (const NamedTensor& one : named) tensors.push_back(one.tensor);
  return engine.FingerprintsOf(tensors, cancellation);
}

}  // namespace

void OutputWriter::Describe(const std::string& name, const Tensor& tensor,
                            const Fingerprint& fingerprint, v1::NamedTensor* proto) {
  proto->set_name(name);
  *proto->mutable_type() = TensorTypeToProto({tensor.dtype(), tensor.shape()});
  *proto->mutable_fingerprint() = FingerprintToProto(fingerprint);
}

absl::Status OutputWriter::Write(const std::string& name, const Tensor& tensor,
                                 const Fingerprint& fingerprint, v1::NamedTensor* proto,
                                 const Engine::HostRead& read) {
  Describe(name, tensor, fingerprint, proto);
  const auto size = static_cast<int64_t>(tensor.byte_size());
  const bool is_inline = keep_ != KeepOutputs::kAll && size <= inline_bytes_left_;
  if (!is_inline && keep_ == KeepOutputs::kNone) return absl::OkStatus();
  if (is_inline) inline_bytes_left_ -= size;
  if (is_inline && read != nullptr) {
    std::string& data = *proto->mutable_data();
    data.resize(tensor.byte_size());
    return read(std::as_writable_bytes(std::span(data)));
  }
  QG_ASSIGN_OR_RETURN(const Tensor host, engine_.ToHost(tensor, nullptr));
  const auto bytes = host.bytes();
  if (is_inline) {
    proto->set_data(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(const Digest digest, blobs_.Put(bytes));
  *proto->mutable_digest() = DigestToProto(digest);
  return absl::OkStatus();
}

absl::Status OutputWriter::WriteAll(const std::vector<NamedTensor>& tensors,
                                    const Cancellation* cancellation, Protos& protos) {
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      FingerprintsOfAll(engine_, tensors, cancellation));
  for (size_t i = 0; i < tensors.size(); ++i) {
    QG_RETURN_IF_ERROR(Write(tensors[i].name, tensors[i].tensor, fingerprints[i], protos.Add()));
  }
  return absl::OkStatus();
}

absl::Status OutputWriter::DescribeAll(Engine& engine, const std::vector<NamedTensor>& tensors,
                                       const Cancellation* cancellation, Protos& protos) {
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      FingerprintsOfAll(engine, tensors, cancellation));
  for (size_t i = 0; i < tensors.size(); ++i) {
    Describe(tensors[i].name, tensors[i].tensor, fingerprints[i], protos.Add());
  }
  return absl::OkStatus();
}

}  // namespace quantgate
