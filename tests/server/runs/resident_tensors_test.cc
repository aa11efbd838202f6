// Which tensors stay with an engine, which leave and whereto. The engine is the CPU's: where bytes
// are is a matter of ResidentTensors alone.
#include "server/runs/resident_tensors.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/forwarding_engine.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Source = ResidentTensors::Source;

/// Counts what crosses between the host and the engine's memory.
class CrossingCounter : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  std::atomic<int> to_device = 0, to_host = 0;

 protected:
  void OnOperation(const std::string& name) override {
    to_device += name == "ToDevice";
    to_host += name == "ToHost";
  }
};

class ResidentTensorsTest : public testing::Test {
 protected:
  /// `bytes` bytes, each the first letter of the key.
  absl::StatusOr<Tensor> Get(ResidentTensors& resident, const std::string& key, int64_t bytes,
                             Source source) {
    return resident.Get(
        key, source,
        [&]() -> absl::StatusOr<Tensor> {
          loads_.push_back(key);
          const std::string text(static_cast<size_t>(bytes), key[0]);
          return Tensor::FromBytes(DType::kU8, {bytes}, std::as_bytes(std::span(text)));
        },
        nullptr);
  }
  void ExpectIs(const absl::StatusOr<Tensor>& tensor, char letter, int64_t bytes) {
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    ASSERT_EQ(tensor->shape(), Shape{bytes});
    for (int64_t i = 0; i < bytes; ++i) EXPECT_EQ(tensor->as<uint8_t>()[i], letter);
  }

  const std::unique_ptr<Engine> cpu_ = MakeCpuEngine({});
  CrossingCounter engine_{*cpu_};
  std::vector<std::string> loads_;
};

// A call that never ends would be ended by CTest.
TEST_F(ResidentTensorsTest, ALoadThatThrowsHoldsUpNobody) {
  ResidentTensors resident(engine_, 100);
  const auto refused = []() -> absl::StatusOr<Tensor> { throw std::bad_alloc(); };
  EXPECT_THROW((void)resident.Get("a", Source::kGenerated, refused, nullptr), std::bad_alloc);
  ExpectIs(Get(resident, "a", 10, Source::kGenerated), 'a', 10);
  ExpectIs(Get(resident, "a", 10, Source::kGenerated), 'a', 10);
  EXPECT_EQ(loads_.size(), 1u);
}

TEST_F(ResidentTensorsTest, KeepsATensorAfterItsFirstUse) {
  ResidentTensors resident(engine_, 100);
  ExpectIs(Get(resident, "a", 40, Source::kStored), 'a', 40);
  ExpectIs(Get(resident, "a", 40, Source::kStored), 'a', 40);
  EXPECT_EQ(loads_, std::vector<std::string>{"a"});
  EXPECT_EQ(engine_.to_device, 1);
  const ResidentUsage usage = resident.usage();
  EXPECT_EQ(usage.resident_bytes, 40);
  EXPECT_EQ(usage.resident_tensors, 1);
  EXPECT_EQ(usage.hits, 1);
  EXPECT_EQ(usage.misses, 1);
  EXPECT_EQ(usage.bytes_max, 100);
}

TEST_F(ResidentTensorsTest, DropsTheStoredTensorThatWasUsedLongestAgo) {
  ResidentTensors resident(engine_, 100);
  ASSERT_TRUE(Get(resident, "a", 40, Source::kStored).ok());
  ASSERT_TRUE(Get(resident, "b", 40, Source::kStored).ok());
  ASSERT_TRUE(Get(resident, "a", 40, Source::kStored).ok());
  ASSERT_TRUE(Get(resident, "c", 40, Source::kStored).ok());  // b goes, a was used since.
  EXPECT_EQ(resident.usage().resident_bytes, 80);
  EXPECT_EQ(resident.usage().dropped_bytes_total, 40);
  EXPECT_EQ(resident.usage().spilled_bytes, 0);
  loads_.clear();
  ASSERT_TRUE(Get(resident, "a", 40, Source::kStored).ok());
  EXPECT_TRUE(loads_.empty());
  ExpectIs(Get(resident, "b", 40, Source::kStored), 'b', 40);
  EXPECT_EQ(loads_, std::vector<std::string>{"b"});
}

TEST_F(ResidentTensorsTest, SpillsAGeneratedTensorAndBringsItBackWithoutMakingItAgain) {
  ResidentTensors resident(engine_, 100);
  ASSERT_TRUE(Get(resident, "a", 60, Source::kGenerated).ok());
  ASSERT_TRUE(Get(resident, "b", 60, Source::kGenerated).ok());
  EXPECT_EQ(engine_.to_host, 1);
  EXPECT_EQ(resident.usage().spilled_bytes, 60);
  EXPECT_EQ(resident.usage().resident_bytes, 60);
  loads_.clear();
  ExpectIs(Get(resident, "a", 60, Source::kGenerated), 'a', 60);
  EXPECT_TRUE(loads_.empty());
  // Now b is the one on the host.
  EXPECT_EQ(resident.usage().spilled_bytes, 60);
  EXPECT_EQ(resident.usage().resident_tensors, 1);
  EXPECT_EQ(resident.usage().spilled_bytes_total, 120);
}

TEST_F(ResidentTensorsTest, BoundsWhatIsSpilled) {
  ResidentTensors resident(engine_, 100);
  for (const char* key : {"a", "b", "c", "d"}) {
    ASSERT_TRUE(Get(resident, key, 60, Source::kGenerated).ok());
    EXPECT_LE(resident.usage().resident_bytes, 100);
    EXPECT_LE(resident.usage().spilled_bytes, 100);
  }
  EXPECT_EQ(resident.usage().spilled_bytes_total, 60);
  EXPECT_EQ(resident.usage().dropped_bytes_total, 120);
}

TEST_F(ResidentTensorsTest, DoesNotKeepWhatIsLargerThanTheBudget) {
  ResidentTensors resident(engine_, 100);
  ASSERT_TRUE(Get(resident, "a", 40, Source::kStored).ok());
  ExpectIs(Get(resident, "b", 101, Source::kStored), 'b', 101);
  EXPECT_EQ(resident.usage().resident_bytes, 40);
  loads_.clear();
  ASSERT_TRUE(Get(resident, "b", 101, Source::kStored).ok());
  EXPECT_EQ(loads_.size(), 1u);
}

TEST_F(ResidentTensorsTest, KeepsNothingWithoutABudget) {
  ResidentTensors resident(engine_, 0);
  ASSERT_TRUE(Get(resident, "a", 40, Source::kStored).ok());
  ASSERT_TRUE(Get(resident, "a", 40, Source::kStored).ok());
  EXPECT_EQ(loads_.size(), 2u);
  EXPECT_EQ(engine_.to_device, 0);
}

TEST_F(ResidentTensorsTest, ATensorInUseOutlivesItsPlace) {
  ResidentTensors resident(engine_, 100);
  const absl::StatusOr<Tensor> a = Get(resident, "a", 60, Source::kStored);
  ASSERT_TRUE(Get(resident, "b", 60, Source::kStored).ok());
  ExpectIs(a, 'a', 60);
}

TEST_F(ResidentTensorsTest, MakesRoomWhenTheDeviceIsFull) {
  ResidentTensors resident(engine_, 100);
  ASSERT_TRUE(Get(resident, "a", 60, Source::kStored).ok());
  int calls = 0;
  const auto tensor = resident.Get(
      "b", Source::kStored,
      [&]() -> absl::StatusOr<Tensor> {
        // The device is full for as long as a is there.
        if (++calls == 1) return absl::ResourceExhaustedError("cannot allocate 8 bytes");
        return Tensor::Allocate(DType::kU8, {8});
      },
      nullptr);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(resident.usage().resident_bytes, 8);
  EXPECT_EQ(resident.usage().dropped_bytes_total, 60);
}

TEST_F(ResidentTensorsTest, ATensorOnItsWayHoldsUpNoOther) {
  ResidentTensors resident(engine_, 100);
  absl::Notification others_done;
  std::thread others;
  const auto slow = resident.Get(
      "a", Source::kStored,
      [&]() -> absl::StatusOr<Tensor> {
        others = std::thread([&] {
          EXPECT_TRUE(Get(resident, "b", 40, Source::kStored).ok());
          EXPECT_EQ(resident.usage().resident_bytes, 40);
          others_done.Notify();
        });
        // The time is spent only where the others wait for this load.
        EXPECT_TRUE(others_done.WaitForNotificationWithTimeout(absl::Seconds(20)));
        return Tensor::Allocate(DType::kU8, {20});
      },
      nullptr);
  others.join();
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_EQ(resident.usage().resident_bytes, 60);
}

/// Several threads ask for one key. The first load ends, with `first`, once all others wait for it
/// or load the tensor themselves.
struct CallsForOneKey {
  explicit CallsForOneKey(ResidentTensors& resident, const absl::Status& first) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kCalls; ++i) {
      threads.emplace_back([&] {
        const auto tensor = resident.Get(
            "a", Source::kStored,
            [&]() -> absl::StatusOr<Tensor> {
              const bool is_first = loads++ == 0;
              while (is_first && resident.usage().hits + loads < kCalls) std::this_thread::yield();
              if (is_first && !first.ok()) return first;
              return Tensor::Allocate(DType::kU8, {40});
            },
            nullptr);
        failures += !tensor.ok();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static constexpr int kCalls = 4;
  std::atomic<int> loads = 0, failures = 0;
};

TEST_F(ResidentTensorsTest, OneCallLoadsForAllWhoAskMeanwhile) {
  ResidentTensors resident(engine_, 100);
  const CallsForOneKey calls(resident, absl::OkStatus());
  EXPECT_EQ(calls.loads, 1);
  EXPECT_EQ(calls.failures, 0);
  EXPECT_EQ(resident.usage().misses, 1);
  EXPECT_EQ(resident.usage().hits, CallsForOneKey::kCalls - 1);
  EXPECT_EQ(resident.usage().resident_bytes, 40);
}

TEST_F(ResidentTensorsTest, WhoWaitedForAFailedLoadLoadsAgain) {
  ResidentTensors resident(engine_, 100);
  const CallsForOneKey calls(resident, absl::CancelledError("the client has gone"));
  EXPECT_EQ(calls.loads, 2);
  EXPECT_EQ(calls.failures, 1);
  EXPECT_EQ(resident.usage().resident_tensors, 1);
}

TEST_F(ResidentTensorsTest, KeepsOneTensorWhereAnUploadAddsWhatIsOnItsWay) {
  ResidentTensors resident(engine_, 100);
  const auto tensor = resident.Get(
      "a", Source::kStored,
      [&]() -> absl::StatusOr<Tensor> {
        QG_ASSIGN_OR_RETURN(const Tensor bytes, Tensor::Allocate(DType::kU8, {40}));
        resident.Add("a", Source::kStored, bytes);
        return bytes;
      },
      nullptr);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(resident.usage().resident_bytes, 40);
  EXPECT_EQ(resident.usage().resident_tensors, 1);
}

TEST_F(ResidentTensorsTest, AFailedLoadLeavesEverythingAsItWas) {
  ResidentTensors resident(engine_, 100);
  ASSERT_TRUE(Get(resident, "a", 60, Source::kStored).ok());
  const auto failed = resident.Get(
      "b", Source::kStored,
      []() -> absl::StatusOr<Tensor> { return absl::DataLossError("the blob is damaged"); },
      nullptr);
  EXPECT_TRUE(absl::IsDataLoss(failed.status()));
  EXPECT_EQ(resident.usage().resident_bytes, 60);
  loads_.clear();
  ExpectIs(Get(resident, "b", 20, Source::kStored), 'b', 20);
  EXPECT_EQ(loads_, std::vector<std::string>{"b"});
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
