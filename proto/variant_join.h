// The reports of a run's variants from its events: both ends of a stream put them together alike.
#pragma once

#include <map>
#include <vector>

#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

class VariantJoin {
 public:
  /// A run's events, each once, in their order.
  void Take(v1::RunEvent event);
  /// Those that are whole, by their index.
  std::map<int, v1::VariantReport>& variants() { return variants_; }

 private:
  /// What it says of an output that was told completes that one (engine_service.proto,
  /// OutputFinished).
  void Join(v1::VariantFinished finished);

  std::map<int, std::vector<v1::OutputReport>> told_;  ///< By variant.
  std::map<int, v1::VariantReport> variants_;
};

}  // namespace quantgate
