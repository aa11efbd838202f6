// Engines with a bug in every mxfp8 scale, for servers whose scenarios must fail.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/forwarding_engine.h"

namespace quantgate {

/// Rounds E8M0 scales down.
class FlooringEngine final : public ForwardingEngine {
 public:
  explicit FlooringEngine(std::unique_ptr<Engine> engine)
      : ForwardingEngine(*engine), engine_(std::move(engine)) {}

  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& source, const Quantizer& quantizer,
                                           Usages usages, const QuantizeArguments& arguments,
                                           const Cancellation* cancellation) override {
    Quantizer altered = quantizer;
    for (QuantizerSpec* spec : {&altered.rowwise, &altered.columnwise}) {
      if (spec->format == QuantizerFormat::kMxfp8) spec->scale_rule = ScaleRule::kFloor;
    }
    return engine_->Quantize(source, altered, usages, arguments, cancellation);
  }

 private:
  const std::unique_ptr<Engine> engine_;
};

inline absl::StatusOr<std::vector<std::unique_ptr<Engine>>> MakeFaultyEngines() {
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(std::make_unique<FlooringEngine>(MakeCpuEngine({})));
  return engines;
}

}  // namespace quantgate
