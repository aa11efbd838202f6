// What reports say of GEMMs that hardware ran in pieces, where pieces take another algorithm than
// the whole, and where they take the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/validate/ranks/parallel_report.h"
#include "kernels/validate/reference/exact_values.h"
#include "tests/engine/pretend_hardware.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kRows = 64, kK = 512, kO = 64;

/// Its cuBLASLt cuts K into 3 slices where d has few rows.
class ShapedHardware final : public PretendHardware {
 public:
  explicit ShapedHardware(int64_t few_rows) : few_rows_(few_rows) {}

  absl::StatusOr<std::vector<CublasLtAlgorithm>> Algorithms(const GemmDesc& desc,
                                                            const Cancellation*) override {
    const bool is_few = desc.a.data.shape()[0] <= few_rows_;
    return std::vector<CublasLtAlgorithm>{AlgorithmOf(0, 66, 20, is_few ? 3 : 1)};
  }

 private:
  const int64_t few_rows_;
};

Tensor Normal(uint64_t seed, Shape shape) {
  return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
}

/// y = x w^T on two ranks that have a half of w's rows each, x gathered in a ring.
struct RingStep {
  ShapedHardware first, second;
  LayerRequest request;
  Variant variant;
  ParallelStepResult step;

  RingStep(int64_t few_rows, const char* arithmetic)
      : first(few_rows),
        second(few_rows),
        variant{*Recipe::Parse("fp8_current"), *Arithmetic::Parse(arithmetic),
                ParallelSpec{.sequence_parallel = true, .overlap = OverlapSpec{}}} {
    request.layer.parallel_mode = ParallelMode::kColumn;
    request.x = Normal(1, {kRows, kK});
    request.parameters["weight"] = Normal(2, {kO, kK});
    auto done = RunOnRanks(request, first, variant, {&first, &second}, nullptr, nullptr);
    EXPECT_TRUE(done.ok()) << done.status();
    if (done.ok()) step = *std::move(done);
  }

  /// As the variant's report has them.
  std::vector<std::string> Notes() {
    ExactValues exact(first, request, nullptr);
    OutputReporter whole(first, request, exact, nullptr);
    ParallelReporter reporter(first, whole, request, variant, step, nullptr);
    EXPECT_TRUE(reporter.Ranks().ok());
    return reporter.notes();
  }

  /// Elements of the ranks' y, each in one GEMM, that K in 3 slices changes.
  int64_t ChangedBySlices() const {
    const auto engine = MakeCpuEngine({.threads = 1});
    int64_t changed = 0;
    for (const RankStep& rank : step.ranks) {
      GemmDesc desc = rank.result.gemms.at(0).desc;
      desc.arithmetic = *Arithmetic::Parse("sm90");
      const Tensor whole = engine->Gemm(desc, nullptr)->d;
      desc.arithmetic = *Arithmetic::Parse("sm90:splitk=3");
      const Tensor sliced = engine->Gemm(desc, nullptr)->d;
      for (int64_t i = 0; i < whole.element_count(); ++i) {
        changed += whole.as<uint16_t>()[i] != sliced.as<uint16_t>()[i] ? 1 : 0;
      }
    }
    return changed;
  }
};

TEST(CutGemms, SayWhatCuttingChangedAndWhy) {
  RingStep step(kRows / 2, "cublaslt");
  const int64_t changed = step.ChangedBySlices();
  ASSERT_GT(changed, 0);
  EXPECT_THAT(
      step.Notes(),
      ElementsAre(AllOf(
          StartsWith("y: "),
          HasSubstr(absl::StrCat(" in 2 GEMMs has other bits than the same in one in ", changed,
                                 " of ", kRows * kO, " elements over all ranks; cut: cublaslt")),
          HasSubstr("splitk=3 reduction=0"), HasSubstr("; in one: cublaslt:fast (id=66 "),
          HasSubstr(
              "; explain: in one the bits are of sm90:fast, cut they are of sm90:fast,splitk="),
          EndsWith("sm90:fast,splitk=3"))));
}

TEST(CutGemms, SayWhenCuttingChangedNothing) {
  RingStep step(0, "cublaslt");
  EXPECT_THAT(step.Notes(),
              ElementsAre(AllOf(HasSubstr(" in 2 GEMMs has the bits of the same in one; cut: "),
                                Not(HasSubstr("explain")))));
}

TEST(CutGemms, OfModelsNeedNoWord) {
  EXPECT_THAT(RingStep(kRows / 2, "sm90").Notes(), ElementsAre());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
