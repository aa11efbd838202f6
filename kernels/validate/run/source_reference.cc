#include "kernels/validate/run/source_reference.h"

#include <cstring>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/ops/attention/attention.h"

namespace quantgate {
namespace {

/// Tensors of [groups * n][S][D] as one of all n: the matrices of a group lie together, those of
/// the first tensor first.
absl::StatusOr<Tensor> JoinGroups(const std::vector<Tensor>& parts, int64_t groups) {
  Shape shape = parts[0].shape();
  shape[0] = 0;
  for (const Tensor& part : parts) shape[0] += part.shape()[0];
  QG_ASSIGN_OR_RETURN(Tensor joined, Tensor::Allocate(parts[0].dtype(), std::move(shape)));
  std::byte* to = joined.data();
  for (int64_t group = 0; group < groups; ++group) {
    for (const Tensor& part : parts) {
      const size_t bytes = part.byte_size() / static_cast<size_t>(groups);
      std::memcpy(to, part.data() + static_cast<size_t>(group) * bytes, bytes);
      to += bytes;
    }
  }
  return joined;
}

/// The reference of OutputSource::joins_heads.
absl::StatusOr<OperationReference> EvaluateHeads(Engine& engine,
                                                 const std::vector<OperationCall>& calls,
                                                 DType dtype, const Cancellation* cancellation) {
  std::vector<Tensor> values, errors;
  OperationReference reference;
  for (const OperationCall& call : calls) {
    QG_ASSIGN_OR_RETURN(OperationReference part,
                        EvaluateOperations(engine, {&call, 1}, dtype, cancellation));
    values.push_back(std::move(part.value));
    errors.push_back(std::move(part.error));
    if (reference.derivation.empty() || call.kind == OperationCall::Kind::kAttentionDk) {
      reference.derivation = std::move(part.derivation);
    }
  }
  const AttentionCall& attention = calls[0].attention;
  const int64_t groups = attention.heads.shape()[0] / (attention.heads_per_group + 2);
  QG_ASSIGN_OR_RETURN(reference.value, JoinGroups(values, groups));
  QG_ASSIGN_OR_RETURN(reference.error, JoinGroups(errors, groups));
  return reference;
}

}  // namespace

absl::StatusOr<OperationReference> EvaluateSource(Engine& engine, const OutputSource& source,
                                                  const Tensor& output,
                                                  const Cancellation* cancellation) {
  const DType dtype = output.dtype();
  absl::StatusOr<OperationReference> reference =
      source.joins_heads ? EvaluateHeads(engine, source.operations, dtype, cancellation)
                         : EvaluateOperations(engine, source.operations, dtype, cancellation);
  if (!reference.ok() || !source.swaps_dims) return reference;
  ExecutionContext context;
  context.cancellation = cancellation;
  for (Tensor* const tensor : {&reference->value, &reference->error}) {
    QG_ASSIGN_OR_RETURN(const Tensor swapped, SwapDimsCpu(*tensor, context));
    QG_ASSIGN_OR_RETURN(*tensor, swapped.Reinterpret(swapped.dtype(), output.shape()));
  }
  return reference;
}

}  // namespace quantgate
