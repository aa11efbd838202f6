// Writes golden tensors with their cases: a safetensors file whose __metadata__ holds "origin"
// (which device and libraries produced the outputs) and "cases" (a JSON array; each case names its
// tensors and parameters).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quantgate::hardware {

class GoldenFile {
 public:
  /// Adds a tensor once; the same name again must bring the same bytes. `type` as in
  /// cublaslt_gemm.h.
  void AddTensor(const std::string& name, const std::string& type,
                 const std::vector<int64_t>& shape, const std::vector<uint8_t>& bytes);
  void AddCase(nlohmann::json one) { cases_.push_back(std::move(one)); }
  size_t case_count() const { return cases_.size(); }
  /// Ends the process when the file cannot be written.
  void Write(const std::string& path, const std::string& origin) const;

 private:
  struct Entry {
    std::string type;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
  };
  std::map<std::string, Entry> tensors_;
  nlohmann::json cases_ = nlohmann::json::array();
};

}  // namespace quantgate::hardware
