#include "kernels/comm/reduction_profile.h"

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

constexpr int kRotationMax = 7;

struct ProfileName {
  ReductionKind kind;
  std::string_view name;
};
constexpr std::array<ProfileName, 6> kNames = {{
    {ReductionKind::kRankAscFp32, "rank_asc_fp32"},
    {ReductionKind::kUbP2p, "ub_p2p"},
    {ReductionKind::kUbAtomic, "ub_atomic"},
    {ReductionKind::kNcclRing, "nccl_ring"},
    {ReductionKind::kBf16Rotated, "bf16_rotated"},
    {ReductionKind::kNccl, "nccl"},
}};

absl::Status UnknownProfile(std::string_view text) {
  return Refuse("reduction_profile", absl::StrCat("\"", std::string(text), "\""),
                absl::StrCat("unknown name; known: rank_asc_fp32, ub_p2p, ub_atomic, nccl_ring, "
                             "bf16_rotated:W with W in [0, ",
                             kRotationMax, "], nccl"));
}

/// `size` ranks, cyclically from `first` upwards (step 1) or downwards (step -1).
std::vector<int> Cycle(int first, int step, int size) {
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(((first + i * step) % size + size) % size);
  return ranks;
}

}  // namespace

std::string ReductionProfileName(const ReductionProfile& profile) {
  for (const auto& [kind, name] : kNames) {
    if (kind != profile.kind) continue;
    if (kind == ReductionKind::kBf16Rotated) {
      return absl::StrCat(std::string(name), ":", profile.rotation);
    }
    return std::string(name);
  }
  return "unknown";
}

absl::StatusOr<ReductionProfile> ParseReductionProfile(std::string_view text) {
  const size_t colon = text.find(':');
  for (const auto& [kind, name] : kNames) {
    if (text.substr(0, colon) != name) continue;
    ReductionProfile profile{kind};
    const bool takes_rotation = kind == ReductionKind::kBf16Rotated;
    if (takes_rotation != (colon != std::string_view::npos)) return UnknownProfile(text);
    if (takes_rotation &&
        (!absl::SimpleAtoi(std::string(text.substr(colon + 1)), &profile.rotation) ||
         profile.rotation < 0 || profile.rotation > kRotationMax)) {
      return UnknownProfile(text);
    }
    return profile;
  }
  return UnknownProfile(text);
}

std::vector<ReductionProfile> OrderedProfiles() {
  return {{ReductionKind::kRankAscFp32},    {ReductionKind::kUbP2p},
          {ReductionKind::kUbAtomic},       {ReductionKind::kNcclRing},
          {ReductionKind::kBf16Rotated, 0}, {ReductionKind::kBf16Rotated, 1}};
}

bool IsOwnerIndependent(const ReductionProfile& profile) {
  return profile.kind == ReductionKind::kRankAscFp32;
}

absl::StatusOr<ReductionOrder> OrderOf(const ReductionProfile& profile, int owner, int size) {
  switch (profile.kind) {
    case ReductionKind::kRankAscFp32:
      return ReductionOrder{Cycle(0, 1, size), SumAccumulation::kF32};
    case ReductionKind::kUbP2p:
      return ReductionOrder{Cycle(owner, -1, size), SumAccumulation::kF32};
    case ReductionKind::kUbAtomic:
      return ReductionOrder{Cycle(owner, 1, size), SumAccumulation::kF32};
    case ReductionKind::kNcclRing:
      return ReductionOrder{Cycle(owner + 1, 1, size), SumAccumulation::kElement};
    case ReductionKind::kBf16Rotated:
      return ReductionOrder{Cycle(owner + profile.rotation, 1, size), SumAccumulation::kElement};
    case ReductionKind::kNccl:
      break;
  }
  return StatusOf({.code = absl::StatusCode::kUnimplemented,
                   .field = "reduction_profile",
                   .value = "nccl",
                   .rule = "the library chooses its order, so this build has no model of it"});
}

}  // namespace quantgate
