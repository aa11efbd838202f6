// Uploads that reach a device's memory beside the disk.
#include "server/device/device_copy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/engine/forwarding_engine.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// The CPU engine with a memory of its own, as far as anybody asks.
class EngineWithMemory : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  DeviceMemory Memory() const override { return {0, 0, 1000}; }
  absl::Status Write(std::span<const std::byte> bytes, const Tensor& to, int64_t offset) override {
    if (fails) return absl::InternalError("the bus");
    return ForwardingEngine::Write(bytes, to, offset);
  }
  bool fails = false;
};

struct Served {
  std::unique_ptr<Engine> cpu = MakeCpuEngine({});
  EngineWithMemory* engine = nullptr;
  Devices devices;

  explicit Served(int device_count = 1) {
    for (int i = 0; i < device_count; ++i) {
      auto made = std::make_unique<EngineWithMemory>(*cpu);
      engine = made.get();
      devices.push_back(std::make_unique<Device>(std::move(made), 100));
    }
  }
  ResidentTensors& resident() { return devices[0]->resident; }
};

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
Digest DigestOf(const std::string& text) { return Digest::Of(Bytes(text)); }

/// What is kept under the digest of `text`; "" where nothing is.
std::string Kept(ResidentTensors& resident, const std::string& text) {
  bool is_kept = true;
  const auto tensor = resident.Get(
      DigestOf(text).Text(), ResidentTensors::Source::kStored,
      [&]() -> absl::StatusOr<Tensor> {
        is_kept = false;
        return absl::NotFoundError("not kept");
      },
      nullptr);
  if (!is_kept || !tensor.ok()) return "";
  return {reinterpret_cast<const char*>(tensor->data()), tensor->byte_size()};
}

void Append(DeviceCopy& copy, const std::string& text) {
  const std::span<const std::byte> piece = Bytes(text);
  copy.Append({&piece, 1});
}

TEST(DeviceCopyTest, KeepsWhatWasUploaded) {
  Served served;
  auto copy = DeviceCopy::Start(served.devices, DigestOf("two pieces"));
  ASSERT_NE(copy, nullptr);
  Append(*copy, "two ");
  Append(*copy, "pieces");
  EXPECT_EQ(Kept(served.resident(), "two pieces"), "");  // Its digest is not known to be right yet.
  copy->Keep();
  copy = nullptr;
  EXPECT_EQ(Kept(served.resident(), "two pieces"), "two pieces");
  EXPECT_EQ(served.resident().usage().resident_bytes, 10);
}

TEST(DeviceCopyTest, KeepsNothingThatIsNotWhole) {
  Served served;
  auto copy = DeviceCopy::Start(served.devices, DigestOf("whole"));
  Append(*copy, "who");
  copy->Keep();
  EXPECT_EQ(Kept(served.resident(), "whole"), "");
  Append(*copy, "le, and more than was declared");
  copy->Keep();
  EXPECT_EQ(Kept(served.resident(), "whole"), "");
}

TEST(DeviceCopyTest, AFailureEndsTheCopyAlone) {
  Served served;
  auto copy = DeviceCopy::Start(served.devices, DigestOf("whole"));
  served.engine->fails = true;
  Append(*copy, "who");
  served.engine->fails = false;
  Append(*copy, "le");
  copy->Keep();
  EXPECT_EQ(Kept(served.resident(), "whole"), "");
}

TEST(DeviceCopyTest, UploadsFillAtMostHalfOfTheBudgetAtOnce) {
  Served served;
  const std::string thirty(30, 'a'), other(30, 'b'), large(51, 'c');
  EXPECT_EQ(DeviceCopy::Start(served.devices, DigestOf(large)), nullptr);
  auto first = DeviceCopy::Start(served.devices, DigestOf(thirty));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(DeviceCopy::Start(served.devices, DigestOf(other)), nullptr);
  first = nullptr;
  EXPECT_NE(DeviceCopy::Start(served.devices, DigestOf(other)), nullptr);
}

TEST(DeviceCopyTest, ThereIsNoneForTheCpuOrForSeveralDevices) {
  Devices cpu_only;
  cpu_only.push_back(std::make_unique<Device>(MakeCpuEngine({}), 0));
  EXPECT_EQ(DeviceCopy::Start(cpu_only, DigestOf("x")), nullptr);
  Served two(2);
  EXPECT_EQ(DeviceCopy::Start(two.devices, DigestOf("x")), nullptr);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
