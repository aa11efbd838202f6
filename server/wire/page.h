// Pages of listings, newest first: a token is the id that the last page ended with.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quantgate {

struct Page {
  int64_t before_id = 0;  ///< 0: from the newest.
  int size = 0;
};

/// INVALID_ARGUMENT naming page_size or page_token.
absl::StatusOr<Page> PageFromProto(int page_size, const std::string& page_token);
/// Empty for 0, the end of the listing.
std::string PageToken(int64_t before_id);

}  // namespace quantgate
