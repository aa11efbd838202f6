// NCCL's own sums, a subject under test: the same on all ranks each time; of two ranks the bits of
// every reduction profile; of more within the bound of docs/ranks.md section 5, and in which
// order they were added, as far as their bits say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/comm/cuda_worlds.h"
#include "tests/comm/ranks.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace QG_TEST_FILE {

const ReductionProfile kNccl = {.kind = ReductionKind::kNccl};

TEST(NcclSums, OfIntegersAreExact) {
  for (const CudaWorldCase& world : CudaWorldCases(CollectiveBackend::kNccl)) {
    CudaRanks ranks(world);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      std::vector<Tensor> partials;
      std::vector<int64_t> even(world.size, 6), uneven(world.size, 5);
      for (int rank = 0; rank < world.size; ++rank) {
        partials.push_back(SmallIntegers(rank, dtype, {6 * world.size, 33}));
      }
      uneven.front() += world.size;
      for (const std::vector<int64_t>& rows : {even, uneven}) {
        const std::string expected = SumByHand(partials, "rank_asc_fp32", rows);
        const auto sums = ranks.TensorOfEach([&](Rank& rank) {
          return rank.group("world").AllReduce(partials[rank.index()], kNccl);
        });
        for (const Tensor& sum : sums) EXPECT_EQ(BytesOf(sum), expected) << CaseText(world);
        const auto blocks = ranks.TensorOfEach([&](Rank& rank) {
          return rank.group("world").ReduceScatter(partials[rank.index()], rows, kNccl);
        });
        EXPECT_EQ(BytesOf(blocks), expected) << CaseText(world);
      }
    }
  }
}

/// All ranks have the same bits, each time; of two ranks there is one sum, whatever the order.
TEST(NcclSums, AreTheSameOnAllRanksEachTime) {
  for (const CudaWorldCase& world : CudaWorldCases(CollectiveBackend::kNccl)) {
    CudaRanks ranks(world);
    std::vector<Tensor> partials;
    for (int rank = 0; rank < world.size; ++rank) {
      partials.push_back(OrderSensitive(rank, DType::kBF16, {257, 1031}));
    }
    std::string first;
    for (int round = 0; round < 3; ++round) {
      const auto sums = ranks.TensorOfEach(
          [&](Rank& rank) { return rank.group("world").AllReduce(partials[rank.index()], kNccl); });
      if (round == 0) first = BytesOf(sums[0]);
      for (const Tensor& sum : sums) EXPECT_EQ(BytesOf(sum), first) << CaseText(world);
    }
    if (world.size == 2) {
      EXPECT_EQ(first, SumByHand(partials, "rank_asc_fp32", {129, 128}));
    }
  }
}

/// A sum of every kind, by the library and by profiles: [rank] of each.
struct SumsOfRanks {
  std::vector<Tensor> reduced, scattered;
};

SumsOfRanks SumsBy(const ReductionProfile& profile, CudaRanks& ranks,
                   const std::vector<Tensor>& partials, const std::vector<int64_t>& rows) {
  SumsOfRanks sums;
  sums.reduced = ranks.TensorOfEach(
      [&](Rank& rank) { return rank.group("world").AllReduce(partials[rank.index()], profile); });
  sums.scattered = ranks.TensorOfEach([&](Rank& rank) {
    return rank.group("world").ReduceScatter(partials[rank.index()], rows, profile);
  });
  return sums;
}

/// One addition, and so one rounding: there is nothing in which orders could differ.
TEST(NcclSums, OfTwoRanksAreThoseOfEveryProfile) {
  for (const CudaWorldCase& world : CudaWorldCases(CollectiveBackend::kNccl)) {
    if (world.size != 2) continue;
    CudaRanks ranks(world);
    const std::vector<int64_t> rows = {151, 106};
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const std::vector<Tensor> partials = {OrderSensitive(0, dtype, {257, 1031}),
                                            OrderSensitive(1, dtype, {257, 1031})};
      const std::string expected = SumByHand(partials, "rank_asc_fp32", rows);
      std::vector<ReductionProfile> profiles = OrderedProfiles();
      profiles.push_back(kNccl);
      for (const ReductionProfile& profile : profiles) {
        const SumsOfRanks sums = SumsBy(profile, ranks, partials, rows);
        for (const Tensor& sum : sums.reduced) {
          EXPECT_EQ(BytesOf(sum), expected) << ReductionProfileName(profile);
        }
        EXPECT_EQ(BytesOf(sums.scattered), expected) << ReductionProfileName(profile);
      }
    }
  }
}

/// Of both signs, some up to 2^17 times as large as others: sums are exact in double.
Tensor PartialOf(int rank, Shape shape) {
  Tensor tensor = SmallIntegers(rank, DType::kBF16, std::move(shape));
  const Tensor exponents = SmallIntegers(rank + 50, DType::kBF16, tensor.shape());
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const float sign = (rank + i) % 3 == 0 ? -1.0f : 1.0f;
    const float mantissa = 1 + Bf16Value(tensor.as<uint16_t>()[i]) / 16;
    const int exponent = static_cast<int>(Bf16Value(exponents.as<uint16_t>()[i]));
    tensor.as<uint16_t>()[i] = Bf16Bits(std::ldexp(sign * mantissa, exponent));
  }
  return tensor;
}

double ElementOf(const Tensor& tensor, int64_t index) {
  return Bf16Value(tensor.as<uint16_t>()[index]);
}

/// Chains of additions in bf16, by their names; the first two ranks of one commute.
std::map<std::string, ReferenceOrder> ChainsOf(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::map<std::string, ReferenceOrder> chains;
  do {
    if (ranks[0] > ranks[1]) continue;
    chains[absl::StrJoin(ranks, " + ")] = {ranks, /*rounds_each=*/true};
  } while (std::next_permutation(ranks.begin(), ranks.end()));
  return chains;
}

/// What the bits of elements [begin, end) say of the order: the chains that give all of them, or of
/// how many each gives at most.
std::string OrderText(const std::vector<Tensor>& partials, const Tensor& sum, int64_t begin,
                      int64_t end) {
  if (partials.size() > 4) return "not looked for among so many chains";
  std::vector<std::string> entire;
  int64_t most = 0;
  for (const auto& [name, order] : ChainsOf(static_cast<int>(partials.size()))) {
    int64_t same = 0;
    for (int64_t i = begin; i < end; ++i) {
      same += SumByHand(partials, i, order) == sum.as<uint16_t>()[i - begin] ? 1 : 0;
    }
    if (same == end - begin) entire.push_back(name);
    most = std::max(most, same);
  }
  if (!entire.empty()) return absl::StrJoin(entire, " or ");
  return absl::StrCat("no one chain; the best gives ", most, " of ", end - begin);
}

/// `sum` has the elements from `begin` on.
void ExpectWithinBound(const std::vector<Tensor>& partials, const Tensor& sum, int64_t begin) {
  // docs/ranks.md section 5, additions in the dtype; a sum in another order than a chain
  // rounds no more often.
  const double bound_factor = std::pow(1 + 0x1p-8, static_cast<double>(partials.size() - 1)) - 1;
  for (int64_t i = 0; i < sum.element_count(); ++i) {
    double exact = 0, magnitude = 0;
    for (const Tensor& partial : partials) {
      exact += ElementOf(partial, begin + i);
      magnitude += std::abs(ElementOf(partial, begin + i));
    }
    ASSERT_LE(std::abs(ElementOf(sum, i) - exact), bound_factor * magnitude) << begin + i;
  }
}

TEST(NcclSums, OfMoreRanksLieWithinTheirBound) {
  constexpr int64_t kRows = 64, kColumns = 1024;
  for (const CudaWorldCase& world : CudaWorldCases(CollectiveBackend::kNccl)) {
    if (world.size < 3) continue;
    CudaRanks ranks(world);
    std::vector<Tensor> partials;
    for (int rank = 0; rank < world.size; ++rank) {
      partials.push_back(PartialOf(rank, {kRows * world.size, kColumns}));
    }
    const SumsOfRanks sums =
        SumsBy(kNccl, ranks, partials, std::vector<int64_t>(world.size, kRows));
    std::cerr << CaseText(world) << ", " << ranks.world().transport().name() << "\n";
    const int64_t elements = sums.reduced[0].element_count(), block = kRows * kColumns;
    ExpectWithinBound(partials, sums.reduced[0], 0);
    std::cerr << "  all-reduce: " << OrderText(partials, sums.reduced[0], 0, elements) << "\n";
    for (int owner = 0; owner < world.size; ++owner) {
      ExpectWithinBound(partials, sums.scattered[owner], owner * block);
      std::cerr << "  reduce-scatter to rank " << owner << ": "
                << OrderText(partials, sums.scattered[owner], owner * block, (owner + 1) * block)
                << "\n";
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
