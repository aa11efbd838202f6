// VariantJoin: puts the reports of a run's variants together from its events, for both ends of a
// stream.
#pragma once

#include <map>
#include <vector>

#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

class VariantJoin {
 public:
  /// Takes the events of a run, each once and in their order.
  void Take(v1::RunEvent event);
  /// The complete reports, by the index of their variants.
  std::map<int, v1::VariantReport>& variants() { return variants_; }

 private:
  /// Merges outputs that came before into the variant (engine_service.proto, OutputFinished).
  void Join(v1::VariantFinished finished);

  /// Outputs that came before their variant, by its index.
  std::map<int, std::vector<v1::OutputReport>> told_;
  std::map<int, v1::VariantReport> variants_;
};

}  // namespace quantgate
