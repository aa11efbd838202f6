#include "client/cli/options/option_names.h"

#include <cctype>
#include <optional>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/status.h"

namespace quantgate {
namespace {

/// Says which option sets a field. Where several set one field, the first that was typed is meant,
/// or else the first of the table.
struct FieldOption {
  std::string_view commands;  ///< Names, separated by spaces.
  /// '*' stands for a key: what comes before the byte behind it. A field of one word is looked for
  /// where a message begins, one with a '_' anywhere: sentences have no such words.
  std::string_view field;
  std::string_view option;  ///< '*' stands for the same key, FILE for the file that was typed.
  /// In place of `option` where that was not typed, and the field has its default. Said beside a
  /// file of fields, too.
  std::string_view untyped = {};
};

constexpr char kLayerCommands[] = "run compare verify";
constexpr char kGemmCommands[] = "gemm explain";
constexpr char kTraceCommand[] = "session-run";
constexpr char kStepCommand[] = "session-step";
constexpr char kDefaultMicrobatch[] = "the default --microbatch";

constexpr FieldOption kFieldOptions[] = {
    {kLayerCommands, "spec.step.x", "--input"},
    {kLayerCommands, "spec.step.grad_output", "--grad-output"},
    {kLayerCommands, "spec.step.parameters[weight]", "--weight"},
    {kLayerCommands, "spec.step.parameters[weight.*]", "--weight"},
    {kLayerCommands, "spec.step.parameters[bias]", "--bias"},
    {kLayerCommands, "spec.step.parameters[bias.*]", "--bias"},
    {kLayerCommands, "spec.step.parameters[gamma]", "--gamma"},
    {kLayerCommands, "spec.step.parameters[beta]", "--beta"},
    {kLayerCommands, "spec.step.parameters[fc1.weight]", "--fc1-weight"},
    {kLayerCommands, "spec.step.parameters[fc1.bias]", "--fc1-bias"},
    {kLayerCommands, "spec.step.parameters[fc2.weight]", "--fc2-weight"},
    {kLayerCommands, "spec.step.parameters[fc2.bias]", "--fc2-bias"},
    {kLayerCommands, "spec.step.parameters[*]", "--param *"},
    {kLayerCommands, "spec.step.parameters", "--param"},
    {kLayerCommands, "spec.step.main_grads[*]", "--main-grad *"},
    {kLayerCommands, "spec.step.main_grads", "--main-grad"},
    {kLayerCommands, "spec.step.delayed_state[*]", "--delayed-state *"},
    {kLayerCommands, "spec.step.delayed_state", "--delayed-state"},
    {kLayerCommands, "spec.step.requires_grad", "--requires-grad"},
    {kLayerCommands, "spec.step.calibrate", "--calibrate"},
    {kLayerCommands, "spec.step.backward_override", "--backward-override"},
    {kLayerCommands, "spec.step.layer.kind", "--layer"},
    {kLayerCommands, "spec.step.layer.name", "--layer-name"},
    {kLayerCommands, "spec.step.layer.norm", "--norm"},
    {kLayerCommands, "spec.step.layer.activation", "--activation"},
    {kLayerCommands, "spec.step.layer.attention.heads", "--heads"},
    {kLayerCommands, "spec.step.layer.attention.groups", "--groups"},
    {kLayerCommands, "spec.step.layer.attention.mask", "--mask"},
    {kLayerCommands, "spec.step.layer.attention.rotary_base", "--rotary-base"},
    {kLayerCommands, "spec.step.layer.attention", "--heads"},
    {kLayerCommands, "spec.step.layer.attention", "--groups"},
    {kLayerCommands, "spec.step.layer.attention", "--mask"},
    {kLayerCommands, "spec.step.layer.attention", "--rotary-base"},
    {kLayerCommands, "spec.step.layer.m_splits", "--m-splits"},
    {kLayerCommands, "spec.step.layer.operations", "--operation"},
    {kLayerCommands, "spec.step.layer.operations[*]", "--operation"},
    {kLayerCommands, "spec.step.layer.return_norm_output", "--return-norm-output"},
    {kLayerCommands, "spec.step.layer.fused is false", "--unfused is given"},
    {kLayerCommands, "spec.step.layer.fused", "--unfused"},
    {kLayerCommands, "spec.step.layer.parallel_mode", "--parallel-mode"},
    {kLayerCommands, "spec.variants", "--recipe"},
    {kLayerCommands, "spec.step.recipe", "--recipe"},
    {kLayerCommands, "spec.variants[*].recipe.name", "--recipe"},
    {kLayerCommands, "spec.variants[*].recipe", "--recipe"},
    {kLayerCommands, "spec.variants[*].backward_override", "--backward-override"},
    {kLayerCommands, "spec.variants[*].arithmetic", "--arithmetic"},
    {kLayerCommands, "spec.variants[*].parallel.tensor_parallel", "--tp"},
    {kLayerCommands, "spec.variants[*].parallel.data_parallel", "--dp"},
    {kLayerCommands, "spec.variants[*].parallel.expert_parallel", "--ep"},
    {kLayerCommands, "spec.variants[*].parallel.sequence_parallel", "--sequence-parallel"},
    {kLayerCommands, "spec.variants[*].parallel.reduction_profile", "--reduction-profile"},
    {kLayerCommands, "spec.variants[*].parallel.backend", "--parallel-backend"},
    {kLayerCommands, "spec.variants[*].parallel.overlap", "--overlap"},
    {kLayerCommands, "spec.variants[*].parallel.amax_groups", "--amax-group"},
    {kLayerCommands, "spec.variants[*].parallel.amax_groups[*]", "--amax-group *"},
    {kLayerCommands, "spec.variants[*].parallel", "--tp"},
    {kLayerCommands, "spec.variants[*].parallel", "--ep"},
    {kLayerCommands, "spec.variants.arithmetic", "--arithmetic"},
    {kLayerCommands, "spec.variants[*]", "--recipe"},
    {kLayerCommands, "variants[*]", "variant *"},
    {kLayerCommands, "tensor_parallel", "--tp"},
    {kLayerCommands, "data_parallel", "--dp"},
    {kLayerCommands, "expert_parallel", "--ep"},
    {kLayerCommands, "sequence_parallel", "--sequence-parallel"},
    {kLayerCommands, "reduction_profile", "--reduction-profile"},
    {kLayerCommands, "spec.reference", "--reference"},
    {kLayerCommands, "spec.requirement", "--require"},
    {kLayerCommands, "spec.seed", "--seed"},
    {kLayerCommands, "spec.error_budget", "--error-budget"},
    {kLayerCommands, "spec.subjects", "--subject"},
    {kLayerCommands, "spec.subjects[*]", "--subject *"},

    {kGemmCommands, "a.tensor", "--a"},
    {kGemmCommands, "a.scale_inv", "--a-scale-inv"},
    {kGemmCommands, "a.scaling is absent: scale_inv", "--a-scaling is absent: --a-scale-inv"},
    {kGemmCommands, "a.scaling", "--a-scaling"},
    {kGemmCommands, "a.amax", "--a-amax"},
    {kGemmCommands, "a.e4m3_max", "--a-e4m3-max"},
    {kGemmCommands, "a.zero_point", "--a-zero-point"},
    {kGemmCommands, "a.group", "--a-group"},
    {kGemmCommands, "a's k", "--a's k"},
    {kGemmCommands, "a", "--a"},
    {kGemmCommands, "b.tensor", "--b"},
    {kGemmCommands, "b.scale_inv", "--b-scale-inv"},
    {kGemmCommands, "b.scaling is absent: scale_inv", "--b-scaling is absent: --b-scale-inv"},
    {kGemmCommands, "b.scaling", "--b-scaling"},
    {kGemmCommands, "b.amax", "--b-amax"},
    {kGemmCommands, "b.e4m3_max", "--b-e4m3-max"},
    {kGemmCommands, "b.zero_point", "--b-zero-point"},
    {kGemmCommands, "b.group", "--b-group"},
    {kGemmCommands, "b's k", "--b's k"},
    {kGemmCommands, "b", "--b"},
    {kGemmCommands, "c is absent: c is given exactly when beta",
     "--c is absent: it is given exactly when --beta"},
    {kGemmCommands, "c", "--c"},
    {kGemmCommands, "alpha", "--alpha"},
    {kGemmCommands, "beta", "--beta"},
    {kGemmCommands, "in_place", "--in-place"},
    {kGemmCommands, "bias", "--bias"},
    {kGemmCommands, "d_scale", "--d-scale"},
    {kGemmCommands, "layout", "--layout"},
    {"gemm", "arithmetic", "--arithmetic"},
    {"gemm", "out_dtype", "--out-dtype"},
    {"gemm", "every_algorithm", "--every-algorithm"},
    {"explain", "d", "--d"},
    {"explain", "source", "--source"},
    {"explain", "codes", "--codes"},
    {"explain", "scale_inv", "--scale-inv"},
    {"explain", "amax", "--amax"},
    {"explain", "zero_point", "--zero-point"},

    {"quantize tensor-stat tensor-get", "tensor", "TENSOR"},
    {"quantize", "recipe.name", "--recipe"},
    {"quantize", "recipe", "--recipe"},
    {"quantize", "role", "--role"},
    {"quantize", "rowwise", "--usage"},
    {"quantize", "columnwise is true", "--usage is columnwise"},
    {"quantize", "columnwise", "--usage"},
    {"quantize", "seed", "--seed"},
    {"quantize", "scale", "--scale"},
    {"quantize", "amax_history", "--amax-history"},
    {"quantize", "scale_layout", "--scale-layout"},
    {"dequantize", "tensors[*]", "FILE:*"},
    {"dequantize", "tensors", "FILE"},
    {"dequantize", "usage", "--usage"},
    {"dequantize", "out_dtype", "--out-dtype"},
    {"dequantize", "description.rowwise", "--format-hint"},
    {"dequantize", "description.columnwise", "--format-hint"},
    {"dequantize", "description.scale_layout", "--scale-layout"},
    {"update-usage", "tensor.tensors[*]", "FILE:*"},
    {"update-usage", "tensor.tensors", "FILE"},
    {"update-usage", "tensor", "FILE"},
    {"update-usage", "usages is rowwise", "--rowwise is true"},
    {"update-usage", "usages is columnwise", "--columnwise is true"},
    {"update-usage", "usages is none", "--rowwise and --columnwise are false"},
    {"diff", "subject", "A"},
    {"diff", "reference", "B"},
    {"verify", "subject", "--subject"},
    {"tensor-gen", "spec", "TENSOR"},
    {"tensor-gen tensor-put", "name", "--name"},
    {"tensor-get tensor-stat", "digest", "TENSOR"},

    {"session-open", "lease_seconds", "--lease"},
    {"session-restore", "lease_seconds", "--lease"},
    {"session-restore", "checkpoint", "CHECKPOINT"},
    {"session-get", "tensor", "--tensor"},
    {"session-step session-get session-checkpoint session-close", "session_id", "ID"},
    {kStepCommand, "forward.x", "--x"},
    {kStepCommand, "forward.layers[*].x", "--x at layer *"},
    {kStepCommand, "optimize.gradients is none", "optimize: no gradient"},
    {kStepCommand, "optimize.gradients is deferred", "optimize: gradients are deferred"},
    {kStepCommand, "optimize.optimizer is none", "optimize: no optimizer"},
    {kStepCommand, "wgrad.gradients is not deferred", "wgrad: nothing is deferred"},
    {kStepCommand, "defer_wgrad", "--defer-wgrad"},
    {kStepCommand, "forward.microbatch", "--microbatch", kDefaultMicrobatch},
    {kStepCommand, "forward.is_first", "--is-first"},
    {kStepCommand, "forward.calibrate", "--calibrate"},
    {kStepCommand, "forward.defer_wgrad", "--defer-wgrad"},
    {kStepCommand, "forward.requires_grad", "--requires-grad"},
    {kStepCommand, "forward.overlap", "--overlap"},
    {kStepCommand, "forward.layers[*].parallel.overlap", "--overlap: layer *",
     "the session's overlap: layer *"},
    {kStepCommand, "forward.layers[*].parallel.reduction_profile",
     "the session's reduction_profile: layer *"},
    {kStepCommand, "forward.amax_groups", "--amax-group"},
    {kStepCommand, "forward.amax_groups[*]", "--amax-group *"},
    {kStepCommand, "forward.evaluate is true", "KIND is evaluate"},
    {kStepCommand, "forward.recompute is true", "KIND is recompute"},
    {kStepCommand, "backward.microbatch", "--microbatch", kDefaultMicrobatch},
    {kStepCommand, "backward.grad_output", "--grad-output"},
    {kStepCommand, "offload.microbatch", "--microbatch", kDefaultMicrobatch},
    {kStepCommand, "reload.microbatch", "--microbatch", kDefaultMicrobatch},
    {kStepCommand, "optimize.learning_rate", "--learning-rate"},
    {kStepCommand, "optimize.layers[*].learning_rate", "--learning-rate: layer *"},
    {kStepCommand, "change_recipe.recipe.name", "--recipe"},
    {kStepCommand, "change_recipe.recipe", "--recipe"},
    {kStepCommand, "change_recipe", "--recipe"},
    {kStepCommand, "against.recipe.name", "--against"},
    {kStepCommand, "against.recipe", "--against"},
    {kStepCommand, "against", "--against"},

    {kTraceCommand, "trace.variants[*].recipe.name", "--recipe"},
    {kTraceCommand, "trace.variants[*].recipe", "--recipe"},
    {kTraceCommand, "trace.variants[*].backward_override", "--backward-override"},
    {kTraceCommand, "trace.variants[*].arithmetic", "--arithmetic"},
    {kTraceCommand, "trace.variants[*].parallel.tensor_parallel", "--tp"},
    {kTraceCommand, "trace.variants[*].parallel.data_parallel", "--dp"},
    {kTraceCommand, "trace.variants[*].parallel.expert_parallel", "--ep"},
    {kTraceCommand, "trace.variants[*].parallel.sequence_parallel", "--sequence-parallel"},
    {kTraceCommand, "trace.variants[*].parallel.reduction_profile", "--reduction-profile"},
    {kTraceCommand, "trace.variants[*].parallel.backend", "--parallel-backend"},
    {kTraceCommand, "trace.variants[*].parallel.overlap", "--overlap"},
    {kTraceCommand, "trace.variants[*].parallel.amax_groups", "--amax-group"},
    {kTraceCommand, "trace.variants[*].parallel.amax_groups[*]", "--amax-group *"},
    {kTraceCommand, "trace.variants[*].parallel.fully_sharded", "--fsdp"},
    {kTraceCommand, "trace.variants[*].parallel.distributed_optimizer", "--distributed-optimizer"},
    {kTraceCommand, "trace.variants[*].parallel.reshard_after_forward", "--no-reshard"},
    {kTraceCommand, "trace.variants.arithmetic", "--arithmetic"},
    {kTraceCommand, "trace.variants", "--recipe"},
    {kTraceCommand, "trace.variants is absent", "--recipe",
     "--recipe is absent, and so is trace.variants"},
    {kTraceCommand, "trace.reference", "--reference"},
    {kTraceCommand, "requirement", "--require"},

    {"scenario-run", "parallel_backend", "--parallel-backend"},
    {"scenario-run", "names", "NAME"},
};

/// The positional that tables of fields name as a place in it; people know the file's own name.
constexpr std::string_view kFile = "FILE";

/// Options whose value is a file that says fields by their paths.
constexpr const char* kSpecFiles[] = {"--spec", "SPEC"};

bool IsWordByte(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// "tensor-stat" of `quantgate tensor stat`.
std::string CommandPath(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  const bool is_in_group = parent != nullptr && parent->get_parent() != nullptr;
  return is_in_group ? absl::StrCat(parent->get_name(), "-", command.get_name())
                     : command.get_name();
}

struct Match {
  size_t length = 0;
  std::string_view key;  ///< What '*' stands for.
};

/// A field at the start of `text`; nothing: it is not there.
std::optional<Match> MatchField(std::string_view field, std::string_view text) {
  Match match;
  size_t& at = match.length;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '*') {
      // "weight.*" ends where its bracket does, a key at the end of a field with the text.
      const size_t end = i + 1 < field.size() ? text.find(field[i + 1], at) : text.size();
      if (end == std::string_view::npos) return std::nullopt;
      match.key = text.substr(at, end - at);
      if (!match.key.empty() && match.key.front() == '"') match.key.remove_prefix(1);
      if (!match.key.empty() && match.key.back() == '"') match.key.remove_suffix(1);
      at = end;
      continue;
    }
    // Keys of maps are quoted in some messages.
    if (i > 0 && at < text.size() && text[at] == '"') ++at;
    if (at >= text.size() || text[at] != field[i]) return std::nullopt;
    ++at;
  }
  if (at < text.size() && IsWordByte(text[at])) return std::nullopt;
  return match;
}

/// How a message goes on behind the field that it begins with.
bool FollowsField(std::string_view text) {
  if (text.empty()) return true;
  for (const std::string_view next : {" is ", ": ", " names ", ".", "["}) {
    if (text.substr(0, next.size()) == next) return true;
  }
  return false;
}

/// Rules name fields of the layer as the spec does.
constexpr std::string_view kStepPath = "step.";
constexpr std::string_view kSpecPath = "spec.";

struct FoundOption {
  std::string text;  ///< The option, with its key.
  size_t length = 0;
  bool is_typed = false;
  bool is_default = false;  ///< The text is FieldOption::untyped.
};

class Renaming {
 public:
  explicit Renaming(const CLI::App& command) : command_(command), path_(CommandPath(command)) {
    for (const char* file : kSpecFiles) has_spec_ = has_spec_ || IsTyped(file);
  }

  /// `begins_with_field`: as messages do.
  std::string Apply(std::string_view text, bool begins_with_field) const;

 private:
  bool IsTyped(std::string_view option) const {
    const CLI::Option* found = command_.get_option_no_throw(std::string(option));
    return found != nullptr && found->count() > 0;
  }
  /// The option that sets the longest field at the start of `text`; of length 0: the text stays.
  FoundOption Find(std::string_view text, bool is_at_start) const;

  const CLI::App& command_;
  const std::string path_;
  bool has_spec_ = false;
};

FoundOption Renaming::Find(std::string_view text, bool is_at_start) const {
  FoundOption found;
  for (const FieldOption& one : kFieldOptions) {
    // A field of one word is a word like others, except where a message begins with it.
    const bool is_word = one.field.find_first_of(".[ _") == std::string_view::npos;
    if (is_word && !is_at_start) continue;
    const std::string commands = absl::StrCat(" ", std::string(one.commands), " ");
    if (commands.find(absl::StrCat(" ", path_, " ")) == std::string::npos) continue;
    const std::optional<Match> match = MatchField(one.field, text);
    if (!match || match->length < found.length) continue;
    if (is_word && !FollowsField(text.substr(match->length))) continue;
    const bool is_typed = IsTyped(one.option.substr(0, one.option.find_first_of(" :")));
    if (match->length == found.length && (found.is_typed || !is_typed)) continue;
    const bool is_default = !is_typed && !one.untyped.empty();
    found = {std::string(is_default ? one.untyped : one.option), match->length, is_typed,
             is_default};
    if (const size_t star = found.text.find('*'); star != std::string::npos) {
      found.text.replace(star, 1, std::string(match->key));
    }
  }
  if (found.is_typed && found.text.starts_with(kFile)) {
    const std::string file = command_.get_option(std::string(kFile))->results().front();
    found.text.replace(0, kFile.size(), file);
  }
  if (has_spec_ && !found.is_typed && !found.is_default) return {};
  return found;
}

/// What is left of a field's path behind its option, without the words of the wire.
std::string_view Remainder(std::string_view text) {
  size_t end = 0;
  while (end < text.size() &&
         (IsWordByte(text[end]) || text[end] == '[' ||
          (text[end] == '.' && end + 1 < text.size() && IsWordByte(text[end + 1])))) {
    if (text[end] == '[') {
      end = text.find(']', end);
      if (end == std::string_view::npos) return {};
    }
    ++end;
  }
  return text.substr(0, end);
}

std::string Readable(std::string_view remainder) {
  absl::string_view text(remainder.data(), remainder.size());
  absl::ConsumePrefix(&text, ".");
  for (const char* wire : {"quantized", "generate", "stored", "inline", "type"}) {
    if (text == wire) return "";
    absl::ConsumePrefix(&text, absl::StrCat(wire, "."));
  }
  return std::string(text);
}

std::string Renaming::Apply(std::string_view text, bool begins_with_field) const {
  std::string renamed;
  for (size_t at = 0; at < text.size();) {
    const bool begins_word =
        at == 0 || (!IsWordByte(text[at - 1]) && text[at - 1] != '.' && text[at - 1] != '[' &&
                    text[at - 1] != '"' && text[at - 1] != '-' && text[at - 1] != '/' &&
                    text[at - 1] != ':' && text[at - 1] != '=');
    FoundOption found;
    if (begins_word) found = Find(text.substr(at), begins_with_field && at == 0);
    if (begins_word && found.length == 0 && text.substr(at).starts_with(kStepPath)) {
      const std::string path = absl::StrCat(std::string(kSpecPath), std::string(text.substr(at)));
      found = Find(path, /*is_at_start=*/false);
      if (found.length > 0) found.length -= kSpecPath.size();
    }
    if (found.length == 0) {
      renamed += text[at++];
      continue;
    }
    const std::string_view remainder = Remainder(text.substr(at + found.length));
    const std::string part = Readable(remainder);
    absl::StrAppend(&renamed, found.text, part.empty() || part[0] == '[' ? "" : ": ", part);
    at += found.length + remainder.size();
  }
  return renamed;
}

}  // namespace

const CLI::App& ChosenCommand(const CLI::App& root) {
  const CLI::App* command = &root;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

absl::Status NameOptions(const absl::Status& status, const CLI::App& command) {
  if (status.ok()) return status;
  const Renaming renaming(command);
  const std::string message(status.message());
  absl::Status named(status.code(), renaming.Apply(message, /*begins_with_field=*/true));
  std::optional<v1::ErrorDetail> detail = ErrorDetailOf(status);
  if (!detail.has_value()) return named;
  // A part of the detail that the message contained is dropped where the message now says it
  // otherwise.
  const auto rename = [&](std::string& text, bool begins_with_field) {
    const bool is_said = absl::StrContains(message, text);
    text = renaming.Apply(text, begins_with_field);
    if (is_said && !absl::StrContains(named.message(), text)) text.clear();
  };
  rename(*detail->mutable_field(), /*begins_with_field=*/true);
  rename(*detail->mutable_value(), /*begins_with_field=*/false);
  rename(*detail->mutable_rule(), /*begins_with_field=*/false);
  SetErrorDetail(*detail, named);
  return named;
}

}  // namespace quantgate
