#include "kernels/training/shard_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/training/shard_faults.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

constexpr char kShardKey[] = "quantgate.shard";
constexpr int64_t kRanksMax = 1 << 16;

absl::Status BadShards(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint of shards: ", what));
}

absl::StatusOr<int64_t> NumberOf(const Json& json, const char* key, int64_t max,
                                 const std::string& where) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (json.is_object() && found != json.end() && found->is_number_unsigned() &&
      found->get<uint64_t>() <= static_cast<uint64_t>(max)) {
    return found->get<int64_t>();
  }
  return BadShards(absl::StrCat(where, ".", key, " must be an integer from 0 to ", max));
}

Shape RowShape(const Tensor& tensor) { return {tensor.shape().begin() + 1, tensor.shape().end()}; }

size_t RowBytes(const Tensor& tensor) {
  size_t bytes = static_cast<size_t>(DTypeBytes(tensor.dtype()));
  for (const int64_t dim : RowShape(tensor)) bytes *= static_cast<size_t>(dim);
  return bytes;
}

/// Parts of one tensor, side by side from row 0 to the last.
absl::Status CheckParts(const std::string& name, const std::vector<ShardPart>& parts) {
  int64_t end = 0;
  for (const ShardPart& part : parts) {
    const Tensor& first = parts[0].tensor;
    if (part.total != parts[0].total || part.tensor.dtype() != first.dtype() ||
        RowShape(part.tensor) != RowShape(first)) {
      return BadShards(absl::StrCat(name, ": ", TensorText(part.tensor), " of ", part.total,
                                    " rows beside ", TensorText(first), " of ", parts[0].total));
    }
    if (part.begin != end) {
      return BadShards(absl::StrCat(name, ": a part begins at row ", part.begin,
                                    ", where the one before it ends at ", end));
    }
    end += part.tensor.shape()[0];
  }
  if (end == parts[0].total) return absl::OkStatus();
  return BadShards(absl::StrCat(name, ": parts end at row ", end, " of ", parts[0].total));
}

}  // namespace

TensorFile MakeShardFile(int rank, int ranks, std::span<const ShardPart> parts,
                         const std::map<std::string, std::string>& metadata) {
  TensorFile file;
  file.metadata = metadata;
  Json places = Json::object();
  for (const ShardPart& part : parts) {
    file.tensors.push_back({part.name, part.tensor});
    places[part.name] = {{"begin", part.begin}, {"total", part.total}};
  }
  file.metadata[kShardKey] =
      Json({{"rank", rank}, {"ranks", ranks}, {"tensors", std::move(places)}}).dump();
  return file;
}

absl::Status ShardCheckpoint::AddFile(const TensorFile& file) {
  const auto found = file.metadata.find(kShardKey);
  if (found == file.metadata.end()) {
    return BadShards(absl::StrCat("metadata \"", kShardKey, "\" is absent"));
  }
  const Json shard = Json::parse(found->second, nullptr, false);
  QG_ASSIGN_OR_RETURN(const int64_t ranks, NumberOf(shard, "ranks", kRanksMax, "shard"));
  QG_ASSIGN_OR_RETURN(const int64_t rank, NumberOf(shard, "rank", kRanksMax, "shard"));
  std::map<std::string, std::string> metadata = file.metadata;
  metadata.erase(kShardKey);
  if (ranks_ == 0) {
    ranks_ = static_cast<int>(ranks);
    has_rank_.assign(static_cast<size_t>(ranks), false);
    metadata_ = metadata;
  }
  if (ranks != ranks_ || rank >= ranks || has_rank_[static_cast<size_t>(rank)]) {
    return BadShards(absl::StrCat("a file of rank ", rank, " of ", ranks, "; each rank of ", ranks_,
                                  " has one file"));
  }
  has_rank_[static_cast<size_t>(rank)] = true;
  if (metadata != metadata_) {
    return BadShards(absl::StrCat(
        "the files of ranks say different things beside their shards: ", "rank ", rank));
  }
  const auto places = shard.find("tensors");
  if (places == shard.end() || !places->is_object() || places->size() != file.tensors.size()) {
    return BadShards(
        absl::StrCat("rank ", rank, ": a place for each of its ", file.tensors.size(), " tensors"));
  }
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const NamedTensor& tensor : file.tensors) {
    const std::string where = absl::StrCat("rank ", rank, ": ", tensor.name);
    const auto place = places->find(tensor.name);
    if (place == places->end() || tensor.tensor.rank() < 1) {
      return BadShards(
          absl::StrCat(where, ": ", TensorText(tensor.tensor), " must have rows and a place"));
    }
    ShardPart part = {.name = tensor.name, .tensor = tensor.tensor};
    QG_ASSIGN_OR_RETURN(part.begin, NumberOf(*place, "begin", kMax, where));
    QG_ASSIGN_OR_RETURN(part.total, NumberOf(*place, "total", kMax, where));
    tensors_[tensor.name].push_back(std::move(part));
  }
  return absl::OkStatus();
}

absl::Status ShardCheckpoint::Check(const SeededFaults& faults) {
  for (auto& [name, parts] : tensors_) {
    if (faults.Has(kFaultFragmentPlaceIgnored)) {
      int64_t begin = 0;
      for (ShardPart& part : parts) {
        part.begin = begin;
        begin += part.tensor.shape()[0];
      }
    }
    std::stable_sort(parts.begin(), parts.end(), [](const ShardPart& a, const ShardPart& b) {
      // An empty part lies before what begins at the same row.
      return std::pair(a.begin, a.tensor.shape()[0]) < std::pair(b.begin, b.tensor.shape()[0]);
    });
    QG_RETURN_IF_ERROR(CheckParts(name, parts));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardCheckpoint> ShardCheckpoint::Open(std::span<const TensorFile> files,
                                                      const SeededFaults& faults) {
  ShardCheckpoint checkpoint;
  for (const TensorFile& file : files) QG_RETURN_IF_ERROR(checkpoint.AddFile(file));
  for (size_t rank = 0; rank < checkpoint.has_rank_.size(); ++rank) {
    if (checkpoint.has_rank_[rank]) continue;
    return BadShards(absl::StrCat("no file of rank ", rank, " of ", checkpoint.ranks_));
  }
  if (files.empty()) return BadShards("no files");
  QG_RETURN_IF_ERROR(checkpoint.Check(faults));
  return checkpoint;
}

absl::StatusOr<Tensor> ShardCheckpoint::Rows(const std::string& name, int64_t begin,
                                             int64_t count) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat("checkpoint of shards: no tensor ", name));
  }
  const std::vector<ShardPart>& parts = found->second;
  if (begin < 0 || count < 0 || begin > parts[0].total - count) {
    return BadShards(
        absl::StrCat(name, ": ", count, " rows from ", begin, " on, of ", parts[0].total));
  }
  Shape shape = parts[0].tensor.shape();
  shape[0] = count;
  QG_ASSIGN_OR_RETURN(Tensor rows, Tensor::Allocate(parts[0].tensor.dtype(), std::move(shape)));
  const size_t row_bytes = RowBytes(rows);
  for (const ShardPart& part : parts) {
    const int64_t first = std::max(begin, part.begin);
    const int64_t last = std::min(begin + count, part.begin + part.tensor.shape()[0]);
    if (first >= last || row_bytes == 0) continue;
    std::memcpy(rows.data() + static_cast<size_t>(first - begin) * row_bytes,
                part.tensor.data() + static_cast<size_t>(first - part.begin) * row_bytes,
                static_cast<size_t>(last - first) * row_bytes);
  }
  return rows;
}

absl::StatusOr<Tensor> ShardCheckpoint::Whole(const std::string& name) const {
  const auto found = tensors_.find(name);
  return Rows(name, 0, found == tensors_.end() ? 0 : found->second[0].total);
}

}  // namespace quantgate
