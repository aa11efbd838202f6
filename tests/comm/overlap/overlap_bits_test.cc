// Overlapped calls give, byte for byte, what gathering first and reducing last gives, for every
// number of ranks and every payload.
#include <gtest/gtest.h>

#include <functional>

#include "tests/comm/overlap/overlap_values.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int kRanks[] = {2, 3, 4, 8};

/// Each rank's shard and weight, and what they give: the whole operand by the rank's own weight.
struct GatherCase {
  GatherCase(Payload payload, const std::vector<int64_t>& rows) {
    const int64_t width = WidthOf(payload);
    std::vector<Tensor> data, scales;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      gemms.push_back(MakeGemm(payload, rows[rank], width, width, static_cast<int>(rank)));
      data.push_back(gemms.back().a.data);
      if (payload == Payload::kMxfp8) scales.push_back(gemms.back().a.scale_inv);
    }
    parts = {Joined(data)};
    if (!scales.empty()) parts.push_back(Joined(scales));
    for (const GemmDesc& gemm : gemms) {
      GemmDesc whole = gemm;
      whole.a.data = parts[0];
      if (parts.size() > 1) whole.a.scale_inv = parts[1];
      expected.push_back(GemmCpu(whole, {})->d);
    }
  }

  std::vector<GemmDesc> gemms;
  std::vector<Tensor> parts;     ///< Of the operand of all ranks.
  std::vector<Tensor> expected;  ///< By rank.
};

void ExpectGathered(const GatherCase& gather, const AllGatherGemmCall& how) {
  Ranks ranks(static_cast<int>(gather.gemms.size()));
  const std::vector<Tensor> outputs = ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank);
    AllGatherGemmCall call = how;
    call.name = {"layer0", "fc1_fprop", "test"};
    call.gemm = gather.gemms[rank.index()];
    auto result = end.overlap->AllGatherGemm(call);
    if (!result.ok()) return result.status();
    const auto parts = result->gathered.Read();
    if (!parts.ok()) return parts.status();
    EXPECT_EQ(BytesOf(*parts), BytesOf(gather.parts)) << "rank " << rank.index();
    EXPECT_EQ(BytesOf(result->local[0]), BytesOf(call.gemm.a.data));
    return result->gemm.d;
  });
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    EXPECT_EQ(outputs[rank].shape(), gather.expected[rank].shape());
    EXPECT_EQ(BytesOf(outputs[rank]), BytesOf(gather.expected[rank])) << "rank " << rank;
  }
}

TEST(RingAllGatherGemm, HasTheBitsOfTheWholeGemm) {
  for (const int size : kRanks) {
    for (const Payload payload : kPayloads) {
      SCOPED_TRACE(PayloadName(payload) + " on " + std::to_string(size));
      const GatherCase gather(payload, EqualRows(payload, size));
      ExpectGathered(gather, {});
      ExpectGathered(gather, {.method = OverlapMethod::kNone});
      if (size % 2 == 0) ExpectGathered(gather, {.aggregate = true});
      ExpectGathered(gather, {.pieces = 3});
    }
  }
}

TEST(RingAllGatherGemm, TakesUnevenAndEmptyShards) {
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{5, 0, 3, 9}, std::vector<int64_t>{0, 0}, std::vector<int64_t>{0, 7, 1},
        std::vector<int64_t>{1}}) {
    SCOPED_TRACE(testing::PrintToString(rows));
    const GatherCase gather(Payload::kBf16, rows);
    ExpectGathered(gather, {});
    ExpectGathered(gather, {.pieces = 2});
    if (rows.size() % 2 == 0) ExpectGathered(gather, {.aggregate = true});
  }
}

/// Times the identity, so that every element of the output says where it comes from.
TEST(RingAllGatherGemm, PutsEveryRowWhereItBelongs) {
  constexpr int64_t kRows = 3, kWidth = 16;
  for (const int size : {4, 8}) {
    for (const bool aggregate : {false, true}) {
      Ranks ranks(size);
      const std::vector<Tensor> outputs =
          ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
            OverlapRank end(rank);
            AllGatherGemmCall call{.name = {"layer0", "b", "f32"}, .aggregate = aggregate};
            call.gemm.arithmetic = *Arithmetic::Parse("fp32");
            call.gemm.out_dtype = DType::kF32;
            call.gemm.a.data = *Tensor::Allocate(DType::kF32, {kRows, kWidth});
            call.gemm.b.data = Identity(kWidth);
            for (int64_t i = 0; i < kRows * kWidth; ++i) {
              call.gemm.a.data.as<float>()[i] =
                  static_cast<float>(rank.index() * kRows * kWidth + i);
            }
            auto result = end.overlap->AllGatherGemm(call);
            if (!result.ok()) return result.status();
            return result->gemm.d;
          });
      for (const Tensor& output : outputs) {
        for (int64_t i = 0; i < size * kRows * kWidth; ++i) {
          ASSERT_EQ(output.as<float>()[i], static_cast<float>(i));
        }
      }
    }
  }
}

TEST(RingAllGatherGemm, GathersOtherTensorsBesideIt) {
  Ranks ranks(4);
  const GatherCase gather(Payload::kMxfp8, EqualRows(Payload::kMxfp8, 4));
  std::vector<Tensor> codes, scales;
  for (int rank = 0; rank < 4; ++rank) {
    codes.push_back(MarkedTensor(rank, DType::kF8E4M3, {128, 64}));
    scales.push_back(MarkedTensor(rank + 10, DType::kF8E8M0, {4, 64}));
  }
  ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank);
    AllGatherGemmCall call{.name = {"layer0", "proj_dgrad", "mxfp8"}};
    call.gemm = gather.gemms[rank.index()];
    call.beside = {codes[rank.index()], scales[rank.index()]};
    auto result = end.overlap->AllGatherGemm(call);
    if (!result.ok()) return result.status();
    const std::vector<Tensor> parts = *result->gathered.Read();
    EXPECT_EQ(parts.size(), 4u);
    EXPECT_EQ(BytesOf(parts[2]), BytesOf(codes));
    EXPECT_EQ(BytesOf(parts[3]), BytesOf(scales));
    EXPECT_EQ(parts[3].shape(), (Shape{16, 64}));
    EXPECT_EQ(BytesOf(result->gemm.d), BytesOf(gather.expected[rank.index()]));
    return result->gemm.d;
  });
}

/// What each rank multiplies, and the partials that come of it.
struct ReduceCase {
  ReduceCase(std::vector<int64_t> rows_of_ranks,
             const std::function<GemmDesc(int rank, int64_t m)>& make)
      : rows(std::move(rows_of_ranks)) {
    int64_t all = 0;
    for (const int64_t count : rows) all += count;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      gemms.push_back(make(static_cast<int>(rank), all));
      partials.push_back(GemmCpu(gemms.back(), {})->d);
    }
  }
  ReduceCase(Payload payload, std::vector<int64_t> rows_of_ranks)
      : ReduceCase(std::move(rows_of_ranks), [&](int rank, int64_t m) {
          return MakeGemm(payload, m, WidthOf(payload), WidthOf(payload), rank);
        }) {}

  int size() const { return static_cast<int>(rows.size()); }

  std::vector<int64_t> rows;
  std::vector<GemmDesc> gemms;
  std::vector<Tensor> partials;
};

/// Sums of orders on which fp32 itself differs.
ReduceCase OrderSensitiveCase(int size) {
  return ReduceCase(std::vector<int64_t>(size, 9),
                    [](int rank, int64_t m) { return OrderSensitiveGemm(rank, m, 24); });
}

void ExpectReduced(const ReduceCase& reduce, const ReduceScatterGemmCall& how) {
  Ranks ranks(reduce.size());
  const std::vector<Tensor> outputs = ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
    OverlapRank end(rank);
    ReduceScatterGemmCall call = how;
    call.name = {"layer0", "proj_fprop", "test"};
    call.gemm = reduce.gemms[rank.index()];
    call.rows = reduce.rows;
    auto result = end.overlap->ReduceScatterGemm(call);
    if (!result.ok()) return result.status();
    return result->y;
  });
  for (int owner = 0; owner < reduce.size(); ++owner) {
    EXPECT_EQ(outputs[owner].shape(), (Shape{reduce.rows[owner], reduce.partials[0].shape()[1]}));
  }
  EXPECT_EQ(BytesOf(outputs),
            SumByHand(reduce.partials, ReductionProfileName(how.profile), reduce.rows))
      << OverlapMethodName(how.method) << " " << ReductionProfileName(how.profile);
}

TEST(PointToPointReduceScatterGemm, SumsFromTheOwnerDownwardsWithOneRounding) {
  for (const int size : kRanks) {
    std::vector<ReduceCase> cases = {OrderSensitiveCase(size)};
    for (const Payload payload : kPayloads) cases.emplace_back(payload, EqualRows(payload, size));
    for (const ReduceCase& reduce : cases) {
      SCOPED_TRACE(GemmText(reduce.gemms[0]) + " on " + std::to_string(size));
      ExpectReduced(reduce, {});
      ExpectReduced(reduce, {.pieces = 2});
      ExpectReduced(reduce, {.method = OverlapMethod::kNone});
    }
  }
}

TEST(PointToPointReduceScatterGemm, TakesUnevenAndEmptyShards) {
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{5, 0, 3, 9}, std::vector<int64_t>{0, 7}, std::vector<int64_t>{4}}) {
    SCOPED_TRACE(testing::PrintToString(rows));
    const ReduceCase reduce(Payload::kBf16, rows);
    ExpectReduced(reduce, {});
    ExpectReduced(reduce, {.pieces = 3});
  }
}

/// The N side as [k][n], whose columns are no view.
ReduceCase WithColumns(Payload payload, int size) {
  ReduceCase reduce(EqualRows(payload, size), [&](int rank, int64_t m) {
    const int64_t width = WidthOf(payload);
    GemmDesc gemm = MakeGemm(payload, m, width, width, rank);
    gemm.layout = GemmLayout::kNN;
    if (payload == Payload::kMxfp8) {
      gemm.b.scale_inv = *gemm.b.scale_inv.Reinterpret(DType::kF8E8M0, {width / 32, width});
    }
    return gemm;
  });
  return reduce;
}

TEST(PipelinedReduceScatterGemm, HasTheBitsOfTheUnsplitSum) {
  for (const int size : kRanks) {
    std::vector<ReduceCase> cases = {OrderSensitiveCase(size), WithColumns(Payload::kBf16, size),
                                     WithColumns(Payload::kMxfp8, size)};
    for (const Payload payload : kPayloads) cases.emplace_back(payload, EqualRows(payload, size));
    for (const ReduceCase& reduce : cases) {
      SCOPED_TRACE(GemmText(reduce.gemms[0]) + " on " + std::to_string(size));
      for (const int splits : {1, 2, 4}) {
        // 128 columns of mxfp8 are one multiple.
        if (reduce.gemms[0].b.scaling == ScaleMode::kMx32 && splits > 1) continue;
        for (const ReductionProfile& profile : OrderedProfiles()) {
          ExpectReduced(reduce,
                        {.method = OverlapMethod::kPipeline, .profile = profile, .splits = splits});
        }
      }
    }
  }
}

TEST(BulkAllGather, LeavesTheGemmAlone) {
  for (const int size : kRanks) {
    Ranks ranks(size);
    std::vector<Tensor> codes, scales;
    for (int rank = 0; rank < size; ++rank) {
      codes.push_back(MarkedTensor(rank, DType::kF8E4M3, {rank + 1, 40}));
      scales.push_back(MarkedTensor(rank, DType::kF32, {rank, 2}));
    }
    ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
      OverlapRank end(rank);
      BulkAllGatherCall call{.name = {"layer0", "fc1_dgrad", "test"}};
      call.gemm = MakeGemm(Payload::kBf16, 20, 30, 40, rank.index());
      call.shard = {codes[rank.index()], scales[rank.index()]};
      auto result = end.overlap->BulkAllGather(call);
      if (!result.ok()) return result.status();
      const std::vector<Tensor> parts = *result->gathered.Read();
      EXPECT_EQ(BytesOf(parts[0]), BytesOf(codes));
      EXPECT_EQ(BytesOf(parts[1]), BytesOf(scales));
      EXPECT_EQ(BytesOf(result->gemm.d), BytesOf(GemmCpu(call.gemm, {})->d));
      return result->gemm.d;
    });
  }
}

TEST(BulkReduceScatter, LeavesTheGemmAlone) {
  for (const int size : kRanks) {
    Ranks ranks(size);
    const ReduceCase reduce(Payload::kBf16, EqualRows(Payload::kBf16, size));
    const std::vector<Tensor> outputs =
        ranks.TensorOfEach([&](Rank& rank) -> absl::StatusOr<Tensor> {
          OverlapRank end(rank);
          BulkReduceScatterCall call{.name = {"layer0", "fc1_wgrad", "test"}};
          call.gemm = MakeGemm(Payload::kFp8, 20, 30, 40, rank.index());
          call.partial = reduce.partials[rank.index()];
          call.rows = reduce.rows;
          call.profile = {ReductionKind::kBf16Rotated, 0};
          auto result = end.overlap->BulkReduceScatter(call);
          if (!result.ok()) return result.status();
          EXPECT_EQ(BytesOf(result->gemm.d), BytesOf(GemmCpu(call.gemm, {})->d));
          return result->y;
        });
    EXPECT_EQ(BytesOf(outputs), SumByHand(reduce.partials, "bf16_rotated:0", reduce.rows));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
