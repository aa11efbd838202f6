// The two identities of tensor bytes (docs/file-formats.md section 1): SHA-256 for what is stored,
// and a cheap 128-bit sum, the same on every engine, for what is saved and used.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/mix.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// A SHA-256 digest.
struct Sha256 {
  std::array<uint8_t, 32> bytes{};
  /// The 32 bytes as a string, which is not text.
  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string Hex() const;  ///< 64 lower-case hex digits.
  /// INVALID_ARGUMENT unless 64 hex digits.
  static absl::StatusOr<Sha256> FromHex(std::string_view hex);
  friend auto operator<=>(const Sha256&, const Sha256&) = default;
};

/// SHA-256 of bytes given piece by piece. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Update(std::span<const std::byte> bytes);
  Sha256 Finish();

 private:
  void* context_;
};

/// SHA-256 of all bytes at once.
Sha256 Sha256Of(std::span<const std::byte> bytes);

/// The sum of mix(i, w_i) over all 8-byte little-endian words w_i of a tensor (the last one padded
/// with zeros), in two 64-bit lanes, plus mixes of dtype, shape and byte count. Devices and ranks
/// can add parts in any order.
struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  std::string Hex() const;  ///< 32 hex digits.
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// The part of a fingerprint that does not depend on the data: the mixes of dtype, byte count and
/// dims (docs/file-formats.md section 1.2).
MixSum FingerprintFacts(const Tensor& tensor);

/// The fingerprint of a tensor in host memory. It does not heed cancellation, since the fingerprint
/// of a part would be wrong.
Fingerprint FingerprintOf(const Tensor& tensor, const ExecutionContext& context);

}  // namespace quantgate
