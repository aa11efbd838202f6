#include "server/wire/convert_recipe.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "server/device/build_description.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

RecipeCache& Cache() {
  static RecipeCache* const cache = new RecipeCache;
  return *cache;
}

}  // namespace

absl::StatusOr<Recipe> RecipeFromProto(const v1::Recipe& proto, const std::string& field) {
  if (std::optional<Recipe> cached = Cache().Find(proto)) return *std::move(cached);
  const Recipe::Knobs knobs(proto.knobs().begin(), proto.knobs().end());
  auto recipe = Recipe::Create(proto.name(), knobs);
  if (proto.name().empty()) {
    return RefuseAbsent(field + ".name", RefusalOf(recipe.status())->rule);
  }
  if (!recipe.ok()) return WithinField(field, recipe.status());
  Cache().Add(proto, *recipe);
  return recipe;
}

v1::RecipeDescription RecipeDescriptionToProto(const RecipeDescription& description) {
  v1::RecipeDescription proto;
  proto.set_name(description.name);
  proto.set_summary(description.summary);
  proto.set_is_composed(description.is_composed);
  proto.set_is_codes_only(description.is_codes_only);
  for (const KnobDescription& knob : description.knobs) {
    v1::KnobDescription& knob_proto = *proto.add_knobs();
    knob_proto.set_name(knob.name);
    knob_proto.set_values(knob.values);
    knob_proto.set_default_value(knob.default_value);
    knob_proto.set_summary(knob.summary);
  }
  return proto;
}

v1::ArithmeticDescription ArithmeticDescriptionToProto(const ArithmeticDescription& description) {
  v1::ArithmeticDescription proto;
  proto.set_name(description.name);
  proto.set_summary(description.summary);
  proto.set_source(description.source);
  proto.set_evidence(description.evidence);
  proto.set_is_hardware(description.is_hardware);
  return proto;
}

v1::Environment EnvironmentToProto(std::span<const DeviceDescription> devices) {
  const BuildDescription build = DescribeBuild();
  v1::Environment proto;
  proto.set_version(build.version);
  proto.set_build(absl::StrCat(build.revision, ", ", build.compiler));
  proto.set_cuda(build.cuda);
  for (const DeviceDescription& device : devices) {
    if (!device.cuda.empty()) proto.set_cuda(device.cuda);
    if (!device.cublaslt.empty()) proto.set_cublaslt(device.cublaslt);
    if (!device.nccl.empty()) proto.set_nccl(device.nccl);
    v1::DeviceDescription& device_proto = *proto.add_devices();
    device_proto.set_id(device.id);
    device_proto.set_name(device.name);
    device_proto.set_architecture(device.architecture);
    device_proto.set_driver(device.driver);
    device_proto.set_multiprocessors(device.multiprocessors);
    device_proto.set_sm_clock_mhz(device.sm_clock_mhz);
    device_proto.set_memory_clock_mhz(device.memory_clock_mhz);
    device_proto.set_memory_bytes(device.memory_bytes);
    // The clock of Engine::StartStopwatch: a CUDA device's stopwatch is a pair of events.
    device_proto.set_stage_clock(device.cuda.empty() ? "steady clock" : "CUDA events");
  }
  return proto;
}

std::optional<Recipe> RecipeCache::Find(const v1::Recipe& proto) const {
  const std::lock_guard lock(mutex_);
  const auto it = recipes_.find(KeyOf(proto));
  return it == recipes_.end() ? std::nullopt : std::optional(it->second);
}

void RecipeCache::Add(const v1::Recipe& proto, const Recipe& recipe) noexcept {
  if (proto.ByteSizeLong() > kRecipeBytesMax) return;
  const std::lock_guard lock(mutex_);
  if (recipes_.size() == kRecipesMax) recipes_.clear();
  recipes_.emplace(KeyOf(proto), recipe);
}

RecipeCache::Key RecipeCache::KeyOf(const v1::Recipe& proto) {
  Key key = {proto.name(), {proto.knobs().begin(), proto.knobs().end()}};
  std::sort(key.second.begin(), key.second.end());
  return key;
}

}  // namespace quantgate
