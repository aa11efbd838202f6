// Values of the options that describe a layer, and files that describe a whole run.
//
//   --norm rmsnorm,eps=1e-6,zero_centered
//   --activation clamped_swiglu,limit=7,alpha=1.702,offset=1
//   --operation fc1=basic_linear     --operation act=activation,gelu
//   --operation ln=norm,layernorm    --operation sum=add,x
//   --operation up=basic_linear,column
//   --operation half=scale,0.5       --operation q=quantize,forward=false,backward=true
//   --overlap default                --overlap column_fprop=none,aggregate
//
// The server knows which names there are; here INVALID_ARGUMENT is for bad syntax and names the
// option.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "quantgate/v1/layer.pb.h"

namespace quantgate {

absl::StatusOr<v1::Norm> ParseNormArgument(const std::string& text);
absl::StatusOr<v1::Activation> ParseActivationArgument(const std::string& text);
absl::StatusOr<v1::Operation> ParseOperationArgument(const std::string& text);

/// "default" and what differs from it, "column_fprop=none,aggregate,pieces=2"; "none" and nothing:
/// absent.
absl::StatusOr<std::optional<v1::Overlap>> ParseOverlapArgument(const std::string& text);
/// Every method "none", for a step of a session that overlaps.
v1::Overlap NoOverlap();
/// A message in the syntax that ParseOverlapArgument reads.
std::string OverlapArgument(const v1::Overlap& overlap);

/// "128,0,64".
absl::StatusOr<std::vector<int64_t>> ParseSplitsArgument(const std::string& text);

/// "x,w,b,n", also spelled out; "none".
absl::StatusOr<v1::RequiresGrad> ParseRequiresGradArgument(const std::string& text);

/// Values of --amax-group, ROLE=GROUP each and each role once; the server knows the names.
absl::Status ParseAmaxGroupArguments(const std::vector<std::string>& arguments,
                                     google::protobuf::Map<std::string, std::string>& groups);
/// "input=none,grad_output=0,2/1,3", as Variant labels have it.
std::string AmaxGroupsText(const google::protobuf::Map<std::string, std::string>& groups);

/// NAME=TENSOR. A tensor without a name may hold '=' too, but only behind what no name has.
struct NamedArgument {
  std::string name;
  std::string tensor;
};
std::optional<NamedArgument> SplitNamedArgument(std::string_view text);

/// A message as JSON or protobuf text: the text itself where it begins with '{', else the file of
/// that name, JSON where it ends in .json. NOT_FOUND for no file.
absl::Status ReadSpecMessage(const char* option, const std::string& text,
                             google::protobuf::Message& spec);
absl::StatusOr<v1::RunSpec> ReadRunSpec(const std::string& text);

}  // namespace quantgate
