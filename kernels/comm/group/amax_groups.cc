#include "kernels/comm/group/amax_groups.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/refusal.h"

namespace quantgate {
namespace {

constexpr std::string_view kGroupNames[] = {"default", "none", "tensor", "data", "world"};

/// Longest text that is parsed; the lists of any world are shorter.
constexpr size_t kTextMax = 64;

/// Parses "0,2/1,3"; empty where the text has another form.
std::vector<std::vector<int>> ParseRanks(std::string_view text) {
  std::vector<std::vector<int>> groups;
  for (const std::string& list :
       std::vector<std::string>(absl::StrSplit(absl::string_view(text.data(), text.size()), '/'))) {
    std::vector<int>& ranks = groups.emplace_back();
    for (const std::string& item : std::vector<std::string>(absl::StrSplit(list, ','))) {
      const bool is_digits = !item.empty() && std::all_of(item.begin(), item.end(), [](char digit) {
        return digit >= '0' && digit <= '9';
      });
      if (!is_digits || !absl::SimpleAtoi(item, &ranks.emplace_back())) return {};
    }
  }
  return groups;
}

}  // namespace

std::string AmaxGroup::Text() const {
  if (kind != Kind::kRanks) return std::string(kGroupNames[static_cast<size_t>(kind)]);
  return absl::StrJoin(ranks, "/", [](std::string* text, const std::vector<int>& group) {
    absl::StrAppend(text, absl::StrJoin(group, ","));
  });
}

absl::StatusOr<AmaxGroup> ParseAmaxGroup(std::string_view text) {
  const auto* const named = std::find(std::begin(kGroupNames), std::end(kGroupNames), text);
  if (named != std::end(kGroupNames)) {
    return AmaxGroup{static_cast<AmaxGroup::Kind>(named - std::begin(kGroupNames))};
  }
  AmaxGroup group{AmaxGroup::Kind::kRanks};
  if (text.size() <= kTextMax) group.ranks = ParseRanks(text);
  if (!group.ranks.empty()) return group;
  return Refuse("amax_group", absl::StrCat("\"", std::string(text.substr(0, kTextMax)), "\""),
                "unknown name; known: default, none, tensor, data, world, or lists of ranks such "
                "as 0,2/1,3");
}

const AmaxGroup& AmaxGroupOf(const AmaxGroups& groups, TensorRole role) {
  static const AmaxGroup& by_default = *new AmaxGroup();
  const auto found = groups.find(role);
  return found == groups.end() ? by_default : found->second;
}

AmaxGroups WithGroupsOfCall(AmaxGroups groups, const AmaxGroups& call) {
  for (const auto& [role, group] : call) groups[role] = group;
  std::erase_if(groups, [](const auto& entry) { return !entry.second.is_named(); });
  return groups;
}

std::string AmaxGroupsText(const AmaxGroups& groups) {
  std::string text;
  for (const auto& [role, group] : groups) {
    if (!group.is_named()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ",", std::string(TensorRoleName(role)), "=",
                    group.Text());
  }
  return text;
}

std::string AmaxGroupField(TensorRole role) {
  return absl::StrCat("amax_groups[", std::string(TensorRoleName(role)), "]");
}

}  // namespace quantgate
