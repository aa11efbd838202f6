#include "server/report/report_document.h"

#include <algorithm>

namespace quantgate {

std::vector<std::string> OutputNames(const v1::RunReport& run) {
  std::vector<std::string> names;
  for (const v1::VariantReport& variant : run.variants()) {
    for (const v1::OutputReport& output : variant.outputs()) {
      if (output.intermediate()) continue;
      const std::string& name = output.tensor().name();
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

const v1::OutputReport* FindOutput(const v1::VariantReport& variant, std::string_view tensor) {
  for (const v1::OutputReport& output : variant.outputs()) {
    if (output.tensor().name() == tensor) return &output;
  }
  return nullptr;
}

const v1::TensorComparison* FindAgainstReference(const v1::VariantReport& variant,
                                                 std::string_view tensor) {
  for (const v1::TensorComparison& comparison : variant.against_reference()) {
    if (comparison.tensor() == tensor) return &comparison;
  }
  return nullptr;
}

}  // namespace quantgate
