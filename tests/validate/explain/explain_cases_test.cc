// Explaining what other libraries' own calls stored (tests/data/libraries): each case is to be
// named as its library's, and none as that of a library whose rule is another.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;

const char* const kFolder = QUANTGATE_SOURCE_DIR "/tests/data/libraries/";

/// Rules of which explain knows nothing yet, with the reason. A rule that begins to be explained
/// must leave this list.
const std::map<std::string, std::string>& NotYet() {
  static const auto& rules = *new std::map<std::string, std::string>{
      {"bitsandbytes_four_bits", "levels of NF4 and FP4 over runs"},
      {"bitsandbytes_int8", "integers"},
      {"compressed_int", "integers"},
      {"gfloat_cast", "no scales"},
      {"gfloat_mx int8", "integers"},
      {"gguf_mxfp4", "scales among the codes"},
      {"gguf_q4_0", "integers, scales among the codes"},
      {"gguf_q4_1", "integers, scales among the codes"},
      {"gguf_q5_0", "integers, scales among the codes"},
      {"gguf_q5_1", "integers, scales among the codes"},
      {"gguf_q8_0", "integers, scales among the codes"},
      {"gguf_tq2_0", "integers, scales among the codes"},
      {"modelopt_int4", "integers"},
      {"modelopt_int8", "integers"},
      {"nf4_of_rounded_quotient", "levels of NF4"},
      {"quanto_eight_bits int8", "integers"},
      {"quanto_few_bits", "integers"},
      {"qwix int4", "integers"},
      {"qwix int8", "integers"},
      {"qwix nf4", "levels of NF4"},
      {"torch_affine", "integers"},
      {"torch_cast", "no scales"},
      {"torchao_int", "integers"},
      {"torchao_tinygemm", "integers"},
      {"transformers_bitnet", "integers"},
  };
  return rules;
}

/// The rule, with the kind of elements where it has some that are not floating-point.
std::string RuleOf(const Json& made_by) {
  const std::string rule = made_by.at("rule"), format = made_by.at("format");
  const bool is_float = absl::StartsWith(format, "e");
  const bool has_kinds = rule == "qwix" || rule == "gfloat_mx" || rule == "quanto_eight_bits";
  return is_float || !has_kinds ? rule : absl::StrCat(rule, " ", format);
}

/// How explain calls the library of a case.
std::string LibraryOf(const Json& made_by) {
  const std::string rule = made_by.at("rule");
  const Json& arguments = made_by.at("arguments");
  if (rule == "torchao_mx") {
    return "torchao " + absl::AsciiStrToUpper(arguments.at("mode").get<std::string>());
  }
  if (rule == "torchao_nvfp4") {
    return arguments.at("levels") == 2 ? "torchao, NVFP4 with a tensor scale" : "torchao, NVFP4";
  }
  if (rule == "torchao_training") {
    return absl::StrCat("torchao, float8 training",
                        arguments.at("power_of_two") ? ", power of two" : "");
  }
  if (rule == "compressed_fp8") {
    return absl::StrCat("compressed-tensors, FP8",
                        arguments.at("with_zero_point") ? " with dynamic scales" : "");
  }
  if (rule == "compressed_mx") {
    const std::string element = arguments.at("element");
    return element == "e4m3"   ? "compressed-tensors, MXFP8"
           : element == "e2m3" ? "compressed-tensors, MXFP6"
                               : "compressed-tensors, MXFP4";
  }
  if (rule == "transformers_fp8") {
    return absl::StrCat("Transformers, fine-grained FP8",
                        arguments.at("power_of_two") ? ", UE8M0" : "");
  }
  if (rule == "torch_number_over_amax") {
    return absl::StrCat("PyTorch, x * (max / amax)", arguments.at("in_f32") ? " in fp32" : "");
  }
  if (rule == "qwix") {
    const std::string kind = arguments.at("kind");
    return kind == "nvfp4" ? "qwix, NVFP4" : absl::StartsWith(kind, "mx") ? "qwix, MX" : "qwix";
  }
  static const auto& names = *new std::map<std::string, std::string>{
      {"compressed_nvfp4", "compressed-tensors, NVFP4"},
      {"gfloat_mx", "gfloat"},
      {"modelopt_fp8", "NVIDIA ModelOpt, FP8"},
      {"modelopt_mxfp4", "NVIDIA ModelOpt, MXFP4"},
      {"modelopt_mxfp8", "NVIDIA ModelOpt, MXFP8"},
      {"modelopt_nvfp4", "NVIDIA ModelOpt, NVFP4"},
      {"quanto_eight_bits", "optimum-quanto, FP8"},
      {"torchao_blockwise", "torchao, blockwise FP8 training"},
      {"torchao_float8", "torchao, Float8Tensor"},
  };
  const auto name = names.find(rule);
  return name == names.end() ? "" : name->second;
}

/// Where bf16 or f16 give the same rounded numbers, libraries may be rivals; where names say that
/// one quantizer is in several libraries, the name of the case's is a part.
bool Names(const std::string& candidate, const std::string& library) {
  return candidate == library || absl::StrContains(candidate, "; " + library) ||
         absl::StartsWith(candidate, library + ";");
}

struct Totals {
  int cases = 0, right = 0, named = 0, not_yet = 0;
};

TEST(ExplainCases, NamesTheRuleOfEveryStoredCase) {
  const TensorFile sources = *ReadKnownSafetensors(absl::StrCat(kFolder, "sources.safetensors"));
  std::map<std::string, Totals> totals;
  std::set<std::string> not_yet_seen;
  for (const char* library : {"bitsandbytes", "compressed_tensors", "gfloat", "gguf", "modelopt",
                              "optimum_quanto", "qwix", "torch", "torchao", "transformers"}) {
    const TensorFile file = *ReadKnownSafetensors(absl::StrCat(kFolder, library, ".safetensors"));
    for (const Json& made_by : Json::parse(file.metadata.at("cases"))) {
      const std::string name = made_by.at("name"), rule = RuleOf(made_by);
      SCOPED_TRACE(absl::StrCat(library, " ", made_by.dump()));
      Totals& total = totals[library];
      ++total.cases;
      ExplainCodesRequest request;
      request.source = *sources.Find(made_by.at("source").get<std::string>());
      if (made_by.at("arguments").contains("rows")) {
        request.source = *request.source.RowRange(0, made_by.at("arguments").at("rows"));
      }
      const auto codes = file.Find(name + ".codes"), scale = file.Find(name + ".scale");
      if (made_by.at("arguments").value("swizzled", false)) {
        request.scale_layout = ScaleLayout::kSwizzled;
      }
      bool is_right = false, is_named = false;
      std::string listed = "not read";
      if (codes.ok() && scale.ok()) {
        request.codes = *codes;
        request.scale_inv = *scale;
        const auto explanation = ExplainCodes(request, {});
        listed = explanation.ok() ? absl::StrJoin(explanation->conclusion, "\n") + "\n"
                                  : explanation.status().ToString();
        const std::string right = LibraryOf(made_by);
        if (explanation.ok()) {
          for (const CodesCandidate& c : explanation->candidates) {
            if (c.is_entire() || &c == &explanation->candidates.front()) {
              absl::StrAppend(&listed, c.code_matches, "/", c.code_count, " ", c.scale_matches, "/",
                              c.scale_count, " ", c.element, " ", c.block, " | ", c.scale_rule,
                              " | ", c.element_rule, " | ", absl::StrJoin(c.libraries, "; "), "\n");
            }
            if (!c.is_entire()) continue;
            for (const std::string& one : c.libraries) {
              is_right |= !right.empty() && Names(one, right);
            }
            if (c.scale_origin.empty()) continue;
            EXPECT_TRUE(Names(c.scale_origin, right)) << listed;
            is_named |= Names(c.scale_origin, right);
          }
        }
      }
      if (NotYet().contains(rule)) {
        ++total.not_yet;
        not_yet_seen.insert(rule);
        EXPECT_FALSE(is_right) << rule << " is explained: take it off the list";
        continue;
      }
      total.right += is_right;
      total.named += is_named;
      EXPECT_TRUE(is_right) << listed;
    }
  }
  EXPECT_EQ(not_yet_seen.size(), NotYet().size());
  Totals all;
  for (const auto& [library, total] : totals) {
    std::cout << library << ": " << total.cases << " cases, " << total.right << " right, of them "
              << total.named << " named alone, " << total.not_yet << " not yet\n";
    all.cases += total.cases;
    all.right += total.right;
    all.named += total.named;
    all.not_yet += total.not_yet;
  }
  std::cout << "all: " << all.cases << " cases, " << all.right << " right, of them " << all.named
            << " named alone, " << all.not_yet << " not yet\n";
  EXPECT_EQ(all.cases, 610);
  EXPECT_GE(all.right, 380);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
