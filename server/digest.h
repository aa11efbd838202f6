// Digest: identity of stored bytes, SHA-256 and size, always both.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate {

struct Digest {
  Sha256 sha256;
  int64_t size = 0;

  static Digest Of(std::span<const std::byte> bytes) {
    return {Sha256Of(bytes), static_cast<int64_t>(bytes.size())};
  }
  /// "SHA256/SIZE", as in the references of the command line.
  std::string Text() const { return absl::StrCat(sha256.Hex(), "/", size); }
  friend auto operator<=>(const Digest&, const Digest&) = default;
};

}  // namespace quantgate
