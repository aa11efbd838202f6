// What is asked of an engine, in order, and whether anything was read in between: on a device each
// read waits for all that is under way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kernels/engine/forwarding_engine.h"

namespace quantgate {

/// Whether an operation gives the caller values, by its name in ForwardingEngine.
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

/// Everything else came before the first read; how many reads there were.
inline int64_t ExpectReadsLast(const std::vector<std::string>& operations) {
  const auto first_read = std::find_if(operations.begin(), operations.end(), IsRead);
  const auto late = std::find_if_not(first_read, operations.end(), IsRead);
  EXPECT_TRUE(late == operations.end()) << *late << " after " << *first_read;
  return operations.end() - first_read;
}

}  // namespace quantgate
