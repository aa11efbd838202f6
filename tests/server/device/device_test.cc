// A device that cannot be trusted any more takes the server out of service.
#include "server/device/device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/engine/forwarding_engine.h"
#include "server/errors.h"

namespace quantgate {
namespace QG_TEST_FILE {

class FailingHealth : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  absl::Status Health() const override { return health; }
  DeviceMemory Memory() const override { return {0, 0, bytes_total}; }
  absl::Status health;
  int64_t bytes_total = 0;
};

struct Watched {
  std::unique_ptr<Engine> cpu = MakeCpuEngine({});
  FailingHealth* engine = nullptr;
  std::unique_ptr<Device> device;
  std::vector<std::string> lost;
  int out_of_memory = 0;
  DeviceWatch watch{[this](const Device& which, const absl::Status& why) {
                      lost.push_back(which.id + ": " + std::string(why.message()));
                    },
                    [this](const Device&) { ++out_of_memory; }};

  Watched() {
    auto failing = std::make_unique<FailingHealth>(*cpu);
    engine = failing.get();
    device = std::make_unique<Device>(std::move(failing), 0);
  }
};

TEST(DeviceWatchTest, PassesOnWhatAHealthyDeviceSays) {
  Watched watched;
  EXPECT_TRUE(watched.watch.Checked(*watched.device, absl::OkStatus()).ok());
  const absl::Status refused = absl::ResourceExhaustedError("full");
  EXPECT_EQ(watched.watch.Checked(*watched.device, refused), refused);
  EXPECT_TRUE(watched.lost.empty());
  // An engine without memory of its own: the host's was too little.
  EXPECT_EQ(watched.out_of_memory, 0);
}

TEST(DeviceWatchTest, CountsJobsThatTheDeviceHadTooLittleMemoryFor) {
  Watched watched;
  watched.engine->bytes_total = 1 << 20;
  const absl::Status refused = absl::ResourceExhaustedError("cannot allocate 8 bytes");
  EXPECT_EQ(watched.watch.Checked(*watched.device, refused), refused);
  EXPECT_EQ(watched.out_of_memory, 1);
  // The service's own limits are no business of the device.
  for (const absl::Status& other : {error::DiskFull("write"), error::QuotaExceeded(3, 2, 1),
                                    absl::InternalError("odd"), absl::OkStatus()}) {
    EXPECT_EQ(watched.watch.Checked(*watched.device, other), other);
  }
  EXPECT_EQ(watched.out_of_memory, 1);
}

TEST(DeviceWatchTest, VouchesForNothingAfterALoss) {
  Watched watched;
  watched.engine->health = absl::DataLossError("an illegal memory access");
  for (const absl::Status& said : {absl::OkStatus(), absl::InternalError("odd")}) {
    const absl::Status status = watched.watch.Checked(*watched.device, said);
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_NE(status.message().find("an illegal memory access"), std::string::npos) << status;
  }
  ASSERT_EQ(watched.lost.size(), 1u);
  EXPECT_NE(watched.lost[0].find("cpu: device cpu was lost"), std::string::npos);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
