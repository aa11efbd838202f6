// Graphs that reduce: each rank's partial products go to the owners of their rows, and every owner
// sums the products of all ranks in the order of the profile.
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/overlap/overlap_member.h"
#include "kernels/comm/overlap/overlap_operands.h"

namespace quantgate {
namespace {

/// Adds the tasks of a graph that reduces `partials` of several blocks of columns.
class ReduceTasks {
 public:
  ReduceTasks(TaskGraph& graph, const OverlapMembers& members, const OverlapCut& cut, RowMap map)
      : graph_(graph), members_(members), cut_(cut), map_(std::move(map)) {}

  int size() const { return static_cast<int>(members_.size()); }
  const RowMap& map() const { return map_; }

  /// Allocates the members' partials, one for each block of columns.
  absl::Status AllocatePartials(const std::vector<int64_t>& columns, DType dtype) {
    for (const auto& member : members_) {
      for (const int64_t count : columns) {
        QG_ASSIGN_OR_RETURN(member->partials.emplace_back(),
                            member->engine().Allocate(dtype, {map_.rows(), count}));
      }
    }
    return absl::OkStatus();
  }

  /// Allocates y, into which rows are summed, so that pieces need not be joined.
  absl::Status AllocateSums(int64_t columns, DType dtype) {
    for (int rank = 0; rank < size(); ++rank) {
      OverlapMember& member = *members_[rank];
      QG_ASSIGN_OR_RETURN(member.y,
                          member.engine().Allocate(dtype, {map_.shard(rank).count, columns}));
    }
    return absl::OkStatus();
  }

  /// Fills the buffers with memory for the member's rows from each other rank, by block of columns.
  absl::Status FillBuffers(const std::vector<int64_t>& columns, DType dtype) {
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<BufferPart> parts;
      for (const int64_t count : columns) {
        for (int other = 1; other < size(); ++other) {
          parts.push_back({dtype, {map_.shard(rank).count, count}});
        }
      }
      OverlapMember& member = *members_[rank];
      QG_ASSIGN_OR_RETURN(std::vector<Tensor> memory, member.buffer->Fill(member.owner, parts));
      QG_RETURN_IF_ERROR(member.buffer->Start());
      auto next = memory.begin();
      for (size_t block = 0; block < columns.size(); ++block) {
        member.received.emplace_back(next, next + size() - 1);
        next += size() - 1;
      }
    }
    return absl::OkStatus();
  }

  static constexpr int kAllPieces = -1;

  /// Copies rows of `to`'s shard, one piece or all, of a block of the partial that `from` made.
  absl::StatusOr<int> CopyToOwner(int from, int to, int block, int piece, std::vector<int> after) {
    const RowInterval rows = RowsOf(to, piece);
    QG_ASSIGN_OR_RETURN(const Tensor source,
                        members_[from]->partials[block].RowRange(rows.begin, rows.count));
    const Tensor destination = members_[to]->received[block][Distance(from, to) - 1];
    const int64_t offset = (rows.begin - map_.shard(to).begin) * RowBytes(destination);
    return graph_.Add({absl::StrCat("copy ", Name(block, piece), " from ", from), to,
                       OverlapResource::kReceive, from, std::move(after),
                       [source, destination, offset](Engine& engine) -> absl::Status {
                         if (source.byte_size() == 0) return absl::OkStatus();
                         return engine.Copy(source, destination, offset);
                       }});
  }

  /// Sums an owner's rows over all ranks.
  absl::Status Sum(int owner, int block, int piece, std::vector<int> after) {
    QG_ASSIGN_OR_RETURN(const ReductionOrder order, OrderOf(cut_.profile, owner, size()));
    const RowInterval rows = RowsOf(owner, piece);
    OverlapMember* const member = members_[owner].get();
    std::vector<Tensor> parts;
    for (const int from : order.ranks) {
      if (from == owner) {
        QG_ASSIGN_OR_RETURN(parts.emplace_back(),
                            member->partials[block].RowRange(rows.begin, rows.count));
      } else {
        QG_ASSIGN_OR_RETURN(parts.emplace_back(),
                            member->received[block][Distance(from, owner) - 1].RowRange(
                                rows.begin - map_.shard(owner).begin, rows.count));
      }
    }
    std::string name = absl::StrCat("sum ", Name(block, piece));
    if (member->y.has_value()) {
      QG_ASSIGN_OR_RETURN(const Tensor to,
                          member->y.RowRange(rows.begin - map_.shard(owner).begin, rows.count));
      return AddSum(std::move(name), owner, std::move(after),
                    [member, parts, order, to](Engine& engine) -> absl::Status {
                      return engine.OrderedSumTo(parts, order.accumulation, to,
                                                 member->cancellation);
                    });
    }
    const size_t index = member->sums.size();
    member->sums.emplace_back();
    return AddSum(std::move(name), owner, std::move(after),
                  [member, parts, order, index](Engine& engine) -> absl::Status {
                    QG_ASSIGN_OR_RETURN(member->sums[index],
                                        engine.OrderedSum(parts, order.accumulation,
                                                          parts[0].dtype(), member->cancellation));
                    return absl::OkStatus();
                  });
  }

  /// Copies a block of columns from every rank to every owner, nearest first, and sums it.
  /// made[rank] is the task that makes the rank's partial; empty where the partials exist already.
  absl::Status ExchangeAndSum(int block, const std::vector<int>& made) {
    std::vector<std::vector<int>> needed(size());
    for (int distance = 1; distance < size(); ++distance) {
      for (int owner = 0; owner < size(); ++owner) {
        const int from = (owner - distance + size()) % size();
        const std::vector<int> after = made.empty() ? made : std::vector<int>{made[from]};
        QG_ASSIGN_OR_RETURN(needed[owner].emplace_back(),
                            CopyToOwner(from, owner, block, kAllPieces, after));
      }
    }
    for (int owner = 0; owner < size(); ++owner) {
      if (!made.empty()) needed[owner].push_back(made[owner]);
      QG_RETURN_IF_ERROR(Sum(owner, block, kAllPieces, std::move(needed[owner])));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status AddSum(std::string name, int owner, std::vector<int> after,
                      std::function<absl::Status(Engine& engine)> work) {
    return graph_
        .Add({std::move(name), owner, OverlapResource::kReduce, -1, std::move(after),
              std::move(work)})
        .status();
  }

  /// 1 for the rank below the owner, 2 for the one below that.
  int Distance(int from, int owner) const { return (owner - from + size()) % size(); }

  RowInterval RowsOf(int owner, int piece) const {
    return piece == kAllPieces ? map_.shard(owner) : map_.piece(owner, piece);
  }

  std::string Name(int block, int piece) const {
    if (cut_.splits > 1) return absl::StrCat("columns ", block);
    return cut_.pieces > 1 ? absl::StrCat("rows ", piece) : "rows";
  }

  TaskGraph& graph_;
  const OverlapMembers& members_;
  const OverlapCut& cut_;
  const RowMap map_;
};

}  // namespace

absl::StatusOr<TaskGraph> BuildPointToPointReduceScatterGemm(const OverlapMembers& members,
                                                             const OverlapCut& cut) {
  const int size = static_cast<int>(members.size());
  TaskGraph graph(size);
  QG_ASSIGN_OR_RETURN(RowMap map, RowMap::Create(cut.rows, cut.pieces, cut.row_multiple));
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(members[0]->gemm));
  ReduceTasks tasks(graph, members, cut, std::move(map));
  QG_RETURN_IF_ERROR(tasks.AllocatePartials({shape.n}, members[0]->gemm.out_dtype));
  QG_RETURN_IF_ERROR(tasks.AllocateSums(shape.n, members[0]->gemm.out_dtype));
  QG_RETURN_IF_ERROR(tasks.FillBuffers({shape.n}, members[0]->gemm.out_dtype));
  std::vector<std::vector<int>> needed(size * cut.pieces);  // By owner and piece.
  for (int step = 0; step < size; ++step) {
    for (int piece = 0; piece < cut.pieces; ++piece) {
      for (int rank = 0; rank < size; ++rank) {
        OverlapMember& member = *members[rank];
        const int owner = ReduceScatterOwner(rank, step, size);
        const RowInterval& rows = tasks.map().piece(owner, piece);
        std::string name = absl::StrCat("gemm rows of ", owner);
        if (cut.pieces > 1) absl::StrAppend(&name, ".", piece);
        QG_ASSIGN_OR_RETURN(GemmDesc desc, RowsOfGemm(member.gemm, rows, member.partials[0]));
        QG_ASSIGN_OR_RETURN(int made,
                            AddGemm(graph, std::move(name), rank, member, std::move(desc), {}));
        if (owner != rank) {
          QG_ASSIGN_OR_RETURN(made, tasks.CopyToOwner(rank, owner, 0, piece, {made}));
        }
        needed[owner * cut.pieces + piece].push_back(made);
      }
    }
  }
  for (int piece = 0; piece < cut.pieces; ++piece) {
    for (int owner = 0; owner < size; ++owner) {
      QG_RETURN_IF_ERROR(tasks.Sum(owner, 0, piece, std::move(needed[owner * cut.pieces + piece])));
    }
  }
  return graph;
}

absl::StatusOr<TaskGraph> BuildPipelinedReduceScatterGemm(const OverlapMembers& members,
                                                          const OverlapCut& cut) {
  const int size = static_cast<int>(members.size());
  TaskGraph graph(size);
  QG_ASSIGN_OR_RETURN(RowMap map, RowMap::Create(cut.rows, 1, 1));
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(members[0]->gemm));
  const std::vector<int64_t> columns(cut.splits, shape.n / cut.splits);
  ReduceTasks tasks(graph, members, cut, std::move(map));
  QG_RETURN_IF_ERROR(tasks.AllocatePartials(columns, members[0]->gemm.out_dtype));
  QG_RETURN_IF_ERROR(tasks.FillBuffers(columns, members[0]->gemm.out_dtype));
  for (int split = 0; split < cut.splits; ++split) {
    std::vector<int> made(size);
    for (int rank = 0; rank < size; ++rank) {
      OverlapMember& member = *members[rank];
      QG_ASSIGN_OR_RETURN(GemmDesc desc,
                          ColumnsOfGemm(member.engine(), member.gemm, split * columns[split],
                                        columns[split], member.partials[split]));
      QG_ASSIGN_OR_RETURN(made[rank], AddGemm(graph, absl::StrCat("gemm columns ", split), rank,
                                              member, std::move(desc), {}));
    }
    QG_RETURN_IF_ERROR(tasks.ExchangeAndSum(split, made));
  }
  return graph;
}

absl::StatusOr<TaskGraph> BuildBulkReduceScatter(const OverlapMembers& members,
                                                 const OverlapCut& cut) {
  TaskGraph graph(static_cast<int>(members.size()));
  QG_ASSIGN_OR_RETURN(RowMap map, RowMap::Create(cut.rows, 1, 1));
  ReduceTasks tasks(graph, members, cut, std::move(map));
  const Tensor& first = members[0]->partial;
  QG_RETURN_IF_ERROR(tasks.FillBuffers({first.columns()}, first.dtype()));
  for (const auto& member : members) member->partials = {member->partial};
  QG_RETURN_IF_ERROR(AddWholeGemms(graph, members));
  QG_RETURN_IF_ERROR(tasks.ExchangeAndSum(0, {}));
  return graph;
}

}  // namespace quantgate
