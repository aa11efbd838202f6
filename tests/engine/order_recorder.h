// Records the operations of an engine in order, to find reads between them: on a device each read
// waits for all work that is under way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kernels/engine/forwarding_engine.h"

namespace quantgate {

/// Whether an operation gives values to the host, by its name in ForwardingEngine.
inline bool IsRead(const std::string& operation) {
  static const std::set<std::string> kReads = {"ToHost", "Summarize", "ReadFingerprints",
                                               "MeasureNearer", ForwardingEngine::kReadReport};
  return kReads.count(operation) != 0;
}

class OrderRecorder : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  std::vector<std::string> operations;

 protected:
  void OnOperation(const std::string& name) override { operations.push_back(name); }
};

/// Expects that all other operations come before the first read; gives the number of reads.
inline int64_t ExpectReadsLast(const std::vector<std::string>& operations) {
  const auto first_read = std::find_if(operations.begin(), operations.end(), IsRead);
  const auto late = std::find_if_not(first_read, operations.end(), IsRead);
  EXPECT_TRUE(late == operations.end()) << *late << " after " << *first_read;
  return operations.end() - first_read;
}

}  // namespace quantgate
