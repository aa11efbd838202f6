#include "client/connection.h"

#include <random>

#include "absl/strings/str_format.h"

namespace quantgate {

std::string NewRequestId() {
  std::random_device device;
  std::string id;
  for (int word = 0; word < 4; ++word) absl::StrAppendFormat(&id, "%08x", device());
  return id;
}

}  // namespace quantgate
