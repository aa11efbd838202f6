// The dtypes of the elements that reports show. Without its dtype, the width of an element's bits
// is unknown.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// Sets the dtypes of every ElementPair within `message` that does not state them itself.
void SetElementTypes(google::protobuf::Message& message, const std::string& subject,
                     const std::string& reference);

/// Sets the dtypes in the comparisons of a run's outputs, which follow from the dtypes of these
/// outputs: bits are compared with those of the same dtype, errors measured against values rounded
/// once to f32. For the server, and for reports of servers that did not state the dtypes.
void SetElementTypes(const std::string& dtype, v1::OutputReport& output);
void SetElementTypes(v1::VariantReport& variant);

}  // namespace quantgate
