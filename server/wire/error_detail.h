// The details of an error on the wire, beside its code and text.
#pragma once

#include <cstddef>
#include <string>

#include "quantgate/v1/error.pb.h"
#include "server/errors.h"

namespace quantgate {

/// `text` if it has at most `bytes_max` bytes; otherwise its beginning of at most so many bytes,
/// which ends between UTF-8 sequences, with "..." behind it.
std::string CutText(const std::string& text, size_t bytes_max);

v1::ErrorDetail ErrorDetailToProto(const error::Detail& detail);

}  // namespace quantgate
