#include "kernels/validate/scenarios/oracles/check_digest.h"

#include <array>
#include <bit>
#include <span>

namespace quantgate {

/// The bytes of one check. Every text follows its length, so that no two checks have the same
/// bytes.
class CheckDigest::Record {
 public:
  explicit Record(CheckDigest& digest) : digest_(digest) {
    stream_.Update(std::as_bytes(std::span(digest.last_.bytes)));
  }
  ~Record() {
    digest_.last_ = stream_.Finish();
    ++digest_.count_;
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  void Add(std::span<const std::byte> bytes) { stream_.Update(bytes); }
  void Add(int64_t number) {
    static_assert(std::endian::native == std::endian::little, "numbers are little-endian");
    Add(std::as_bytes(std::span(&number, 1)));
  }
  void Add(std::string_view text) {
    Add(static_cast<int64_t>(text.size()));
    Add(std::as_bytes(std::span(text)));
  }

 private:
  CheckDigest& digest_;
  Sha256Stream stream_;
};

void CheckDigest::AddTensor(int64_t step, std::string_view name, const Tensor& subject) {
  Record record(*this);
  record.Add(std::string_view("tensor"));
  record.Add(step);
  record.Add(name);
  record.Add(DTypeName(subject.dtype()));
  record.Add(static_cast<int64_t>(subject.shape().size()));
  for (const int64_t dim : subject.shape()) record.Add(dim);
  record.Add(subject.bytes());
}

void CheckDigest::AddFact(int64_t step, std::string_view name, std::string_view subject) {
  Record record(*this);
  record.Add(std::string_view("fact"));
  record.Add(step);
  record.Add(name);
  record.Add(subject);
}

void CheckDigest::AddAll(std::string_view heading, const CheckDigest& other) {
  if (other.count_ == 0) return;
  Record record(*this);
  record.Add(std::string_view("checks"));
  record.Add(heading);
  record.Add(other.last_.view());
}

}  // namespace quantgate
