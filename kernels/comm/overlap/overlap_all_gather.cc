// Graphs that gather: the ring with its GEMM cut by rows, and the bulk all-gather beside a GEMM
// that does not read it.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/overlap/overlap_member.h"
#include "kernels/comm/overlap/overlap_operands.h"

namespace quantgate {
namespace {

/// The rows of each part over all ranks, and how they are cut.
absl::StatusOr<std::vector<RowMap>> MapsOf(const OverlapMembers& members, const OverlapCut& cut) {
  std::vector<RowMap> maps;
  for (size_t part = 0; part < members[0]->shard.size(); ++part) {
    std::vector<int64_t> rows;
    for (const auto& member : members) rows.push_back(member->shard[part].shape()[0]);
    const bool is_operand = part < members[0]->operand_parts;
    QG_ASSIGN_OR_RETURN(maps.emplace_back(),
                        RowMap::Create(rows, is_operand ? cut.pieces : 1, cut.row_multiple));
  }
  return maps;
}

/// Fills the buffers of all members with memory for what they gather.
absl::Status FillBuffers(const OverlapMembers& members, const std::vector<RowMap>& maps) {
  for (const auto& member : members) {
    std::vector<BufferPart> parts;
    for (size_t i = 0; i < maps.size(); ++i) {
      Shape shape = member->shard[i].shape();
      shape[0] = maps[i].rows();
      parts.push_back({member->shard[i].dtype(), std::move(shape)});
    }
    QG_ASSIGN_OR_RETURN(member->gathered, member->buffer->Fill(member->owner, parts));
    QG_RETURN_IF_ERROR(member->buffer->Start());
  }
  return absl::OkStatus();
}

std::string RowsName(int owner, int piece, int pieces) {
  return pieces == 1 ? absl::StrCat("rows of ", owner)
                     : absl::StrCat("rows of ", owner, ".", piece);
}

/// Adds the tasks of a graph that gathers.
class GatherTasks {
 public:
  GatherTasks(TaskGraph& graph, const OverlapMembers& members, const OverlapCut& cut,
              const std::vector<RowMap>& maps)
      : graph_(graph), members_(members), cut_(cut), maps_(maps) {}

  int size() const { return static_cast<int>(members_.size()); }
  const RowMap& operand_map() const { return maps_[0]; }

  /// Copies rows of parts [first, last) of `owner`'s shard from the memory of rank `from` to their
  /// place in the memory of `rank`.
  absl::StatusOr<int> Copy(std::string name, int rank, int from, int owner, size_t first,
                           size_t last, int piece, std::vector<int> after) {
    std::vector<Move> moves;
    for (size_t part = first; part < last; ++part) {
      const RowInterval& rows = maps_[part].piece(owner, piece);
      QG_ASSIGN_OR_RETURN(Tensor source, SourceOf(from, owner, part, rows));
      const Tensor& to = members_[rank]->gathered[part];
      moves.push_back({std::move(source), to, rows.begin * RowBytes(to)});
    }
    return graph_.Add({std::move(name), rank, OverlapResource::kReceive, from == rank ? -1 : from,
                       std::move(after), [moves](Engine& engine) -> absl::Status {
                         for (const Move& move : moves) {
                           if (move.source.byte_size() == 0) continue;
                           QG_RETURN_IF_ERROR(engine.Copy(move.source, move.to, move.offset));
                         }
                         return absl::OkStatus();
                       }});
  }

  /// Copies a rank's own shard to its place.
  absl::StatusOr<int> KeepOwn(int rank, int piece, size_t first, size_t last) {
    const std::string name = RowsName(rank, piece, first == 0 ? cut_.pieces : 1);
    return Copy(absl::StrCat("keep ", name), rank, rank, rank, first, last, piece, {});
  }

  /// Copies the parts from `first` on of all shards, each from its owner.
  absl::Status CopyFromOwners(size_t first) {
    const size_t parts = members_[0]->shard.size();
    if (first == parts) return absl::OkStatus();
    for (int step = 0; step < size(); ++step) {
      for (int rank = 0; rank < size(); ++rank) {
        const int owner = RingAllGatherSteps(rank, size(), false)[step][0].owner;
        const std::string name =
            absl::StrCat(first == 0 ? "copy rows of " : "copy beside of ", owner, " from ", owner);
        QG_RETURN_IF_ERROR(Copy(name, rank, owner, owner, first, parts, 0, {}).status());
      }
    }
    return absl::OkStatus();
  }

  /// Multiplies some rows of the operand, to rows `to` of d.
  absl::StatusOr<int> Multiply(std::string name, int rank, const GemmOperand& rows,
                               const RowInterval& to, std::vector<int> after) {
    OverlapMember* const member = members_[rank].get();
    GemmDesc desc = member->gemm;
    desc.a = rows;
    QG_ASSIGN_OR_RETURN(desc.d, member->d.RowRange(to.begin, to.count));
    return AddGemm(graph_, std::move(name), rank, *member, std::move(desc), std::move(after));
  }

 private:
  struct Move {
    Tensor source, to;
    int64_t offset;
  };

  /// The tensor to read: the owner's own shard where the owner is the source.
  absl::StatusOr<Tensor> SourceOf(int from, int owner, size_t part, const RowInterval& rows) const {
    if (from != owner) return members_[from]->gathered[part].RowRange(rows.begin, rows.count);
    return members_[from]->shard[part].RowRange(rows.begin - maps_[part].shard(owner).begin,
                                                rows.count);
  }

  TaskGraph& graph_;
  const OverlapMembers& members_;
  const OverlapCut& cut_;
  const std::vector<RowMap>& maps_;
};

/// The ring: in each step a rank copies a shard, and multiplies it as soon as it has arrived.
class Ring {
 public:
  Ring(GatherTasks& tasks, const OverlapMembers& members, const OverlapCut& cut)
      : tasks_(tasks), members_(members), cut_(cut), size_(tasks.size()), arrived_(size_ * size_) {
    for (int rank = 0; rank < size_; ++rank) {
      steps_.push_back(RingAllGatherSteps(rank, size_, cut.aggregate));
    }
  }

  absl::Status Add() {
    for (size_t step = 0; step < steps_[0].size(); ++step) {
      for (int rank = 0; rank < size_; ++rank) {
        for (int piece = 0; piece < cut_.pieces; ++piece) {
          QG_RETURN_IF_ERROR(AddPiece(rank, static_cast<int>(step), piece));
        }
      }
    }
    if (cut_.aggregate) return absl::OkStatus();
    // No GEMM needs these copies, so they come after all copies that a GEMM needs.
    for (int rank = 0; rank < size_; ++rank) {
      for (int piece = 0; piece < cut_.pieces; ++piece) {
        QG_RETURN_IF_ERROR(tasks_.KeepOwn(rank, piece, 0, members_[0]->operand_parts).status());
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status AddPiece(int rank, int step, int piece) {
    std::vector<int> copies;
    for (const RingShard& shard : steps_[rank][step]) {
      QG_RETURN_IF_ERROR(AddCopy(rank, shard, piece, copies));
    }
    return MultiplyStep(rank, step, piece, std::move(copies));
  }

  absl::Status AddCopy(int rank, const RingShard& shard, int piece, std::vector<int>& copies) {
    if (shard.owner == rank) {
      // A pair is multiplied as one, so the rank's own half has to be in its place too.
      if (!cut_.aggregate) return absl::OkStatus();
      QG_ASSIGN_OR_RETURN(copies.emplace_back(),
                          tasks_.KeepOwn(rank, piece, 0, members_[0]->operand_parts));
      return absl::OkStatus();
    }
    std::vector<int> after;
    if (shard.from != shard.owner) {
      after.push_back(arrived_[shard.from * size_ + shard.owner][piece]);
    }
    const std::string name =
        absl::StrCat("copy ", RowsName(shard.owner, piece, cut_.pieces), " from ", shard.from);
    QG_ASSIGN_OR_RETURN(const int copy,
                        tasks_.Copy(name, rank, shard.from, shard.owner, 0,
                                    members_[0]->operand_parts, piece, std::move(after)));
    arrived_[rank * size_ + shard.owner].push_back(copy);
    copies.push_back(copy);
    return absl::OkStatus();
  }

  absl::Status MultiplyStep(int rank, int step, int piece, std::vector<int> after) {
    const RowMap& map = tasks_.operand_map();
    const RingStep& shards = steps_[rank][step];
    const bool is_own = !cut_.aggregate && step == 0;
    RowInterval rows = map.piece(shards.front().owner, piece);
    rows.count = map.piece(shards.back().owner, piece).end() - rows.begin;
    // Empty pieces are skipped, but one GEMM must run to state the arithmetic.
    if (rows.count == 0 && (step > 0 || piece > 0)) return absl::OkStatus();
    const OverlapMember& member = *members_[rank];
    std::vector<Tensor> parts = RowParts(member.gemm.a);
    RowInterval read = rows;
    if (is_own) {
      read.begin -= map.shard(rank).begin;
    } else {
      std::copy_n(member.gathered.begin(), parts.size(), parts.begin());
    }
    QG_ASSIGN_OR_RETURN(parts, RowsOfParts(parts, read));
    std::string name = absl::StrCat("gemm ", RowsName(shards.front().owner, piece, cut_.pieces));
    if (shards.size() > 1) absl::StrAppend(&name, " and ", shards.back().owner);
    return tasks_
        .Multiply(std::move(name), rank, WithRowParts(member.gemm.a, parts), rows, std::move(after))
        .status();
  }

  GatherTasks& tasks_;
  const OverlapMembers& members_;
  const OverlapCut& cut_;
  const int size_;
  std::vector<std::vector<RingStep>> steps_;  ///< By rank.
  std::vector<std::vector<int>> arrived_;     ///< By rank and owner: the copy of each piece.
};

}  // namespace

absl::StatusOr<TaskGraph> BuildRingAllGatherGemm(const OverlapMembers& members,
                                                 const OverlapCut& cut) {
  TaskGraph graph(static_cast<int>(members.size()));
  QG_ASSIGN_OR_RETURN(const std::vector<RowMap> maps, MapsOf(members, cut));
  QG_RETURN_IF_ERROR(FillBuffers(members, maps));
  for (const auto& member : members) {
    QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(member->gemm));
    QG_ASSIGN_OR_RETURN(
        member->d, member->engine().Allocate(member->gemm.out_dtype, {maps[0].rows(), shape.n}));
  }
  GatherTasks tasks(graph, members, cut, maps);
  QG_RETURN_IF_ERROR(Ring(tasks, members, cut).Add());
  QG_RETURN_IF_ERROR(tasks.CopyFromOwners(members[0]->operand_parts));
  return graph;
}

absl::StatusOr<TaskGraph> BuildBulkAllGather(const OverlapMembers& members, const OverlapCut& cut) {
  TaskGraph graph(static_cast<int>(members.size()));
  QG_ASSIGN_OR_RETURN(const std::vector<RowMap> maps, MapsOf(members, cut));
  QG_RETURN_IF_ERROR(FillBuffers(members, maps));
  QG_RETURN_IF_ERROR(AddWholeGemms(graph, members));
  QG_RETURN_IF_ERROR(GatherTasks(graph, members, cut, maps).CopyFromOwners(0));
  return graph;
}

}  // namespace quantgate
