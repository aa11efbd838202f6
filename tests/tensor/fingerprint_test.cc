// SHA-256 against FIPS 180-4's examples; fingerprints against what their definition promises.
#include "kernels/tensor/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "kernels/numerics/mix.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// https://csrc.nist.gov/csrc/media/projects/cryptographic-standards-and-guidelines/documents/examples/sha256.pdf
TEST(Sha256, PublishedExamples) {
  EXPECT_EQ(Sha256Of(BytesOf("abc")).Hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Of(BytesOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")).Hex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Of({}).Hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  Sha256Stream stream;
  stream.Update(BytesOf("a"));
  stream.Update({});
  stream.Update(BytesOf("bc"));
  EXPECT_EQ(stream.Finish(), Sha256Of(BytesOf("abc")));
}

TEST(Sha256, HexRoundTripsAndIsChecked) {
  const Sha256 digest = Sha256Of(BytesOf("abc"));
  EXPECT_EQ(*Sha256::FromHex(digest.Hex()), digest);
  EXPECT_FALSE(Sha256::FromHex("").ok());
  EXPECT_FALSE(Sha256::FromHex(digest.Hex() + "0").ok());
  std::string bad = digest.Hex();
  bad[7] = 'g';
  const auto refused = Sha256::FromHex(bad);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              ::testing::HasSubstr("64 hexadecimal digits"));
}

Tensor Words(std::initializer_list<uint64_t> words) {
  const std::vector<uint64_t> list(words);
  return *Tensor::FromBytes(DType::kI64, {static_cast<int64_t>(list.size())},
                            std::as_bytes(std::span(list)));
}

TEST(FingerprintOf, SameOnAnyNumberOfThreads) {
  const Tensor x = *Generate({.seed = 2, .dtype = DType::kBF16, .shape = {3000001}}, {});
  ExecutionContext one, two;
  one.threads = 1;
  two.threads = 2;
  EXPECT_EQ(FingerprintOf(x, one), FingerprintOf(x, two));
}

/// Bugs that a checksum of this kind exists to find.
TEST(FingerprintOf, SeesMovedSwappedFlippedAndReshaped) {
  std::set<std::string> seen;
  const auto add = [&](const Tensor& tensor) {
    return seen.insert(FingerprintOf(tensor, {}).Hex()).second;
  };
  EXPECT_TRUE(add(Words({1, 2, 3, 4})));
  EXPECT_TRUE(add(Words({2, 1, 3, 4})));
  EXPECT_TRUE(add(Words({1, 2, 4, 3})));
  EXPECT_TRUE(add(Words({0, 2, 3, 5})));
  EXPECT_TRUE(add(Words({1, 2, 3, 4, 0})));
  EXPECT_TRUE(add(Words({0, 1, 2, 3, 4})));
  EXPECT_TRUE(add(*Words({1, 2, 3, 4}).Reinterpret(DType::kI64, {2, 2})));
  EXPECT_TRUE(add(*Words({1, 2, 3, 4}).Reinterpret(DType::kU8, {32})));
  for (int bit = 0; bit < 64; ++bit) EXPECT_TRUE(add(Words({1, 2, 3, 4 ^ (uint64_t{1} << bit)})));
  EXPECT_FALSE(add(Words({1, 2, 3, 4})));
}

TEST(FingerprintOf, TheLastPartialWordIsZeroPadded) {
  const uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const Tensor tensor = *Tensor::FromBytes(DType::kU8, {10}, std::as_bytes(std::span(bytes)));
  Fingerprint expected = FingerprintOf(tensor, {});
  // The sum by hand: two words, then the facts.
  MixSum sum = MixWord(0, 0x0807060504030201u);
  sum.Add(MixWord(1, 0x0A09u));
  sum.Add(MixWord(kMixFactIndex, 0x7538u));  // "u8"
  sum.Add(MixWord(kMixFactIndex + 1, 10));
  sum.Add(MixWord(kMixFactIndex + 2, 10));
  EXPECT_EQ(expected, (Fingerprint{.high = sum.high, .low = sum.low}));
}

/// Each input bit flips about half of the 128 output bits: between 32 and 96 here, ten standard
/// deviations of a fair coin per sample of one flip, met by every one of 64 * 64.
TEST(MixWord, Avalanches) {
  for (uint64_t index = 0; index < 64; ++index) {
    for (int bit = 0; bit < 64; ++bit) {
      const MixSum a = MixWord(index, 0), b = MixWord(index, uint64_t{1} << bit);
      const int flipped = std::popcount(a.low ^ b.low) + std::popcount(a.high ^ b.high);
      EXPECT_GT(flipped, 32) << index << " " << bit;
      EXPECT_LT(flipped, 96) << index << " " << bit;
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
