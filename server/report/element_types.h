// The dtypes of the elements that reports show, without which their bits have no width.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// Of every ElementPair within `message` that does not say them itself.
void SetElementTypes(google::protobuf::Message& message, const std::string& subject,
                     const std::string& reference);

/// The same of the comparisons of a run's outputs, from these outputs: bits are compared with those
/// of the same dtype, errors measured against values rounded once to f32. For the server, and for
/// reports of servers that did not say.
void SetElementTypes(const std::string& dtype, v1::OutputReport& output);
void SetElementTypes(v1::VariantReport& variant);

}  // namespace quantgate
