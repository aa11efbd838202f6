#include "kernels/comm/group/call_signature.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {
namespace {

bool IsSameShape(const CallSignature& a, const CallSignature& b) {
  if (!a.rows_are_free || a.shape.empty()) return a.shape == b.shape;
  return a.shape.size() == b.shape.size() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
}

}  // namespace

std::string_view CallKindName(CallKind kind) {
  switch (kind) {
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kAllGatherParts:
      return "all_gather_parts";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kAllReduceMax:
      return "all_reduce_max";
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kCheckAgreement:
      return "check_agreement";
    case CallKind::kExchange:
      return "exchange";
  }
  return "unknown";
}

bool IsSameCall(const CallSignature& a, const CallSignature& b) {
  if (a.kind != b.kind || a.rows != b.rows || a.detail != b.detail ||
      a.rows_are_free != b.rows_are_free) {
    return false;
  }
  return a.has_tensor == b.has_tensor && a.dtype == b.dtype && IsSameShape(a, b);
}

std::string CallText(const CallSignature& call) {
  std::string text(CallKindName(call.kind));
  if (call.has_tensor) {
    absl::StrAppend(&text, " ", std::string(DTypeName(call.dtype)), "[", ShapeText(call.shape),
                    "]");
  }
  if (!call.rows.empty()) absl::StrAppend(&text, " rows ", absl::StrJoin(call.rows, ", "));
  if (!call.detail.empty()) absl::StrAppend(&text, " (", call.detail, ")");
  return text;
}

}  // namespace quantgate
