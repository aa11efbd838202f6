#include "proto/variant_join.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quantgate {

void VariantJoin::Take(v1::RunEvent event) {
  if (event.has_output()) {
    v1::OutputFinished& output = *event.mutable_output();
    told_[output.index()].push_back(std::move(*output.mutable_report()));
  }
  if (event.has_variant()) Join(std::move(*event.mutable_variant()));
  if (event.has_finished() && event.finished().has_variant()) {
    Join(std::move(*event.mutable_finished()->mutable_variant()));
  }
}

void VariantJoin::Join(v1::VariantFinished finished) {
  std::vector<v1::OutputReport> all = std::move(told_[finished.index()]);
  told_.erase(finished.index());
  const size_t told = all.size();
  v1::VariantReport& report = *finished.mutable_report();
  for (v1::OutputReport& output : *report.mutable_outputs()) {
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(told);
    const auto known = std::find_if(all.begin(), end, [&](const v1::OutputReport& other) {
      return other.tensor().name() == output.tensor().name();
    });
    if (known == end) {
      all.push_back(std::move(output));
    } else {
      known->MergeFrom(output);
    }
  }
  report.mutable_outputs()->Assign(std::make_move_iterator(all.begin()),
                                   std::make_move_iterator(all.end()));
  variants_[finished.index()] = std::move(report);
}

}  // namespace quantgate
