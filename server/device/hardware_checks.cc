#include "server/device/hardware_checks.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/device/build_description.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

std::string KeyOf(const Device& device, HardwareCheckSize size) {
  const DeviceDescription description = device.engine->Describe();
  const BuildDescription build = DescribeBuild();
  const HardwareCheckKey key{description.name, description.driver, description.cublaslt,
                             absl::StrCat(build.version, " (", build.revision, ")")};
  return absl::StrCat(device.id, " ", key.ToString(size));
}

Json ReadAll(const std::string& path) {
  std::ifstream file(path);
  Json all = file ? Json::parse(file, nullptr, /*allow_exceptions=*/false) : Json();
  return all.is_object() ? all : Json::object();
}

}  // namespace

std::optional<HardwareCheckResult> HardwareChecks::Find(const std::string& key) const {
  const Json all = ReadAll(path_);
  const auto found = all.find(key);
  if (found == all.end() || !found->is_object()) return std::nullopt;
  HardwareCheckResult result;
  result.key = key;
  result.is_remembered = true;
  try {
    result.has_drift = found->at("has_drift").get<bool>();
    result.runs = found->at("runs").get<int64_t>();
    result.outputs = found->at("outputs").get<int64_t>();
    result.drifted_runs = found->at("drifted_runs").get<int64_t>();
    result.seconds = found->at("seconds").get<double>();
    result.lines = found->at("lines").get<std::vector<std::string>>();
  } catch (const Json::exception&) {
    return std::nullopt;  // The result of another version; the check is done anew.
  }
  return result;
}

void HardwareChecks::Remember(const HardwareCheckResult& result) const {
  Json all = ReadAll(path_);
  all[result.key] = {{"has_drift", result.has_drift}, {"runs", result.runs},
                     {"outputs", result.outputs},     {"drifted_runs", result.drifted_runs},
                     {"seconds", result.seconds},     {"lines", result.lines}};
  std::ofstream(path_) << all.dump(1) << "\n";
}

absl::StatusOr<HardwareCheckResult> HardwareChecks::Check(Device& device, HardwareCheckSize size,
                                                          bool again,
                                                          const Cancellation* cancellation) {
  const std::string key = KeyOf(device, size);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!again) {
    if (std::optional<HardwareCheckResult> known = Find(key); known.has_value()) {
      return *std::move(known);
    }
  }
  const absl::Time start = SteadyNow();
  QG_ASSIGN_OR_RETURN(const HardwareCheck check, device.engine->CheckHardware(size, cancellation));
  HardwareCheckResult result;
  result.key = key;
  result.seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  result.has_drift = check.has_drift();
  result.runs = check.runs();
  result.outputs = check.outputs();
  for (const HardwareClass& one : check.classes) {
    result.drifted_runs += one.differing;
  }
  result.lines = HardwareCheckLines(check);
  Remember(result);
  return result;
}

}  // namespace quantgate
