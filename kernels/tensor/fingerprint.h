// The two identities of tensor bytes (docs/file-formats.md section 1): SHA-256 for what is stored,
// and a cheap 128-bit order-free sum for what is saved and used, the same on every engine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct Sha256 {
  std::array<uint8_t, 32> bytes{};
  /// The 32 bytes.
  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string Hex() const;
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

Sha256 Sha256Of(std::span<const std::byte> bytes);

/// 128-bit integer sum over 8-byte little-endian words w_i (the last one zero-padded) of mix(i,
/// w_i), plus a mix of dtype, shape and byte count. Order-free, so devices and ranks can add parts
/// in any order.
struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  std::string Hex() const;  ///< 32 hex digits.
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

Fingerprint FingerprintOf(const Tensor& tensor, const ExecutionContext& context);

}  // namespace quantgate
