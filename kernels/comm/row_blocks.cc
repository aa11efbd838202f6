#include "kernels/comm/row_blocks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

absl::Status CheckRows(const Tensor& tensor, std::span<const int64_t> rows) {
  int64_t left = tensor.rank() == 0 ? 0 : tensor.shape()[0];
  for (const int64_t count : rows) {
    if (count < 0 || count > left) left = -1;
    if (left >= 0) left -= count;
  }
  if (tensor.rank() > 0 && left == 0) return absl::OkStatus();
  return Refuse("rows", absl::StrJoin(rows, ", "),
                absl::StrCat("must add up to the first dim of ", TensorText(tensor)));
}

}  // namespace

std::vector<int64_t> EvenRows(int64_t rows, int size) {
  std::vector<int64_t> blocks;
  for (int i = 0; i < size; ++i) blocks.push_back(rows / size + (i < rows % size ? 1 : 0));
  return blocks;
}

absl::StatusOr<std::vector<Tensor>> RowBlocks(const Tensor& tensor, std::span<const int64_t> rows) {
  QG_RETURN_IF_ERROR(CheckRows(tensor, rows));
  std::vector<Tensor> blocks;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    QG_ASSIGN_OR_RETURN(blocks.emplace_back(), tensor.RowRange(begin, count));
    begin += count;
  }
  return blocks;
}

}  // namespace quantgate
