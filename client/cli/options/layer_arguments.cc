#include "client/cli/options/layer_arguments.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/options/json_file.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

using google::protobuf::FieldDescriptor;

/// What a message to the server may hold.
constexpr size_t kSpecBytesMax = 4 << 20;

absl::Status RefuseOption(const char* option, const std::string& text, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": \"", text, "\": ", rule));
}

/// An option's value: words between commas, each a value or KEY=VALUE.
class ArgumentReader {
 public:
  ArgumentReader(const char* option, const std::string& text)
      : option_(option), text_(text), parts_(absl::StrSplit(text, ',')) {}

  absl::Status Fail(const std::string& rule) const { return RefuseOption(option_, text_, rule); }

  /// The next part as it stands; empty: none is left.
  std::string TakeWord() { return at_ < parts_.size() ? parts_[at_++] : std::string(); }

  /// Hands every part that is left to `take` as key and value; false: there is no such key. Refuses
  /// a key that is given twice.
  absl::Status ForEachSetting(
      const std::function<absl::StatusOr<bool>(const std::string& key, const std::string& value)>&
          take,
      const char* known) {
    std::set<std::string> keys;
    for (; at_ < parts_.size(); ++at_) {
      const std::string& part = parts_[at_];
      const size_t equals = part.find('=');
      const std::string key = part.substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
      QG_ASSIGN_OR_RETURN(const bool is_known, take(key, value));
      if (!is_known) return Fail(absl::StrCat("\"", part, "\" is none of ", known));
      if (!keys.insert(key).second) return Fail(absl::StrCat("\"", key, "\" is given twice"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<float> Number(const std::string& value) const {
    float number = 0;
    if (absl::SimpleAtof(value, &number)) return number;
    return Fail(absl::StrCat("\"", value, "\" is no number"));
  }

  absl::StatusOr<int> Count(const std::string& value) const {
    int count = 0;
    if (absl::SimpleAtoi(value, &count) && count > 0) return count;
    return Fail(absl::StrCat("\"", value, "\" is no number from 1 on"));
  }

  /// A flag may stand alone.
  absl::StatusOr<bool> Flag(const std::string& value) const {
    if (value.empty() || value == "true") return true;
    if (value == "false") return false;
    return Fail(absl::StrCat("\"", value, "\" is neither true nor false"));
  }

 private:
  const char* const option_;
  const std::string text_;
  const std::vector<std::string> parts_;
  size_t at_ = 0;
};

absl::StatusOr<v1::Norm> NormFrom(ArgumentReader& reader) {
  v1::Norm norm;
  norm.set_kind(reader.TakeWord());
  QG_RETURN_IF_ERROR(reader.ForEachSetting(
      [&](const std::string& key, const std::string& value) -> absl::StatusOr<bool> {
        if (key == "eps" || key == "epsilon") {
          QG_ASSIGN_OR_RETURN(const float epsilon, reader.Number(value));
          norm.set_epsilon(epsilon);
          return true;
        }
        if (key != "zero_centered" && key != "zero_centered_gamma") return false;
        QG_ASSIGN_OR_RETURN(const bool is_zero_centered, reader.Flag(value));
        norm.set_zero_centered_gamma(is_zero_centered);
        return true;
      },
      "eps=NUMBER, zero_centered"));
  return norm;
}

absl::StatusOr<v1::Activation> ActivationFrom(ArgumentReader& reader) {
  v1::Activation activation;
  activation.set_kind(reader.TakeWord());
  QG_RETURN_IF_ERROR(reader.ForEachSetting(
      [&](const std::string& key, const std::string& value) -> absl::StatusOr<bool> {
        if (key == "variant") {
          activation.set_variant(value);
          return true;
        }
        if (key != "limit" && key != "alpha" && key != "offset") return false;
        QG_ASSIGN_OR_RETURN(const float number, reader.Number(value));
        if (key == "limit") activation.set_limit(number);
        if (key == "alpha") activation.set_alpha(number);
        if (key == "offset") activation.set_offset(number);
        return true;
      },
      "limit=NUMBER, alpha=NUMBER, offset=NUMBER, variant=NAME"));
  return activation;
}

absl::Status QuantizeFrom(ArgumentReader& reader, v1::Operation& operation) {
  return reader.ForEachSetting(
      [&](const std::string& key, const std::string& value) -> absl::StatusOr<bool> {
        if (key != "forward" && key != "backward") return false;
        QG_ASSIGN_OR_RETURN(const bool is_on, reader.Flag(value));
        if (key == "forward") operation.set_quantize_forward(is_on);
        if (key == "backward") operation.set_quantize_backward(is_on);
        return true;
      },
      "forward=BOOL, backward=BOOL");
}

/// The settings of an operation, behind its kind.
absl::Status SettingsFrom(ArgumentReader& reader, v1::Operation& operation) {
  const std::string& kind = operation.kind();
  if (kind == "norm") {
    QG_ASSIGN_OR_RETURN(*operation.mutable_norm(), NormFrom(reader));
  } else if (kind == "activation") {
    QG_ASSIGN_OR_RETURN(*operation.mutable_activation(), ActivationFrom(reader));
  } else if (kind == "quantize") {
    QG_RETURN_IF_ERROR(QuantizeFrom(reader, operation));
  } else if (kind == "basic_linear") {
    const std::string mode = reader.TakeWord();
    if (!mode.empty() && mode != "column" && mode != "row") {
      return reader.Fail(absl::StrCat("\"", mode,
                                      "\" says nothing to basic_linear; column and row "
                                      "say how ranks divide its weight"));
    }
    operation.set_parallel_mode(mode);
  } else if (kind == "add") {
    operation.set_addend(reader.TakeWord());
  } else if (kind == "scale") {
    QG_ASSIGN_OR_RETURN(const float factor, reader.Number(reader.TakeWord()));
    operation.set_factor(factor);
  }
  if (const std::string rest = reader.TakeWord(); !rest.empty()) {
    return reader.Fail(absl::StrCat("\"", rest, "\" says nothing to ", kind));
  }
  return absl::OkStatus();
}

/// The first error, with its line.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status ParseSpec(const char* option, const std::string& name, const std::string& text,
                       bool is_json, google::protobuf::Message& spec) {
  const std::string& kind = spec.GetDescriptor()->name();
  if (is_json) {
    const absl::Status status = ParseJsonMessage(text, spec);
    if (status.ok()) return status;
    return RefuseOption(option, name,
                        absl::StrCat("no ", kind, " as JSON: ", std::string(status.message())));
  }
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(32);
  if (parser.ParseFromString(text, &spec)) return absl::OkStatus();
  return RefuseOption(option, name, absl::StrCat("no ", kind, " as protobuf text: ", error.text()));
}

}  // namespace

absl::StatusOr<v1::Norm> ParseNormArgument(const std::string& text) {
  ArgumentReader reader("--norm", text);
  return NormFrom(reader);
}

absl::StatusOr<v1::Activation> ParseActivationArgument(const std::string& text) {
  ArgumentReader reader("--activation", text);
  return ActivationFrom(reader);
}

absl::StatusOr<v1::Operation> ParseOperationArgument(const std::string& text) {
  v1::Operation operation;
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || text.find(',') < equals) {
    return RefuseOption("--operation", text, "write NAME=KIND, as in fc1=basic_linear");
  }
  operation.set_name(text.substr(0, equals));
  ArgumentReader reader("--operation", text.substr(equals + 1));
  operation.set_kind(reader.TakeWord());
  QG_RETURN_IF_ERROR(SettingsFrom(reader, operation));
  return operation;
}

absl::StatusOr<std::optional<v1::Overlap>> ParseOverlapArgument(const std::string& text) {
  if (text.empty() || text == "none") return std::nullopt;
  v1::Overlap overlap;
  if (text == "default") return overlap;
  ArgumentReader reader("--overlap", text);
  const auto take = [&](const std::string& key, const std::string& value) -> absl::StatusOr<bool> {
    const FieldDescriptor* const field = v1::Overlap::descriptor()->FindFieldByName(key);
    if (field == nullptr) return false;
    const auto* const reflection = v1::Overlap::GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      QG_ASSIGN_OR_RETURN(const bool is_on, reader.Flag(value));
      reflection->SetBool(&overlap, field, is_on);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      QG_ASSIGN_OR_RETURN(const int count, reader.Count(value));
      reflection->SetInt32(&overlap, field, count);
    } else {
      if (value.empty()) return reader.Fail(absl::StrCat("\"", key, "\" has no method"));
      reflection->SetString(&overlap, field, value);
    }
    return true;
  };
  QG_RETURN_IF_ERROR(reader.ForEachSetting(
      take,
      "column_fprop, column_dgrad, column_wgrad, row_fprop, row_dgrad, row_wgrad=METHOD, "
      "aggregate, pieces=N, splits=N"));
  return overlap;
}

v1::Overlap NoOverlap() {
  v1::Overlap overlap;
  const google::protobuf::Descriptor* const descriptor = v1::Overlap::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* const field = descriptor->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
    v1::Overlap::GetReflection()->SetString(&overlap, field, "none");
  }
  return overlap;
}

std::string OverlapArgument(const v1::Overlap& overlap) {
  std::vector<std::string> parts;
  const auto* const reflection = v1::Overlap::GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(overlap, &fields);
  for (const FieldDescriptor* const field : fields) {
    const std::string& key = field->name();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      parts.push_back(key);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      parts.push_back(absl::StrCat(key, "=", reflection->GetInt32(overlap, field)));
    } else {
      parts.push_back(absl::StrCat(key, "=", reflection->GetString(overlap, field)));
    }
  }
  return parts.empty() ? "default" : absl::StrJoin(parts, ",");
}

absl::StatusOr<std::vector<int64_t>> ParseSplitsArgument(const std::string& text) {
  std::vector<int64_t> splits;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int64_t rows = 0;
    if (!absl::SimpleAtoi(part, &rows)) {
      return RefuseOption("--m-splits", text,
                          absl::StrCat("\"", part, "\" is no number of rows; write 128,0,64"));
    }
    splits.push_back(rows);
  }
  return splits;
}

absl::Status ParseAmaxGroupArguments(const std::vector<std::string>& arguments,
                                     google::protobuf::Map<std::string, std::string>& groups) {
  for (const std::string& argument : arguments) {
    const size_t sign = argument.find('=');
    if (sign == std::string::npos || sign == 0 || sign + 1 == argument.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--amax-group: ", argument, "; it is ROLE=GROUP, such as input=world"));
    }
    const std::string role = argument.substr(0, sign);
    if (groups.emplace(role, argument.substr(sign + 1)).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--amax-group: ", argument, "; ", role, " has a group already"));
  }
  return absl::OkStatus();
}

std::string AmaxGroupsText(const google::protobuf::Map<std::string, std::string>& groups) {
  std::string text;
  for (const char* role : {"input", "weight", "grad_output"}) {
    const auto found = groups.find(role);
    if (found == groups.end() || found->second.empty() || found->second == "default") continue;
    absl::StrAppend(&text, text.empty() ? "" : ",", role, "=", found->second);
  }
  return text;
}

absl::StatusOr<v1::RequiresGrad> ParseRequiresGradArgument(const std::string& text) {
  v1::RequiresGrad requires_grad;
  if (text == "none") return requires_grad;
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (name == "x") {
      requires_grad.set_x(true);
    } else if (name == "w" || name == "weight") {
      requires_grad.set_weight(true);
    } else if (name == "b" || name == "bias") {
      requires_grad.set_bias(true);
    } else if (name == "n" || name == "norm") {
      requires_grad.set_norm(true);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--requires-grad: \"", name,
                       "\" is none of x, w or weight, b or bias, n or norm (or none alone)"));
    }
  }
  return requires_grad;
}

std::optional<NamedArgument> SplitNamedArgument(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) return std::nullopt;
  // gen:normal,seed=1 and FILE.safetensors:a=b have a colon first, paths a slash.
  const std::string_view name = text.substr(0, equals);
  if (name.find_first_of(":/,@") != std::string_view::npos) return std::nullopt;
  return NamedArgument{std::string(name), std::string(text.substr(equals + 1))};
}

absl::Status ReadSpecMessage(const char* option, const std::string& text,
                             google::protobuf::Message& spec) {
  if (absl::StartsWith(text, "{")) return ParseSpec(option, "{...}", text, true, spec);
  std::ifstream file(text, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(option, ": ", text, ": ", std::strerror(errno)));
  }
  std::string content(kSpecBytesMax + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (file.bad()) return RefuseOption(option, text, "cannot be read; is it a file?");
  content.resize(static_cast<size_t>(file.gcount()));
  if (content.size() > kSpecBytesMax) return RefuseOption(option, text, "longer than 4 MiB");
  return ParseSpec(option, text, content, absl::EndsWith(text, ".json"), spec);
}

absl::StatusOr<v1::RunSpec> ReadRunSpec(const std::string& text) {
  v1::RunSpec spec;
  QG_RETURN_IF_ERROR(ReadSpecMessage("--spec", text, spec));
  return spec;
}

}  // namespace quantgate
