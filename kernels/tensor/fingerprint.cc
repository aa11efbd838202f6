#include "kernels/tensor/fingerprint.h"

#include <openssl/evp.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

static_assert(std::endian::native == std::endian::little, "words are little-endian");

constexpr int64_t kWordBytes = 8;
constexpr int64_t kGrainWords = 1 << 17;  // 1 MiB a piece.

EVP_MD_CTX* ContextOf(void* context) { return static_cast<EVP_MD_CTX*>(context); }

// OpenSSL's digest calls fail only without memory or without the algorithm, which no caller could
// mend.
void Require(bool ok) {
  if (!ok) std::abort();
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

MixSum MixRange(const std::byte* data, int64_t begin, int64_t end) {
  MixSum sum;
  for (int64_t i = begin; i < end; ++i) {
    uint64_t word;
    std::memcpy(&word, data + i * kWordBytes, kWordBytes);
    sum.Add(MixWord(static_cast<uint64_t>(i), word));
  }
  return sum;
}

}  // namespace

std::string Sha256::Hex() const {
  std::string hex;
  hex.reserve(64);
  for (const uint8_t byte : bytes) absl::StrAppend(&hex, absl::Hex(byte, absl::kZeroPad2));
  return hex;
}

absl::StatusOr<Sha256> Sha256::FromHex(std::string_view hex) {
  const auto malformed = [&] {
    return Refuse("digest", absl::StrCat("\"", std::string(hex.substr(0, 80)), "\""),
                  "must be 64 hexadecimal digits");
  };
  Sha256 digest;
  if (hex.size() != 2 * digest.bytes.size()) return malformed();
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = HexDigit(hex[2 * i]), low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return malformed();
    digest.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return digest;
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  Require(context_ != nullptr);
  Require(EVP_DigestInit_ex(ContextOf(context_), EVP_sha256(), nullptr) == 1);
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(ContextOf(context_)); }

void Sha256Stream::Update(std::span<const std::byte> bytes) {
  Require(EVP_DigestUpdate(ContextOf(context_), bytes.data(), bytes.size()) == 1);
}

Sha256 Sha256Stream::Finish() {
  Sha256 digest;
  unsigned size = 0;
  Require(EVP_DigestFinal_ex(ContextOf(context_), digest.bytes.data(), &size) == 1);
  Require(size == digest.bytes.size());
  return digest;
}

Sha256 Sha256Of(std::span<const std::byte> bytes) {
  Sha256Stream stream;
  stream.Update(bytes);
  return stream.Finish();
}

std::string Fingerprint::Hex() const {
  return absl::StrCat(absl::Hex(high, absl::kZeroPad16), absl::Hex(low, absl::kZeroPad16));
}

MixSum FingerprintFacts(const Tensor& tensor) {
  uint64_t index = kMixFactIndex;
  MixSum sum;
  // The name, not the enumerator: its value may change, a fingerprint may not.
  uint64_t name = 0;
  for (const char c : DTypeName(tensor.dtype())) name = name * 256 + static_cast<unsigned char>(c);
  sum.Add(MixWord(index++, name));
  sum.Add(MixWord(index++, tensor.byte_size()));
  for (const int64_t dim : tensor.shape()) {
    sum.Add(MixWord(index++, static_cast<uint64_t>(dim)));
  }
  return sum;
}

Fingerprint FingerprintOf(const Tensor& tensor, const ExecutionContext& context) {
  MixSum sum = FingerprintFacts(tensor);
  const int64_t bytes = static_cast<int64_t>(tensor.byte_size());
  const int64_t whole_words = bytes / kWordBytes;
  std::mutex mutex;
  // A fingerprint of part of a tensor would be wrong, so this loop cannot be cancelled.
  ExecutionContext uncancelled = context;
  uncancelled.cancellation = nullptr;
  ParallelFor(uncancelled, whole_words, kGrainWords, [&](int64_t begin, int64_t end) {
    const MixSum part = MixRange(tensor.data(), begin, end);
    const std::lock_guard<std::mutex> lock(mutex);
    sum.Add(part);
  });
  if (const int64_t rest = bytes - whole_words * kWordBytes; rest != 0) {
    uint64_t word = 0;
    std::memcpy(&word, tensor.data() + whole_words * kWordBytes, static_cast<size_t>(rest));
    sum.Add(MixWord(static_cast<uint64_t>(whole_words), word));
  }
  return {.high = sum.high, .low = sum.low};
}

}  // namespace quantgate
