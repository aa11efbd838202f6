// JSON of every report has what schema_version 1 had of it; what its rules are. The reports were
// recorded at commit e5cd2f5, on which this JSON was made, from runs of small generated tensors
// (mlp, ranks, delayed: run and compare), and written by hand where every field was to be there.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "quantgate/v1/sessions_service.pb.h"
#include "quantgate/v1/tensors_service.pb.h"
#include "server/report/element_types.h"
#include "server/report/report_json.h"
#include "tests/server/report/recorded_values.h"
#include "tests/server/report/sample_report.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::ordered_json;
using testing::IsEmpty;

template <typename Message>
Message Recorded(const std::string& name) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(RecordedText(name), &message)) << name;
  return message;
}

void ExpectAllOf(const std::string& name, const Json& now, int count_min) {
  const Json recorded = Json::parse(RecordedText(name));
  EXPECT_GE(CountValues(recorded), count_min);
  EXPECT_THAT(LostValues(recorded, now), IsEmpty()) << name;
}

TEST(ReportValuesTest, RunsLoseNone) {
  for (const char* name : {"mlp", "ranks", "delayed"}) {
    const Json recorded = Json::parse(RecordedText(std::string(name) + ".json"));
    ReportDocument document;
    document.kind = recorded["kind"];
    document.title = recorded["title"];
    document.command = recorded["command"];
    document.has_run = true;
    document.run = Recorded<v1::RunReport>(std::string(name) + ".txtpb");
    // As of a server that does not say the dtypes of elements.
    for (v1::VariantReport& variant : *document.run.mutable_variants()) SetElementTypes(variant);
    document.verdict = document.run.verdict();
    ExpectAllOf(std::string(name) + ".json", JsonOf(document), 1000);
  }
}

TEST(ReportValuesTest, DocumentsLoseNone) {
  ExpectAllOf("sample_compare.json", JsonOf(SampleCompare()), 500);
  ExpectAllOf("sample_diff.json", JsonOf(SampleDiff()), 60);
}

TEST(ReportValuesTest, StepsAndTensorsLoseNone) {
  Json step = JsonHead("session_step");
  step.update(JsonOf(Recorded<v1::SessionStepResponse>("session_step.txtpb")));
  ExpectAllOf("session_step.json", step, 80);
  ExpectAllOf("tensor.json", JsonOf(Recorded<v1::TensorRecord>("tensor.txtpb")), 15);
}

TEST(ReportValuesTest, ALostValueIsSeen) {
  Json json = JsonOf(SampleDiff());
  json["comparisons"][0]["error"]["cosine"] = 0.5;
  json["comparisons"][0]["parity"].erase("worst_ulp");
  EXPECT_EQ(LostValues(Json::parse(RecordedText("sample_diff.json")), json).size(), 2u);
}

TEST(ReportJsonTest, BytesOfReturnedTensorsAreLeftOut) {
  const Json step = JsonOf(Recorded<v1::SessionStepResponse>("session_step.txtpb"));
  EXPECT_FALSE(step["outputs"][1].contains("data"));
  EXPECT_EQ(step["outputs"][1]["digest"], nullptr);
}

TEST(ReportJsonTest, FieldsFollowTheRules) {
  v1::Run run;
  run.set_state(v1::RUN_STATE_FAILED);
  run.set_last_sequence(INT64_MAX);
  run.mutable_created()->set_seconds(1);
  run.mutable_created()->set_nanos(500000000);
  const Json json = JsonOf(run);
  EXPECT_EQ(json["state"], "failed");
  EXPECT_EQ(json["last_sequence"], INT64_MAX);
  EXPECT_EQ(json["created"], "1970-01-01T00:00:01.500Z");
  EXPECT_EQ(json["finished"], nullptr);
  EXPECT_EQ(json["report"], nullptr);

  v1::RunSpec spec;
  spec.mutable_step()->mutable_x()->mutable_inline_()->set_data("\x01\xfe");
  (*spec.mutable_step()->mutable_parameters())["w"].mutable_generate()->set_scale(0.1f);
  (*spec.mutable_step()->mutable_parameters())["b"].mutable_stored();
  const Json step = JsonOf(spec)["step"];
  EXPECT_EQ(step["x"], Json({{"inline", {{"type", nullptr}, {"data", "01fe"}}}}));
  EXPECT_EQ(step["grad_output"], nullptr);
  EXPECT_EQ(step["parameters"].begin().key(), "b");
  // 0.1f is 0x3dcccccd; its own value in fp64.
  EXPECT_EQ(step["parameters"]["w"]["generate"]["scale"], 0.10000000149011612);
  EXPECT_EQ(step["parameters"]["w"]["generate"]["scale_bits"], "0x3dcccccd");
  EXPECT_EQ(JsonOf(spec)["requirement"], "none");

  v1::QuantizationRecord record;
  record.set_scale_inv(-0.0f);
  (*record.mutable_scale_codes())[12] = 3;
  (*record.mutable_scale_codes())[-3] = 4;
  EXPECT_EQ(JsonOf(record)["scale_inv_bits"], "0x80000000");
  EXPECT_EQ(JsonOf(record)["amax"], nullptr);
  EXPECT_EQ(JsonOf(record)["amax_bits"], nullptr);
  EXPECT_EQ(JsonOf(record)["scale_codes"],
            Json::parse(R"([{"key": -3, "value": 4}, {"key": 12, "value": 3}])"));
}

TEST(ReportJsonTest, ElementsHaveBitsOfTheirOwnWidth) {
  v1::ElementPair pair;
  pair.set_subject(0.5);
  pair.set_subject_bits(0x30);
  pair.set_reference_bits(0x3f000000);
  pair.set_subject_dtype("f8_e4m3");
  pair.set_reference_dtype("f32");
  EXPECT_EQ(JsonOf(pair)["subject_bits"], "0x30");
  EXPECT_EQ(JsonOf(pair)["reference_bits"], "0x3f000000");
  // What a server says is kept.
  SetElementTypes(pair, "bf16", "bf16");
  EXPECT_EQ(pair.subject_dtype(), "f8_e4m3");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
