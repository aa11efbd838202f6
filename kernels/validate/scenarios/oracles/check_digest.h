// CheckDigest: one SHA-256 over everything that a scenario has checked (docs/reports.md section
// 8). Two runs with equal digests saw the same bytes, wherever they ran.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/tensor/fingerprint.h"

namespace quantgate {

/// A chain: each check is hashed together with the digest of the checks before it.
class CheckDigest {
 public:
  /// Adds name, dtype, shape and bytes of a subject on the host.
  void AddTensor(int64_t step, std::string_view name, const Tensor& subject);
  /// Adds a subject other than a tensor, as text that is the same on every machine.
  void AddFact(int64_t step, std::string_view name, std::string_view subject);
  /// Adds the checks of another digest under a heading.
  void AddAll(std::string_view heading, const CheckDigest& other);

  /// 64 hex digits; empty if there was no check.
  std::string Hex() const { return count_ == 0 ? "" : last_.Hex(); }

 private:
  class Record;

  Sha256 last_;  // Zeros before the first check.
  int64_t count_ = 0;
};

}  // namespace quantgate
