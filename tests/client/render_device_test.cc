// Where something was computed, and by which of cuBLASLt's algorithms: in every rendering.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/algorithm_results.h"
#include "google/protobuf/text_format.h"
#include "server/report/device_text.h"
#include "server/report/render_html.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kLine[] =
    "cuda:0 NVIDIA H200, sm_90, 132 SMs, 1980 MHz as read, driver 580.159.04, CUDA 13.0 (driver "
    "13.0), cuBLASLt 13.1.0, NCCL 2.28.9";
constexpr char kAlgorithm[] = "id=66 tile=20 stages=36 splitk=1";

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

v1::Environment H200() {
  return Parse<v1::Environment>(R"pb(
    version: "0.1.0"
    build: "abc, g++"
    cuda: "13.0 (driver 13.0)"
    cublaslt: "13.1.0"
    nccl: "2.28.9"
    devices {
      id: "cuda:0"
      name: "NVIDIA H200"
      architecture: "sm_90"
      driver: "580.159.04"
      multiprocessors: 132
      sm_clock_mhz: 1980
      memory_clock_mhz: 3201
      memory_bytes: 150754820096
      stage_clock: "CUDA events"
    }
  )pb");
}

/// A variant of two GEMMs on hardware, of which `models` ran on a model instead.
v1::VariantReport Variant(int models) {
  v1::VariantReport variant;
  variant.set_label("fp8_current / none / auto");
  variant.set_is_hardware(models < 2);
  for (int i = 0; i < 2; ++i) {
    v1::GemmLine& gemm = *variant.add_gemms();
    gemm.set_role(i == 0 ? "fprop" : "dgrad");
    gemm.set_text("m=8 n=8 k=16 -> bf16");
    gemm.set_is_hardware(i >= models);
    gemm.set_arithmetic(gemm.is_hardware() ? "cublaslt:fast" : "sm90:fast");
    if (gemm.is_hardware()) gemm.set_algorithm(kAlgorithm);
  }
  return variant;
}

ReportDocument RunOf(int models) {
  ReportDocument document;
  document.kind = "run";
  document.has_run = true;
  *document.run.mutable_environment() = H200();
  *document.run.add_variants() = Variant(models);
  return document;
}

std::string TableOf(const ReportDocument& document) {
  std::ostringstream out;
  PrintReport(document, /*uses_colour=*/false, out);
  return out.str();
}

TEST(DeviceTextTest, SaysWhatIsKnown) {
  const v1::Environment h200 = H200();
  EXPECT_EQ(DeviceText(h200.devices(0), h200), kLine);
  EXPECT_EQ(StageClockText(h200), "stage times by CUDA events");
  const auto cpu = Parse<v1::Environment>(R"(
    cuda: "13.0" cublaslt: "13.1.0"
    devices { id: "cpu" name: "A CPU, 2 threads" architecture: "x86-64 avx512" })");
  EXPECT_EQ(DeviceText(cpu.devices(0), cpu), "cpu A CPU, 2 threads, x86-64 avx512");
  EXPECT_EQ(StageClockText(cpu), "");
}

TEST(DeviceTextTest, SaysWhetherHardwareOrAModelRan) {
  EXPECT_EQ(WhatRanText(Variant(0)), "hardware");
  EXPECT_EQ(WhatRanText(Variant(1)), "hardware and model");
  EXPECT_EQ(WhatRanText(Variant(2)), "model");
}

TEST(RenderDeviceTest, InTables) {
  const std::string table = TableOf(RunOf(1));
  EXPECT_THAT(table, HasSubstr(std::string("\n") + kLine + "\n"));
  EXPECT_THAT(table, HasSubstr("\nstage times by CUDA events\n"));
  EXPECT_THAT(table, HasSubstr("fp8_current / none / auto  (hardware and model)\n"));
  EXPECT_THAT(table, HasSubstr(std::string("    ran: cublaslt:fast, ") + kAlgorithm + "\n"));
  EXPECT_THAT(TableOf(RunOf(2)), Not(HasSubstr("    ran: ")));

  ReportDocument compare = RunOf(0);
  compare.kind = "compare";
  *compare.run.add_variants() = Variant(2);
  *compare.run.add_variants() = Variant(0);
  EXPECT_THAT(TableOf(compare), HasSubstr("\nhardware: #0, #2\nmodel: #1\n"));
}

TEST(RenderDeviceTest, InJson) {
  const Json run = Json::parse(JsonDocument(RunOf(1)))["run"];
  const Json device = run["environment"]["devices"][0];
  EXPECT_EQ(device["multiprocessors"], 132);
  EXPECT_EQ(device["sm_clock_mhz"], 1980);
  EXPECT_EQ(device["memory_clock_mhz"], 3201);
  EXPECT_EQ(device["memory_bytes"], 150754820096);
  EXPECT_EQ(device["stage_clock"], "CUDA events");
  const Json& gemms = run["variants"][0]["gemms"];
  EXPECT_EQ(gemms[0]["is_hardware"], false);
  EXPECT_EQ(gemms[0]["algorithm"], "");
  EXPECT_EQ(gemms[1]["is_hardware"], true);
  EXPECT_EQ(gemms[1]["algorithm"], kAlgorithm);
}

TEST(RenderDeviceTest, InHtml) {
  const std::string html = RenderHtml(RunOf(1));
  EXPECT_THAT(html, HasSubstr(kLine));
  EXPECT_THAT(html, HasSubstr("stage times by CUDA events"));
  EXPECT_THAT(html, HasSubstr("140.4 GiB, 3201 MHz as read"));
  EXPECT_THAT(html, HasSubstr("<span class=\"chip\">hardware and model</span>"));
  EXPECT_THAT(html, HasSubstr(std::string("<span class=\"chip\">cublaslt:fast</span> <code>") +
                              kAlgorithm + "</code>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"chip\">sm90:fast</span>"));
}

v1::GemmResponse Algorithms() {
  return Parse<v1::GemmResponse>(R"(
    d { type { dtype: "bf16" shape: 16 shape: 32 } }
    algorithms { index: 0 description: "id=66 tile=20" arithmetic: "cublaslt:fast" seconds: 1e-5
                 equal_to_first: true model: "sm90:fast" equal_to_model: true }
    algorithms { index: 1 description: "id=66 tile=26" arithmetic: "cublaslt:fast" seconds: 2e-5
                 mismatch_count: 1200 model: "sm90:fast" model_mismatch_count: 3
                 first_difference { coordinate: 5 coordinate: 7 subject: 1.5 reference: 1.5078125
                                    subject_bits: 0x3fc0 reference_bits: 0x3fc1 }
                 first_model_difference { coordinate: 6 coordinate: 8 subject: -2 reference: 2
                                          subject_bits: 0xc000 reference_bits: 0x4000 } }
    algorithms { index: 2 description: "id=62 tile=1" arithmetic: "cublaslt:fast" seconds: 3e-5 })");
}

TEST(AlgorithmResultsTest, TableTellsEqualOnesFromOthers) {
  std::ostringstream out;
  PrintAlgorithms(Algorithms(), /*uses_colour=*/false, out);
  const std::string table = out.str();
  EXPECT_THAT(table, HasSubstr("id=66 tile=26"));
  EXPECT_THAT(table, HasSubstr("1,200"));
  EXPECT_THAT(table,
              HasSubstr("#1 against #0: first (5, 7): 1.5 [0x3fc0] against 1.5078125 [0x3fc1]\n"));
  EXPECT_THAT(table,
              HasSubstr("#1 against sm90:fast: first (6, 8): -2 [0xc000] against 2 [0x4000]\n"));
  // The third differs in nothing but its reported amax.
  EXPECT_THAT(table, HasSubstr("amax"));
  EXPECT_THAT(table, HasSubstr("3 algorithms: 1 with the bits of #0; 1 of 2 that have a model with "
                               "its bits\n"));
}

TEST(AlgorithmResultsTest, JsonHasTheSameKeysForAll) {
  const Json list = Json::parse(JsonOf(Algorithms())["algorithms"].dump());
  ASSERT_EQ(list.size(), 3u);
  for (const Json& one : list) {
    for (const auto& [key, value] : list[0].items()) EXPECT_TRUE(one.contains(key)) << key;
  }
  EXPECT_EQ(list[0]["first_difference"], nullptr);
  EXPECT_EQ(list[1]["equal_to_first"], false);
  EXPECT_EQ(list[1]["mismatch_count"], 1200);
  EXPECT_EQ(list[1]["first_difference"]["coordinate"], Json({5, 7}));
  EXPECT_EQ(list[1]["first_difference"]["subject_bits"], "0x3fc0");
  EXPECT_EQ(list[1]["first_model_difference"]["reference_bits"], "0x4000");
  EXPECT_EQ(list[2]["model"], "");
  EXPECT_EQ(list[2]["equal_to_model"], false);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
