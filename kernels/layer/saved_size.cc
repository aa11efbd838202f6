#include "kernels/layer/saved_size.h"

#include <algorithm>
#include <cstddef>

namespace quantgate {

namespace {

AddressRanges::Range RangeOf(const Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data());
  return {begin, begin + tensor.byte_size()};
}

}  // namespace

std::vector<AddressRanges::Range> AddressRanges::Missing(Range range) const {
  std::vector<Range> missing;
  uintptr_t from = range.begin;
  const auto add_to = [&](uintptr_t end) {
    if (from < end) missing.push_back({from, end});
  };
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin()) --next;
  for (; next != ends_.end() && next->first < range.end; ++next) {
    add_to(next->first);
    from = std::max(from, next->second);
  }
  add_to(range.end);
  return missing;
}

std::vector<AddressRanges::Range> AddressRanges::Add(Range range) {
  std::vector<Range> added = Missing(range);
  for (const Range& part : added) ends_[part.begin] = part.end;
  return added;
}

void StorageCount::HoldAnyway(const Tensor& tensor) {
  if (tensor.has_value()) held_.Add(RangeOf(tensor));
}

StorageCount::Sizes StorageCount::Add(std::span<const SavedTensor> operand) {
  Sizes sizes;
  AddressRanges own;
  const auto count = [&](AddressRanges& known, const SavedTensor& part, SavedSize& size) {
    for (const AddressRanges::Range& added : known.Add(RangeOf(part.tensor))) {
      (part.is_scale ? size.scales : size.data) += added.bytes();
      size.held += added.bytes();
      for (const AddressRanges::Range& other : held_.Missing(added)) size.held -= other.bytes();
    }
  };
  for (const SavedTensor& part : operand) {
    if (!part.tensor.has_value()) continue;
    // The two directions of an operand that is not quantized are one tensor.
    count(own, part, sizes.all);
    count(counted_, part, sizes.counted);
  }
  return sizes;
}

std::shared_ptr<const void> GatheredBytes::Hold(int64_t bytes) {
  count_->held += bytes;
  count_->peak = std::max(count_->peak, count_->held);
  return std::shared_ptr<const void>(
      count_.get(), [count = count_, bytes](const void*) { count->held -= bytes; });
}

}  // namespace quantgate
