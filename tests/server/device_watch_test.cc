// A device that cannot be trusted any more takes the server out of service.
#include "server/device_watch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/forwarding_engine.h"

namespace quantgate {
namespace {

class FailingHealth : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  absl::Status Health() const override { return health; }
  absl::Status health;
};

struct Watched {
  std::unique_ptr<Engine> cpu = MakeCpuEngine({});
  FailingHealth* engine = nullptr;
  std::unique_ptr<Device> device;
  std::vector<std::string> lost;
  DeviceWatch watch{[this](const Device& which, const absl::Status& why) {
    lost.push_back(which.id + ": " + std::string(why.message()));
  }};

  Watched() {
    auto failing = std::make_unique<FailingHealth>(*cpu);
    engine = failing.get();
    device = std::make_unique<Device>(std::move(failing), ServerOptions());
  }
};

TEST(DeviceWatchTest, PassesOnWhatAHealthyDeviceSays) {
  Watched watched;
  EXPECT_TRUE(watched.watch.Checked(*watched.device, absl::OkStatus()).ok());
  const absl::Status refused = absl::ResourceExhaustedError("full");
  EXPECT_EQ(watched.watch.Checked(*watched.device, refused), refused);
  EXPECT_TRUE(watched.lost.empty());
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

}  // namespace
}  // namespace quantgate
