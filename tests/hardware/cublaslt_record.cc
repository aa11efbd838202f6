// Records what cuBLASLt computes on the device at hand, as golden files for
// tests/gemm/golden_gemm_test.cc:
//   cublaslt_record OUTPUT_FOLDER
// The first algorithm's output of each case is recorded; outputs of others that differ go to
// variants.safetensors with the algorithm's configuration. Split-K is off but where a case forces
// it. other_kernels.safetensors holds what no one rule predicts
// (README.md) and is not kept among the goldens.
#include <cstdio>
#include <ctime>
#include <functional>
#include <tuple>

#include "tests/hardware/golden_recorder.h"

namespace quantgate::hardware {
namespace {

using testing::Pattern;

/// A pattern per operand, and K.
struct Line {
  Pattern a, b;
  int64_t k;
};

std::vector<Line> LinesOf(const OperandTypes& types) {
  using P = Pattern;
  if (types.is_fp8()) {
    return {{P::kCodes, P::kCodes, 16},          {P::kCodes, P::kCodes, 144},
            {P::kModel, P::kModel, 128},         {P::kModel, P::kModel, 272},
            {P::kCodes, P::kModel, 528},         {P::kWide, P::kWide, 48},
            {P::kMaximal, P::kMaximal, 32},      {P::kMaximal, P::kMaximal, 64},
            {P::kMaxFinite, P::kMaxFinite, 144}, {P::kSpecials, P::kSpecials, 48},
            {P::kSubnormal, P::kSubnormal, 48},  {P::kZeros, P::kCodes, 16},
            {P::kSparse, P::kSparse, 272},       {P::kCancel, P::kCancel, 144}};
  }
  // 16-bit types take K in steps of 8, which is no multiple of their chunk of 16; tf32 has one rule
  // for whole chunks only.
  const int64_t c = types.chunk, q = 8;
  std::vector<Line> lines = {{P::kWide, P::kWide, q},
                             {P::kWide, P::kWide, c},
                             {P::kWide, P::kWide, 4 * c + q},
                             {P::kCodes, P::kCodes, c + q},
                             {P::kModel, P::kModel, 8 * c + q},
                             {P::kMaximal, P::kMaximal, c},
                             {P::kMaximal, P::kMaximal, 2 * c},
                             {P::kMaxFinite, P::kMaxFinite, c + q},
                             {P::kSpecials, P::kSpecials, 2 * c + q},
                             {P::kSubnormal, P::kWide, 2 * c + q},
                             {P::kZeros, P::kWide, c},
                             {P::kSparse, P::kSparse, 4 * c + q},
                             {P::kCancel, P::kCancel, 4 * c + q}};
  if (types.a != "f16") {  // Exponents that binary16 has not.
    lines.push_back({P::kTiny, P::kTiny, 2 * c + q});
    lines.push_back({P::kHuge, P::kHuge, 2 * c + q});
  }
  return lines;
}

/// Outputs narrower than f32, where a pattern has something to show there.
std::vector<std::string> NarrowOutputs(const OperandTypes& types, const Line& line, bool split) {
  const bool shows = line.a == Pattern::kModel || line.a == Pattern::kSpecials ||
                     line.a == Pattern::kMaxFinite || line.a == Pattern::kSubnormal ||
                     line.a == Pattern::kTiny || line.k == 144;
  if (!shows || types.a == "f32") return {};
  if (!types.is_fp8()) return {types.a};
  if (split && line.k != 144) return {};
  return {"bf16", "f16"};
}

/// Accumulation of one operand pair: patterns by K, layouts, vectors.
void RecordAccumulation(Recorder& recorder, GoldenFile& file, const OperandTypes& types,
                        int64_t m) {
  for (const Line& line : LinesOf(types)) {
    for (const bool split : {false, true}) {
      if (split && !types.is_fp8()) continue;
      CaseSpec spec{types, line.a, line.b, line.k};
      spec.split_accumulator = split, spec.m = m;
      recorder.Record(file, spec);
      for (const std::string& d_type : NarrowOutputs(types, line, split)) {
        spec.d_type = d_type;
        recorder.Record(file, spec);
      }
    }
  }
  for (const int64_t rows : {1, 3}) {
    if (types.a == "f32") continue;  // A GEMV kernel that does not round to tf32 takes it.
    CaseSpec spec{types, Pattern::kModel, Pattern::kModel, 64};
    spec.m = rows;
    recorder.Record(file, spec);
  }
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT}) {
    if (types.is_fp8()) continue;
    CaseSpec spec{types, Pattern::kModel, Pattern::kModel, 8 * types.chunk};
    spec.layout = layout;
    recorder.Record(file, spec);
  }
}

/// Records one small GEMM per output type, changed as each call says.
class EpilogueCases {
 public:
  using Change = std::function<void(CaseSpec&)>;

  EpilogueCases(Recorder& recorder, GoldenFile& file, const OperandTypes& types, bool split,
                std::vector<std::string> outputs)
      : recorder_(recorder),
        file_(file),
        types_(types),
        split_(split),
        outputs_(std::move(outputs)) {}

  void With(const Change& change) const {
    for (const std::string& d_type : outputs_) {
      CaseSpec spec{types_, Pattern::kModel, Pattern::kModel, 48};
      spec.split_accumulator = split_, spec.m = 8, spec.d_type = d_type;
      change(spec);
      recorder_.Record(file_, spec);
    }
  }
  const OperandTypes& types() const { return types_; }
  /// The one type of bias that cuBLASLt takes.
  std::string BiasType(const CaseSpec& spec) const {
    return types_.is_fp8() && spec.d_type != "f16" ? "bf16" : spec.d_type;
  }

 private:
  Recorder& recorder_;
  GoldenFile& file_;
  const OperandTypes& types_;
  const bool split_;
  const std::vector<std::string> outputs_;
};

void SetOuterScales(CaseSpec& spec) {
  for (int i = 0; i < spec.m; ++i)
    spec.a_scale.push_back(0.013f * static_cast<float>(i + 3) / 7.0f);
  for (int i = 0; i < spec.n; ++i) spec.b_scale.push_back(1.7f * static_cast<float>(i + 5) / 11.0f);
}

/// alpha and beta out of place: what all kernels do alike.
void RecordSums(const EpilogueCases& cases) {
  cases.With([](CaseSpec&) {});
  const std::pair<float, float> sums[] = {
      {0.7f, 0.0f}, {1.0f, 1.0f}, {0.7f, 1.0f}, {1.0f, 0.3f}, {-1.3f, -0.3f}};
  for (const auto& [alpha, beta] : sums) {
    cases.With([&](CaseSpec& s) { s.alpha = alpha, s.beta = beta; });
  }
  cases.With([](CaseSpec& s) { s.beta = 1, s.c_pattern = Pattern::kSpecials; });
  cases.With([](CaseSpec& s) { s.beta = 1, s.in_place = true; });
  cases.With([&](CaseSpec& s) { s.bias_type = cases.BiasType(s); });
}

/// Accumulation in place, and the signs of zeros.
void RecordInPlace(const EpilogueCases& cases) {
  const auto in_place = [&](const EpilogueCases::Change& change) {
    cases.With([&](CaseSpec& s) { s.beta = 1, s.in_place = true, change(s); });
  };
  in_place([](CaseSpec& s) { s.alpha = 0.7f; });
  in_place([](CaseSpec& s) { s.beta = 0.3f; });
  in_place([](CaseSpec& s) { s.c_pattern = Pattern::kSpecials; });
  in_place([](CaseSpec& s) { s.a_pattern = s.c_pattern = Pattern::kZeros; });
  in_place([](CaseSpec& s) { s.a_pattern = s.b_pattern = Pattern::kSpecials, s.alpha = 0; });
  const auto zeros = [&](const EpilogueCases::Change& change) {
    cases.With([&](CaseSpec& s) { s.a_pattern = Pattern::kZeros, change(s); });
  };
  zeros([](CaseSpec& s) { s.alpha = -1; });
  zeros([](CaseSpec& s) { s.beta = 1, s.c_pattern = Pattern::kZeros; });
  // alpha = 0: the product is computed, NaN and all.
  const auto alpha_zero = [&](const EpilogueCases::Change& change) {
    cases.With([&](CaseSpec& s) {
      s.a_pattern = s.b_pattern = Pattern::kSpecials, s.alpha = 0, change(s);
    });
  };
  alpha_zero([](CaseSpec&) {});
  alpha_zero([](CaseSpec& s) { s.beta = -0.3f, s.c_pattern = Pattern::kZeros; });
  alpha_zero(
      [&](CaseSpec& s) { s.bias_type = cases.BiasType(s), s.bias_pattern = Pattern::kSparse; });
  if (cases.types().a == "bf16") {  // A product with alpha that underflows to zero.
    cases.With(
        [](CaseSpec& s) { s.a_pattern = s.b_pattern = Pattern::kTiny, s.alpha = -0x1p-20f; });
  }
}

void RecordBias(const EpilogueCases& cases) {
  const auto bias = [&](const EpilogueCases::Change& change) {
    cases.With([&](CaseSpec& s) { s.bias_type = cases.BiasType(s), change(s); });
  };
  bias([](CaseSpec& s) { s.alpha = 0.7f; });
  bias([](CaseSpec& s) { s.alpha = 0.7f, s.beta = 0.3f; });
  bias([](CaseSpec& s) { s.beta = 1; });
  bias([](CaseSpec& s) { s.beta = 1, s.in_place = true; });
  bias([](CaseSpec& s) { s.bias_pattern = Pattern::kSpecials; });
  // Refused (heuristic status 7 or 15): any other type of bias.
  cases.With([&](CaseSpec& s) { s.bias_type = cases.BiasType(s) == "bf16" ? "f16" : "bf16"; });
}

void RecordScales(const EpilogueCases& cases) {
  const std::vector<float> a1 = {0.0123f}, b1 = {1.7f}, a2 = {771.1f}, b2 = {3.3e-5f};
  cases.With([&](CaseSpec& s) { s.a_scale = a1, s.b_scale = b1; });
  cases.With([&](CaseSpec& s) { s.a_scale = a2, s.b_scale = b2, s.alpha = 0.7f; });
  cases.With([&](CaseSpec& s) { s.b_scale = b1, s.alpha = 0.7f; });
  cases.With([&](CaseSpec& s) { s.a_scale = a1, s.b_scale = b1, s.alpha = 0.7f, s.beta = 0.3f; });
  cases.With([&](CaseSpec& s) { s.a_scale = a1, s.b_scale = b1, s.beta = 1, s.in_place = true; });
  const auto bias = [&](const EpilogueCases::Change& change) {
    cases.With([&](CaseSpec& s) {
      s.a_scale = a2, s.b_scale = b2, s.bias_type = cases.BiasType(s), change(s);
    });
  };
  bias([](CaseSpec&) {});
  bias([](CaseSpec& s) { s.alpha = 0.7f, s.beta = 0.3f; });
  bias([](CaseSpec& s) { s.beta = 1, s.in_place = true; });
  const auto outer = [&](const EpilogueCases::Change& change) {
    cases.With([&](CaseSpec& s) { SetOuterScales(s), change(s); });
  };
  outer([](CaseSpec&) {});
  outer([](CaseSpec& s) { s.alpha = 0.7f; });
  outer([&](CaseSpec& s) { s.bias_type = cases.BiasType(s); });
  outer([&](CaseSpec& s) { s.bias_type = cases.BiasType(s), s.alpha = 0.7f; });
  outer([](CaseSpec& s) { s.alpha = 0.7f, s.beta = 0.3f; });
  outer([](CaseSpec& s) { s.beta = 1, s.in_place = true; });
}

/// FP8 outputs: D scale, saturation, amax.
void RecordFp8Outputs(const EpilogueCases& cases) {
  const auto with_scale = [&](float d_scale, const EpilogueCases::Change& change) {
    cases.With([&](CaseSpec& s) { s.has_d_scale = true, s.d_scale = d_scale, change(s); });
  };
  cases.With([](CaseSpec& s) { s.a_scale = {771.1f}, s.b_scale = {3.3e-5f}; });
  with_scale(771.3f, [](CaseSpec& s) { s.a_scale = {771.1f}, s.b_scale = {3.3e-5f}; });
  with_scale(1.0e6f, [](CaseSpec&) {});
  with_scale(3.0e-3f, [](CaseSpec& s) { s.alpha = 0.7f; });
  with_scale(33.3f, [&](CaseSpec& s) { s.bias_type = cases.BiasType(s); });
  with_scale(33.3f, [](CaseSpec& s) { s.a_pattern = s.b_pattern = Pattern::kSpecials; });
  with_scale(33.3f, [](CaseSpec& s) { s.beta = 0.3f; });  // C is bf16.
  with_scale(33.3f, [](CaseSpec& s) { s.beta = 1, s.alpha = 0.7f; });
  with_scale(33.3f, [](CaseSpec& s) { s.a_pattern = Pattern::kZeros, s.alpha = -1; });
  with_scale(-33.3f, [](CaseSpec& s) { s.a_pattern = Pattern::kZeros; });
}

void RecordEpilogues(Recorder& recorder, GoldenFile& file, const OperandTypes& types, bool split,
                     const std::vector<std::string>& outputs) {
  const EpilogueCases cases(recorder, file, types, split, outputs);
  RecordSums(cases);
  if (types.a == "f32") return;  // The rest depends on the kernel.
  RecordInPlace(cases);
  RecordBias(cases);
  if (!types.is_fp8()) return;
  RecordScales(cases);
  std::vector<std::string> fp8_outputs = {"f8_e4m3"};
  if (types.a == "f8_e5m2") fp8_outputs.push_back("f8_e5m2");  // Refused for e4m3 x e4m3.
  RecordFp8Outputs(EpilogueCases(recorder, file, types, split, fp8_outputs));
}

/// Forced split-K, plain and with each part of the epilogue.
void RecordSplitK(Recorder& recorder, GoldenFile& file, const OperandTypes& types, int64_t k,
                  bool split) {
  const auto record = [&](int slices, const std::string& d_type,
                          const EpilogueCases::Change& change) {
    CaseSpec spec{types, Pattern::kModel, Pattern::kModel, k};
    spec.split_accumulator = split, spec.m = 8, spec.d_type = d_type, spec.force_split_k = slices;
    change(spec);
    recorder.Record(file, spec);
  };
  for (const int slices : {2, 3, 4}) record(slices, "f32", [](CaseSpec&) {});
  if (types.a == "bf16") {
    // Slices of k / slices rounded up to tiles of 64: 12 of 64 leave the last 8 products out.
    record(12, "f32", [](CaseSpec& s) { s.k = 776; });
    record(9, "bf16", [](CaseSpec& s) { s.k = 584; });
    record(12, "f32", [](CaseSpec& s) { s.k = 784; });
  }
  for (const std::string& d_type :
       {std::string("f32"), types.is_fp8() ? std::string("bf16") : types.a}) {
    const std::string bias_type = types.is_fp8() ? "bf16" : d_type;
    record(3, d_type, [](CaseSpec& s) { s.alpha = 0.7f; });
    record(3, d_type, [](CaseSpec& s) { s.alpha = 0.7f, s.beta = 0.3f; });
    record(3, d_type, [](CaseSpec& s) { s.alpha = 0.7f, s.beta = 1, s.in_place = true; });
    record(2, d_type, [](CaseSpec& s) { s.beta = 1, s.in_place = true; });
    record(3, d_type, [&](CaseSpec& s) { s.alpha = 0.7f, s.bias_type = bias_type; });
    record(3, d_type, [&](CaseSpec& s) { s.alpha = 0.7f, s.beta = 0.3f, s.bias_type = bias_type; });
    record(3, d_type, [](CaseSpec& s) { s.a_pattern = Pattern::kZeros, s.alpha = -1; });
    if (!types.is_fp8()) continue;
    const auto scaled = [](CaseSpec& s) {
      s.a_scale = {771.1f}, s.b_scale = {3.3e-5f}, s.alpha = 0.7f;
    };
    record(3, d_type, [&](CaseSpec& s) { scaled(s); });
    record(3, d_type, [&](CaseSpec& s) { scaled(s), s.beta = 0.3f, s.bias_type = "bf16"; });
    record(3, d_type, [](CaseSpec& s) { SetOuterScales(s), s.alpha = 0.7f, s.beta = 0.3f; });
  }
}

/// Larger GEMMs as digests of their outputs; the test draws the operands again.
void RecordLarge(Recorder& recorder, GoldenFile& file) {
  const auto record = [&](const OperandTypes& types, int64_t m, int64_t n, int64_t k, bool split,
                          const std::string& d_type, Pattern pattern,
                          GemmLayout layout = GemmLayout::kTN) {
    CaseSpec spec{types, pattern, pattern, k};
    spec.m = m, spec.n = n, spec.d_type = d_type, spec.split_accumulator = split,
    spec.layout = layout;
    spec.digest_only = true;
    recorder.Record(file, spec);
  };
  record(kBf16, 200, 304, 1032, false, "f32", Pattern::kWide);
  record(kBf16, 136, 264, 2048, false, "bf16", Pattern::kModel);
  record(kBf16, 136, 264, 520, false, "bf16", Pattern::kModel, GemmLayout::kNN);
  record(kBf16, 136, 264, 520, false, "f32", Pattern::kModel, GemmLayout::kNT);
  record(kF16, 136, 264, 1032, false, "f16", Pattern::kModel);
  record(kTf32, 136, 264, 520, false, "f32", Pattern::kModel);
  for (const bool split : {false, true}) {
    record(kE4m3, 200, 304, 2064, split, "f32", Pattern::kCodes);
    record(kE4m3, 128, 256, 4096, split, "bf16", Pattern::kModel);
    record(kE5m2E4m3, 200, 304, 1040, split, "f32", Pattern::kCodes);
  }
}

/// Block-scaled FP8: patterns by K, scales of every size, epilogues.
void RecordBlockScaled(Recorder& recorder, GoldenFile& file, const OperandTypes& types,
                       ScaleMode a_block, ScaleMode b_block) {
  using P = Pattern;
  const auto record = [&](const Line& line, const EpilogueCases::Change& change) {
    CaseSpec spec{types, line.a, line.b, line.k};
    spec.split_accumulator = true, spec.m = 16;
    spec.a_block = a_block, spec.b_block = b_block;
    change(spec);
    recorder.Record(file, spec);
  };
  const Line lines[] = {{P::kCodes, P::kCodes, 16},        {P::kCodes, P::kCodes, 144},
                        {P::kModel, P::kModel, 128},       {P::kModel, P::kModel, 400},
                        {P::kWide, P::kWide, 272},         {P::kMaximal, P::kMaximal, 256},
                        {P::kSpecials, P::kSpecials, 144}, {P::kSparse, P::kSparse, 272},
                        {P::kCancel, P::kCancel, 144}};
  for (const Line& line : lines) record(line, [](CaseSpec&) {});
  const Line model{P::kModel, P::kModel, 272};
  for (const Pattern pattern : {P::kWide, P::kTiny, P::kHuge, P::kSubnormal, P::kSpecials}) {
    record(model, [&](CaseSpec& s) { s.scale_pattern = pattern; });
  }
  // Sums that underflow to zeros of both signs, under what an epilogue may do to a zero.
  for (const float alpha : {0.5f, 2.0f, -1.0f}) {
    record(model, [&](CaseSpec& s) { s.scale_pattern = P::kSubnormal, s.alpha = alpha; });
  }
  record(model, [](CaseSpec& s) { s.scale_pattern = P::kSubnormal, s.beta = 1; });
  record(model,
         [](CaseSpec& s) { s.scale_pattern = P::kSubnormal, s.beta = 1, s.in_place = true; });
  record(model, [](CaseSpec& s) { s.scale_pattern = P::kSubnormal, s.bias_type = "bf16"; });
  for (const std::string d_type : {"f32", "bf16", "f16"}) {
    const std::string bias_type = d_type == "f16" ? "f16" : "bf16";
    const auto with = [&](const EpilogueCases::Change& change) {
      record(model, [&](CaseSpec& s) { s.d_type = d_type, s.m = 8, change(s); });
    };
    with([](CaseSpec& s) { s.alpha = 0.7f; });
    with([](CaseSpec& s) { s.alpha = 0.7f, s.beta = 0.3f; });
    with([](CaseSpec& s) { s.beta = 1; });
    with([](CaseSpec& s) { s.beta = 1, s.in_place = true; });
    with([&](CaseSpec& s) { s.bias_type = bias_type; });
    with([&](CaseSpec& s) { s.alpha = 0.7f, s.beta = 0.3f, s.bias_type = bias_type; });
    with([&](CaseSpec& s) { s.beta = 1, s.in_place = true, s.bias_type = bias_type; });
    with([](CaseSpec& s) { s.a_pattern = P::kZeros, s.alpha = -1; });
  }
  // Rows on and off the tiles.
  record(model, [](CaseSpec& s) { s.m = 130, s.n = 136, s.d_type = "bf16"; });
  record(model, [](CaseSpec& s) { s.m = 129, s.n = 16; });
  record(model, [](CaseSpec& s) { s.m = 1, s.d_type = "bf16"; });
}

/// What other kernels than wgmma take: sizes that leave the 16-byte rules, vectors, tf32 in small
/// sizes or with K no multiple of 8. Their orders differ from algorithm to algorithm.
void RecordOtherKernels(Recorder& recorder, GoldenFile& file) {
  const std::tuple<int, int, int> shapes[] = {{16, 5, 64},  {16, 33, 64}, {16, 32, 1}, {8, 32, 17},
                                              {16, 32, 20}, {16, 32, 50}, {16, 1, 64}, {1, 1, 65},
                                              {7, 9, 131},  {1, 32, 64}};
  for (const OperandTypes& types : {kBf16, kF16, kTf32, kE4m3}) {
    for (const auto& [m, n, k] : shapes) {
      CaseSpec spec{types, Pattern::kModel, Pattern::kModel, k};
      spec.m = m, spec.n = n;
      recorder.Record(file, spec);
    }
  }
  for (const int64_t k : {12, 20, 28, 36, 44, 60, 68, 100}) {
    recorder.Record(file, {kTf32, Pattern::kWide, Pattern::kWide, k});
  }
  // Split-K of a K that is no multiple of 8, which layout NT allows.
  for (const int64_t k : {250, 322, 450, 706, 1000, 1002}) {
    CaseSpec spec{kBf16, Pattern::kModel, Pattern::kModel, k};
    spec.layout = GemmLayout::kNT, spec.force_split_k = 3;
    recorder.Record(file, spec);
  }
  const std::tuple<int, int, int> tf32_shapes[] = {
      {64, 128, 256}, {128, 128, 516}, {256, 512, 1028}, {512, 2048, 2048}, {1024, 1024, 100}};
  for (const auto& [m, n, k] : tf32_shapes) {
    CaseSpec spec{kTf32, Pattern::kModel, Pattern::kModel, k};
    spec.m = m, spec.n = n, spec.digest_only = true;
    recorder.Record(file, spec);
    spec.alpha = 0.7f, spec.bias_type = "f32";
    recorder.Record(file, spec);
    spec.bias_type = "", spec.beta = 1, spec.in_place = true;
    recorder.Record(file, spec);
  }
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: cublaslt_record OUTPUT_FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  const std::string origin =
      DeviceText() + "; recorded " + date + " by tests/hardware/cublaslt_record.cc";
  std::printf("%s\n", origin.c_str());
  CublasLtRuns cublaslt;
  Recorder recorder(cublaslt);
  const auto write = [&](const std::string& name, const std::function<void(GoldenFile&)>& fill) {
    GoldenFile file;
    fill(file);
    file.Write(folder + "/" + name + ".safetensors", origin);
  };
  const auto accumulation = [&](const char* name, const OperandTypes& types, int64_t m) {
    write(name, [&](GoldenFile& f) { RecordAccumulation(recorder, f, types, m); });
  };
  accumulation("golden_gemm_bf16", kBf16, 16);
  accumulation("golden_gemm_f16", kF16, 16);
  accumulation("golden_gemm_tf32", kTf32, 16);
  accumulation("golden_gemm_fp8_e4m3", kE4m3, 16);
  accumulation("golden_gemm_fp8_e5m2_e4m3", kE5m2E4m3, 8);
  accumulation("golden_gemm_fp8_e4m3_e5m2", kE4m3E5m2, 8);
  write("golden_gemm_epilogue_high_precision", [&](GoldenFile& f) {
    RecordEpilogues(recorder, f, kBf16, false, {"f32", "bf16"});
    RecordEpilogues(recorder, f, kF16, false, {"f32", "f16"});
    RecordEpilogues(recorder, f, kTf32, false, {"f32"});
  });
  write("golden_gemm_epilogue_fp8", [&](GoldenFile& f) {
    RecordEpilogues(recorder, f, kE4m3, false, {"f32", "bf16"});
    RecordEpilogues(recorder, f, kE5m2E4m3, true, {"f32", "bf16", "f16"});
  });
  write("golden_gemm_splitk", [&](GoldenFile& f) {
    RecordSplitK(recorder, f, kBf16, 320, false);
    RecordSplitK(recorder, f, kE4m3, 640, false);
    RecordSplitK(recorder, f, kE5m2E4m3, 656, true);
  });
  write("golden_gemm_fp8_block", [&](GoldenFile& f) {
    const std::pair<ScaleMode, ScaleMode> blocks[] = {{ScaleMode::k1x128, ScaleMode::k128x128},
                                                      {ScaleMode::k128x128, ScaleMode::k1x128},
                                                      {ScaleMode::k1x128, ScaleMode::k1x128}};
    for (const auto& [a_block, b_block] : blocks) {
      RecordBlockScaled(recorder, f, kE4m3, a_block, b_block);
    }
    RecordBlockScaled(recorder, f, kE5m2E4m3, ScaleMode::k1x128, ScaleMode::k128x128);
    RecordBlockScaled(recorder, f, kE4m3E5m2, ScaleMode::k1x128, ScaleMode::k1x128);
  });
  write("golden_gemm_large", [&](GoldenFile& f) { RecordLarge(recorder, f); });
  write("other_kernels", [&](GoldenFile& f) { RecordOtherKernels(recorder, f); });
  recorder.WriteVariants(folder + "/variants.safetensors", origin);
  recorder.PrintSummary();
  return 0;
}

}  // namespace
}  // namespace quantgate::hardware

int main(int argc, char** argv) { return quantgate::hardware::Main(argc, argv); }
