#include "server/report/device_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {

std::string DeviceText(const v1::DeviceDescription& device, const v1::Environment& environment) {
  std::vector<std::string> parts = {absl::StrCat(device.id(), " ", device.name()),
                                    device.architecture()};
  if (device.multiprocessors() != 0)
    parts.push_back(absl::StrCat(device.multiprocessors(), " SMs"));
  if (device.sm_clock_mhz() != 0) {
    parts.push_back(absl::StrCat(device.sm_clock_mhz(), " MHz as read"));
  }
  if (!device.driver().empty()) parts.push_back(absl::StrCat("driver ", device.driver()));
  if (absl::StartsWith(device.id(), "cuda")) {
    if (!environment.cuda().empty()) parts.push_back(absl::StrCat("CUDA ", environment.cuda()));
    if (!environment.cublaslt().empty()) {
      parts.push_back(absl::StrCat("cuBLASLt ", environment.cublaslt()));
    }
    if (!environment.nccl().empty()) parts.push_back(absl::StrCat("NCCL ", environment.nccl()));
  }
  return absl::StrJoin(parts, ", ");
}

std::string StageClockText(const v1::Environment& environment) {
  std::vector<std::string> clocks;
  for (const v1::DeviceDescription& device : environment.devices()) {
    const std::string& clock = device.stage_clock();
    const bool is_known = std::find(clocks.begin(), clocks.end(), clock) != clocks.end();
    if (!clock.empty() && !is_known) clocks.push_back(clock);
  }
  return clocks.empty() ? "" : absl::StrCat("stage times by ", absl::StrJoin(clocks, " and "));
}

std::string WhatRanText(const v1::VariantReport& variant) {
  if (!variant.is_hardware()) return "model";
  // All ranks run the same GEMMs in the same way, so those of the first rank are read.
  const auto& gemms = variant.ranks().empty() ? variant.gemms() : variant.ranks(0).gemms();
  const bool is_all = std::all_of(gemms.begin(), gemms.end(),
                                  [](const v1::GemmLine& gemm) { return gemm.is_hardware(); });
  return is_all ? "hardware" : "hardware and model";
}

}  // namespace quantgate
