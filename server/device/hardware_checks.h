// HardwareChecks: the self-check of CUDA devices (kernels/gemm/cublaslt/hardware_check.h),
// remembered in the data directory per device, driver, cuBLASLt, build and size. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "server/device/device.h"

namespace quantgate {

struct HardwareCheckResult {
  std::string key;  ///< HardwareCheckKey::ToString.
  bool has_drift = false;
  int64_t runs = 0;     ///< GEMMs compared with their model.
  int64_t outputs = 0;  ///< Output elements of those GEMMs.
  int64_t drifted_runs = 0;
  double seconds = 0;
  std::vector<std::string> lines;  ///< HardwareCheckLines.
  bool is_remembered = false;      ///< The result of an earlier check with the same key.
};

class HardwareChecks {
 public:
  /// `path`: a JSON file, made by the first check. A damaged file counts as an empty one.
  explicit HardwareChecks(std::string path) : path_(std::move(path)) {}

  /// The result for this device as it is now; `again` checks even where a result is remembered.
  /// Errors as Engine::CheckHardware. A result that cannot be saved is returned all the same.
  absl::StatusOr<HardwareCheckResult> Check(Device& device, HardwareCheckSize size, bool again,
                                            const Cancellation* cancellation);

 private:
  std::optional<HardwareCheckResult> Find(const std::string& key) const;
  void Remember(const HardwareCheckResult& result) const;

  const std::string path_;
  std::mutex mutex_;
};

}  // namespace quantgate
