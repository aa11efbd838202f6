// What QuantizeCpu promises of every format: both directions at once are each alone, every
// instruction set and number of threads gives the same bytes, shards draw the bytes of the whole,
// directions with different rules, and what is refused. The bytes themselves: *_vectors_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/stochastic_rounding.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/base/exhaustive.h"
#include "tests/quantize/every_quantizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::EveryQuantizer;
using ::testing::HasSubstr;
using testing::NamedQuantizer;

bool SameBytes(const Tensor& a, const Tensor& b) {
  if (a.has_value() != b.has_value()) return false;
  if (!a.has_value()) return true;
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
}

void ExpectSameCopy(const QuantizedTensor& a, const QuantizedTensor& b, Usage usage) {
  SCOPED_TRACE(UsageName(usage));
  ASSERT_TRUE(a.copy(usage).has_value() && b.copy(usage).has_value());
  EXPECT_TRUE(SameBytes(a.copy(usage)->data, b.copy(usage)->data)) << "codes";
  EXPECT_TRUE(SameBytes(a.copy(usage)->scale_inv, b.copy(usage)->scale_inv)) << "scales";
  EXPECT_TRUE(SameBytes(a.copy(usage)->amax, b.copy(usage)->amax)) << "amax";
  EXPECT_EQ(a.copy(usage)->hadamard, b.copy(usage)->hadamard);
}

int64_t SumOf(const QuantizationCounts& c) {
  return c.normal + c.zero + c.subnormal + c.flushed_to_zero + c.saturated + c.infinite + c.nan;
}

Tensor Source(DType dtype, Shape shape, Distribution distribution, uint64_t seed) {
  return *Generate({.distribution = distribution, .seed = seed, .dtype = dtype, .shape = shape},
                   {});
}

bool Takes(const NamedQuantizer& named, const Tensor& source) {
  return CheckQuantization(source.dtype(), source.shape(), named.quantizer, {true, true}).ok();
}

constexpr Distribution kDistributions[] = {Distribution::kNormal, Distribution::kSpecialsLaced,
                                           Distribution::kSubnormalHeavy};
constexpr DType kSources[] = {DType::kBF16, DType::kF32, DType::kF16};

TEST(EveryFormat, BothDirectionsAreEachAlone) {
  for (const NamedQuantizer& named : EveryQuantizer()) {
    SCOPED_TRACE(named.name);
    int taken = 0;
    for (const DType dtype : kSources) {
      const Tensor x = Source(dtype, {3, 32, 96}, Distribution::kSpecialsLaced, 5);
      if (!Takes(named, x)) continue;
      ++taken;
      const QuantizeArguments arguments = named.ArgumentsFor();
      const auto both = QuantizeCpu(x, named.quantizer, {true, true}, arguments, {});
      const auto row = QuantizeCpu(x, named.quantizer, {true, false}, arguments, {});
      const auto column = QuantizeCpu(x, named.quantizer, {false, true}, arguments, {});
      ASSERT_TRUE(both.ok() && row.ok() && column.ok()) << both.status();
      EXPECT_EQ(both->usages(), (Usages{true, true}));
      EXPECT_EQ(row->usages(), (Usages{true, false}));
      EXPECT_EQ(column->usages(), (Usages{false, true}));
      ExpectSameCopy(*both, *row, Usage::kRowwise);
      ExpectSameCopy(*both, *column, Usage::kColumnwise);
      EXPECT_TRUE(both->counts == row->counts);
      EXPECT_EQ(SumOf(column->counts), x.element_count());
    }
    EXPECT_GT(taken, 0);
  }
}

/// Of scalar code on one thread, which is the definition, on `isa` and `threads`.
void ExpectThatOfScalarCode(const NamedQuantizer& named, const Tensor& x, Usages usages,
                            const QuantizedTensor& expected, Isa isa, int threads) {
  SCOPED_TRACE(IsaName(isa));
  const ExecutionContext context = {.isa = isa, .threads = threads};
  const QuantizedTensor q = *QuantizeCpu(x, named.quantizer, usages, named.ArgumentsFor(), context);
  if (usages.rowwise) ExpectSameCopy(q, expected, Usage::kRowwise);
  if (usages.columnwise) ExpectSameCopy(q, expected, Usage::kColumnwise);
  EXPECT_TRUE(q.counts == expected.counts);
}

QuantizedTensor ByScalarCode(const NamedQuantizer& named, const Tensor& x, Usages usages) {
  const ExecutionContext scalar = {.isa = Isa::kScalar, .threads = 1};
  return *QuantizeCpu(x, named.quantizer, usages, named.ArgumentsFor(), scalar);
}

/// Other libraries' steps have one path, scalar code that asks for no instruction set
/// (format_quantizers.h): of those each tensor meets one of `isas`, and the next one the next.
std::vector<Isa> IsasFor(const NamedQuantizer& named, const std::vector<Isa>& isas, size_t turn) {
  if (!named.quantizer.rowwise.has_library_steps() || isas.empty()) return isas;
  return {isas[turn % isas.size()]};
}

/// Several pieces of every path, and one that is not whole.
Shape ShapeOfPieces(const NamedQuantizer& named) {
  const QuantizerFormat format = named.quantizer.rowwise.format;
  const bool has_tall_tiles =
      format == QuantizerFormat::kFp8Block || format == QuantizerFormat::kFp8Rowwise;
  // Pieces of 2^14 bytes of codes, or vector steps and pieces of 2048 columns.
  const bool is_general = named.quantizer.rowwise.has_library_steps();
  return {has_tall_tiles ? 128 : 32, is_general ? 576 : 2112};
}

TEST(EveryFormat, EveryPathGivesTheSameBytes) {
  const std::vector<NamedQuantizer> quantizers = EveryQuantizer();
  size_t turn = 0;
  for (const DType dtype : kSources) {
    for (const Distribution distribution : kDistributions) {
      if (dtype != DType::kBF16 && distribution != Distribution::kSpecialsLaced) continue;
      std::map<Shape, Tensor> sources;
      for (const NamedQuantizer& named : quantizers) {
        SCOPED_TRACE(named.name + " of " + std::string(DTypeName(dtype)));
        const Shape shape = ShapeOfPieces(named);
        Tensor& x = sources[shape];
        if (!x.has_value()) x = Source(dtype, shape, distribution, 7);
        if (!Takes(named, x)) continue;
        const QuantizedTensor expected = ByScalarCode(named, x, {true, true});
        std::vector<Isa> isas = RunnableIsas();
        // Threads share scalar code's pieces alike whatever lies in them.
        if (turn > 0 && !IsExhaustive()) std::erase(isas, Isa::kScalar);
        for (const Isa isa : IsasFor(named, isas, turn)) {
          ExpectThatOfScalarCode(named, x, {true, true}, expected, isa, 2);
        }
        if (::testing::Test::HasFailure()) return;
      }
      ++turn;
    }
  }
}

/// Dims around every vector step and piece, where the format takes them; one direction alone too.
TEST(EveryFormat, EveryPathAtTheEdges) {
  const Shape shapes[] = {{1, 1},    {3, 5},     {17, 33},   {31, 129},  {127, 64}, {129, 131},
                          {64, 127}, {32, 32},   {96, 160},  {16, 16},   {48, 80},  {32, 2080},
                          {160, 64}, {128, 128}, {256, 192}, {130, 2050}};
  const std::vector<NamedQuantizer> quantizers = EveryQuantizer();
  std::vector<Isa> vector_isas = RunnableIsas();
  std::erase(vector_isas, Isa::kScalar);  // On one thread it is what is expected.
  // What is larger has more columns than a vector piece, of which other libraries' steps know none.
  constexpr int64_t kGeneralElements = 1 << 15;
  size_t turn = 0;
  for (const Shape& shape : shapes) {
    const Tensor x = Source(DType::kBF16, shape, Distribution::kNormal, 11);
    for (const Usages usages : {Usages{true, true}, Usages{true, false}, Usages{false, true}}) {
      for (const NamedQuantizer& named : quantizers) {
        const bool is_general = named.quantizer.rowwise.has_library_steps();
        if (!Takes(named, x) || (is_general && x.element_count() > kGeneralElements)) continue;
        SCOPED_TRACE(named.name + " of " + ShapeText(shape));
        const QuantizedTensor expected = ByScalarCode(named, x, usages);
        for (const Isa isa : IsasFor(named, vector_isas, turn)) {
          ExpectThatOfScalarCode(named, x, usages, expected, isa, 1);
        }
        if (::testing::Test::HasFailure()) return;
      }
      ++turn;
    }
  }
}

/// Every finite bf16 number in blocks whose amax is of its binade, and up to 10 binades above.
TEST(EveryFormat, Mxfp4OfEveryNumberIsThatOfScalarCode) {
  constexpr int64_t kRows = 32, kBlocks = 11;
  QuantizerSpec spec = {.format = QuantizerFormat::kMxfp8, .element = DType::kF4E2M1x2};
  const NamedQuantizer mxfp4 = {.name = "mxfp4", .quantizer = spec};
  Tensor x = *Tensor::Allocate(DType::kBF16, {kRows, kBlocks * 32});
  for (uint32_t binade = 0; binade < 255; ++binade) {
    for (int64_t i = 0; i < x.element_count(); ++i) {
      const auto row = static_cast<uint32_t>(i / (kBlocks * 32));
      const auto block = static_cast<uint32_t>(i / 32 % kBlocks),
                 place = static_cast<uint32_t>(i % 32);
      const uint32_t number = row * 31 + place, of_amax = std::min(binade + block, 254u);
      const uint32_t word = place == 31 ? of_amax << 7 | (row * 37 & 127)
                                        : number % 256 / 128 << 15 | binade << 7 | number % 128;
      x.as<uint16_t>()[i] = static_cast<uint16_t>(word);
    }
    SCOPED_TRACE(binade);
    const QuantizedTensor expected = ByScalarCode(mxfp4, x, {true, true});
    for (const Isa isa : RunnableIsas()) {
      ExpectThatOfScalarCode(mxfp4, x, {true, true}, expected, isa, 1);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(EveryFormat, EmptyTensors) {
  for (const NamedQuantizer& named : EveryQuantizer()) {
    SCOPED_TRACE(named.name);
    const Tensor x = *Tensor::Allocate(DType::kBF16, {0, 64});
    const auto q = QuantizeCpu(x, named.quantizer, {true, true}, named.ArgumentsFor(), {});
    ASSERT_TRUE(q.ok()) << q.status();
    EXPECT_EQ(SumOf(q->counts), 0);
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const QuantizedCopy& copy = *q->copy(usage);
      EXPECT_EQ(copy.data.element_count(), 0);
      if (copy.amax.has_value() && copy.amax.element_count() == 1) {
        EXPECT_EQ(*copy.amax.as<float>(), 0.0f);
      }
      for (int64_t i = 0; copy.format == QuantizerFormat::kFp8Rowwise && i < 64; ++i) {
        const bool is_rowwise = usage == Usage::kRowwise;
        ASSERT_EQ(copy.scale_inv.shape(), (Shape{is_rowwise ? 0 : 64}));
        if (!is_rowwise) EXPECT_EQ(copy.scale_inv.as<float>()[i], 1.0f);
      }
      if (copy.format == QuantizerFormat::kNvfp4 && usage == Usage::kColumnwise) continue;
      EXPECT_EQ(DequantizeCpu(*q, usage, DType::kBF16, {})->shape(), (Shape{0, 64}));
    }
  }
}

/// Tiles: the columnwise copy is the rowwise one turned over.
TEST(EveryFormat, DirectionsOfTilesAgree) {
  const Tensor x = Source(DType::kBF16, {96, 160}, Distribution::kNormal, 3);
  for (const NamedQuantizer& named : EveryQuantizer()) {
    const QuantizerSpec& spec = named.quantizer.rowwise;
    if (spec.block_dim != 2 || !(named.quantizer.columnwise == spec)) continue;
    if (spec.format == QuantizerFormat::kNvfp4) continue;  // 4over6 may decide twice.
    SCOPED_TRACE(named.name);
    const QuantizedTensor q = *QuantizeCpu(x, named.quantizer, {true, true}, {}, {});
    EXPECT_TRUE(SameBytes(*DequantizeCpu(q, Usage::kRowwise, DType::kF32, {}),
                          *DequantizeCpu(q, Usage::kColumnwise, DType::kF32, {})));
  }
}

// ---- sharding

QuantizerSpec StochasticSpec() {
  return {.format = QuantizerFormat::kNvfp4,
          .element = DType::kF4E2M1x2,
          .element_rounding = ElementRounding::kStochastic};
}

/// Rows [row, row + rows) and columns [column, column + columns) of a matrix.
Tensor Window(const Tensor& x, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  Tensor window = *Tensor::Allocate(x.dtype(), {rows, columns});
  const int64_t bytes = DTypeBytes(x.dtype());
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(window.data() + r * columns * bytes,
                x.data() + ((row + r) * x.columns() + column) * bytes,
                static_cast<size_t>(columns * bytes));
  }
  return window;
}

/// Every shard by itself, told where it begins and what the group's amax is, has the codes of its
/// place in the whole: cut by rows, by columns, by both.
TEST(Sharding, StochasticCodesAreThoseOfTheWhole) {
  const int64_t rows = 96, columns = 160;
  const Tensor x = Source(DType::kBF16, {rows, columns}, Distribution::kNormal, 9);
  Quantizer quantizer(StochasticSpec());
  quantizer.columnwise.hadamard = true;
  QuantizeArguments arguments = {.seed = 77, .call_id = 5};
  const QuantizedTensor whole = *QuantizeCpu(x, quantizer, {true, true}, arguments, {});
  arguments.group_amax_rowwise = whole.rowwise->amax;
  arguments.group_amax_columnwise = whole.columnwise->amax;
  for (const auto& [shard_rows, shard_columns] :
       {std::pair<int64_t, int64_t>{32, columns}, {rows, 32}, {16, 16}, {48, 80}}) {
    for (int64_t row = 0; row < rows; row += shard_rows) {
      for (int64_t column = 0; column < columns; column += shard_columns) {
        arguments.row_offset = row;
        arguments.column_offset = column;
        const QuantizedTensor shard =
            *QuantizeCpu(Window(x, row, shard_rows, column, shard_columns), quantizer, {true, true},
                         arguments, {});
        EXPECT_TRUE(SameBytes(shard.rowwise->data, Window(whole.rowwise->data, row, shard_rows,
                                                          column / 2, shard_columns / 2)));
        EXPECT_TRUE(SameBytes(
            shard.columnwise->data,
            Window(whole.columnwise->data, column, shard_columns, row / 2, shard_rows / 2)));
      }
    }
  }
}

TEST(Sharding, SeedCallAndOffsetChangeTheDraw) {
  const Tensor x = Source(DType::kBF16, {64, 64}, Distribution::kNormal, 9);
  const auto codes = [&](const QuantizeArguments& arguments) {
    return QuantizeCpu(x, StochasticSpec(), {}, arguments, {})->rowwise->data;
  };
  const Tensor first = codes({.seed = 1, .call_id = 1});
  EXPECT_TRUE(SameBytes(first, codes({.seed = 1, .call_id = 1})));
  EXPECT_FALSE(SameBytes(first, codes({.seed = 2, .call_id = 1})));
  EXPECT_FALSE(SameBytes(first, codes({.seed = 1, .call_id = 2})));
  EXPECT_FALSE(SameBytes(first, codes({.seed = 1, .call_id = 1, .row_offset = 16})));
  EXPECT_FALSE(SameBytes(first, codes({.seed = 1, .call_id = 1, .column_offset = 16})));
}

// ---- Hadamard

TEST(Hadamard, RowwiseCopiesAreUntouched) {
  const Tensor x = Source(DType::kBF16, {64, 96}, Distribution::kNormal, 2);
  QuantizerSpec spec = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  Quantizer with(spec);
  with.columnwise.hadamard = true;
  const QuantizedTensor plain = *QuantizeCpu(x, spec, {true, true}, {}, {});
  const QuantizedTensor turned = *QuantizeCpu(x, with, {true, true}, {}, {});
  ExpectSameCopy(plain, turned, Usage::kRowwise);
  EXPECT_FALSE(SameBytes(plain.columnwise->data, turned.columnwise->data));
  EXPECT_TRUE(turned.columnwise->hadamard);
  EXPECT_FALSE(turned.rowwise->hadamard);
}

// ---- directions with different rules

TEST(Hybrid, EachDirectionIsThatOfItsOwnQuantizer) {
  const Tensor x = Source(DType::kBF16, {64, 96}, Distribution::kNormal, 4);
  Quantizer hybrid;
  hybrid.rowwise = {.format = QuantizerFormat::kMxfp8};
  hybrid.columnwise = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  const QuantizedTensor q = *QuantizeCpu(x, hybrid, {true, true}, {}, {});
  ExpectSameCopy(q, *QuantizeCpu(x, hybrid.rowwise, {true, false}, {}, {}), Usage::kRowwise);
  ExpectSameCopy(q, *QuantizeCpu(x, hybrid.columnwise, {false, true}, {}, {}), Usage::kColumnwise);
  EXPECT_TRUE(q.is_hybrid);

  hybrid.columnwise_source = ColumnwiseSource::kRowwiseDequantized;
  const QuantizedTensor derived = *QuantizeCpu(x, hybrid, {true, true}, {}, {});
  const Tensor dequantized = *DequantizeCpu(q, Usage::kRowwise, DType::kBF16, {});
  const QuantizedTensor expected =
      *QuantizeCpu(dequantized, hybrid.columnwise, {false, true}, {}, {});
  ExpectSameCopy(derived, expected, Usage::kColumnwise);
  // Also where nobody asks for the rowwise copy.
  const QuantizedTensor alone = *QuantizeCpu(x, hybrid, {false, true}, {}, {});
  ExpectSameCopy(alone, expected, Usage::kColumnwise);
  EXPECT_FALSE(alone.rowwise.has_value());
}

TEST(Delayed, EachDirectionHasItsScale) {
  Tensor x = *Tensor::Allocate(DType::kF32, {2, 2});
  const float values[] = {1.0f, -3.0f, 0.5f, 100.0f};
  std::copy(values, values + 4, x.as<float>());
  Quantizer quantizer(
      QuantizerSpec{.format = QuantizerFormat::kFp8Tensor, .scaling = Scaling::kDelayed});
  quantizer.columnwise.element = DType::kF8E5M2;
  const QuantizeArguments arguments = {.scale = *Tensor::FromScalar(8.0f),
                                       .columnwise_scale = *Tensor::FromScalar(2.0f)};
  const QuantizedTensor q = *QuantizeCpu(x, quantizer, {true, true}, arguments, {});
  const uint8_t rowwise[] = {0x50, 0xDC, 0x48, 0x7E};     // 8, -24, 4, 800 saturated.
  const uint8_t columnwise[] = {0x40, 0x3C, 0xC6, 0x5A};  // 2, 1; -6, 200 to 192.
  EXPECT_EQ(std::memcmp(q.rowwise->data.data(), rowwise, 4), 0);
  EXPECT_EQ(std::memcmp(q.columnwise->data.data(), columnwise, 4), 0);
  EXPECT_EQ(*q.rowwise->scale_inv.as<float>(), 0.125f);
  EXPECT_EQ(*q.columnwise->scale_inv.as<float>(), 0.5f);
  EXPECT_EQ(*q.columnwise->amax.as<float>(), 100.0f);
  // Each alone is the same.
  const QuantizedTensor alone = *QuantizeCpu(x, quantizer, {false, true}, arguments, {});
  EXPECT_EQ(std::memcmp(alone.columnwise->data.data(), columnwise, 4), 0);
}

TEST(Delayed, GivenScaleAndRecordedAmax) {
  Tensor x = *Tensor::Allocate(DType::kF32, {2, 2});
  const float values[] = {1.0f, -3.0f, 0.5f, 100.0f};
  std::copy(values, values + 4, x.as<float>());
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .scaling = Scaling::kDelayed};
  const QuantizeArguments arguments = {.scale = *Tensor::FromScalar(8.0f)};
  const QuantizedTensor q = *QuantizeCpu(x, spec, {true, true}, arguments, {});
  EXPECT_EQ(*q.rowwise->scale.as<float>(), 8.0f);
  EXPECT_EQ(*q.rowwise->scale_inv.as<float>(), 0.125f);
  EXPECT_EQ(*q.rowwise->amax.as<float>(), 100.0f);
  const uint8_t codes[] = {0x50, 0xDC, 0x48, 0x7E};  // 8, -24, 4, 800 saturated.
  EXPECT_EQ(std::memcmp(q.rowwise->data.data(), codes, 4), 0);
  EXPECT_EQ(q.counts.saturated, 1);
}

/// Under a block scale of 1 (6.375 / 6 lies at the tie between 1 and 1.125) no element is rounded
/// beyond 6 to nearest; stochastically those are whose random part reaches 8, the value that would
/// come next: docs/quantizers.md section 1.4.
TEST(Counts, SaturatedIsWhatWouldRoundBeyondTheLargest) {
  constexpr int64_t kSide = 256;
  const float values[16] = {6.375f, -6.375f, 6.25f, 6.125f, 6, 5.5f,   -4.5f, 3,
                            2.5f,   1,       0.5f,  0.125f, 0, 6.375f, 6.25f, -6.125f};
  const StochasticStream streams[] = {{.seed = 11, .call_id = 3, .usage = 0},
                                      {.seed = 11, .call_id = 3, .usage = 1}};
  QuantizerSpec spec = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  QuantizeArguments arguments = {.seed = 11, .call_id = 3};
  arguments.group_amax_rowwise = *Tensor::FromScalar(2688.0f);
  arguments.group_amax_columnwise = *Tensor::FromScalar(2688.0f);
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    SCOPED_TRACE(UsageName(usage));
    const bool is_rowwise = usage == Usage::kRowwise;
    Tensor x = *Tensor::Allocate(DType::kF32, {kSide, kSide});
    int64_t expected = 0;
    for (int64_t line = 0; line < kSide; ++line) {
      for (int64_t i = 0; i < kSide; ++i) {
        const float value = values[i % 16];
        x.as<float>()[is_rowwise ? line * kSide + i : i * kSide + line] = value;
        const PhiloxCounter bits =
            StochasticBits(streams[is_rowwise ? 0 : 1], static_cast<uint64_t>(line),
                           static_cast<uint64_t>(i / 16));
        const int random = StochasticByte(bits, static_cast<int>(i % 16));
        expected += std::fabs(value) >= 4 && std::fabs(value) + random / 128.0 >= 8;
      }
    }
    ASSERT_GT(expected, 0);
    const Usages usages = {is_rowwise, !is_rowwise};
    for (const DType dtype : kSources) {
      const Tensor source = *CastTensor(x, dtype, {});
      for (const Isa isa : RunnableIsas()) {
        SCOPED_TRACE(absl::StrCat(std::string(DTypeName(dtype)), " ", std::string(IsaName(isa))));
        spec.element_rounding = ElementRounding::kStochastic;
        const ExecutionContext context = {.isa = isa};
        EXPECT_EQ(QuantizeCpu(source, spec, usages, arguments, context)->counts.saturated,
                  expected);
        spec.element_rounding = ElementRounding::kNearestEven;
        EXPECT_EQ(QuantizeCpu(source, spec, usages, arguments, context)->counts.saturated, 0);
      }
    }
  }
}

// ---- refusals

struct Refusal {
  const char* message;
  Quantizer quantizer;
};

Quantizer Nvfp4With(void (*change)(Quantizer& quantizer)) {
  Quantizer quantizer(
      QuantizerSpec{.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2});
  change(quantizer);
  return quantizer;
}

Quantizer With(QuantizerFormat format, void (*change)(QuantizerSpec& spec)) {
  QuantizerSpec spec = {.format = format};
  change(spec);
  return Quantizer(spec);
}

TEST(CheckQuantizer, RefusesByName) {
  using Format = QuantizerFormat;
  const Refusal refusals[] = {
      {"quantizer.rowwise.hadamard is true",
       Nvfp4With([](Quantizer& q) { q.rowwise.hadamard = true; })},
      {"quantizer.element is f8_e5m2: identity casts to f32, bf16 or f16",
       With(Format::kIdentity, [](QuantizerSpec& spec) { spec.element = DType::kF8E5M2; })},
      {"quantizer.overflow is nan: not a field of identity",
       With(Format::kIdentity, [](QuantizerSpec& spec) { spec.overflow = Overflow::kNan; })},
      {"quantizer.columnwise.hadamard is true: only blocks of rows", Nvfp4With([](Quantizer& q) {
         q.columnwise.hadamard = true;
         q.columnwise.block_dim = 2;
       })},
      {"quantizer.columnwise.4over6 is mae: it and hadamard exclude each other",
       Nvfp4With([](Quantizer& q) {
         q.columnwise.hadamard = true;
         q.columnwise.four_over_six = FourOverSix::kMae;
       })},
      {"quantizer.rowwise.4over6 is mse: it compares codes rounded to nearest even, and "
       "element_rounding is stochastic",
       Nvfp4With([](Quantizer& q) {
         q.rowwise.four_over_six = FourOverSix::kMse;
         q.rowwise.element_rounding = ElementRounding::kStochastic;
       })},
      {"quantizer.columnwise.4over6 is mae: a row_scaled columnwise copy cannot have it",
       Nvfp4With([](Quantizer& q) {
         q.columnwise.four_over_six = FourOverSix::kMae;
         q.columnwise.row_scaled = true;
       })},
      {"row_scaled is true: it does not go with hadamard", Nvfp4With([](Quantizer& q) {
         q.columnwise.row_scaled = true;
         q.columnwise.hadamard = true;
       })},
      {"row_scaled is true: it does not go with tiles", Nvfp4With([](Quantizer& q) {
         q.rowwise.row_scaled = true;
         q.rowwise.block_dim = 2;
       })},
      {"row_scaled is true: it does not go with stochastic rounding", Nvfp4With([](Quantizer& q) {
         q.rowwise.row_scaled = true;
         q.rowwise.element_rounding = ElementRounding::kStochastic;
       })},
      {"e4m3_max is 256: must be 448", Nvfp4With([](Quantizer& q) { q.rowwise.e4m3_max = 256; })},
      {"scale_rule is single_level: 4over6", Nvfp4With([](Quantizer& q) {
         q.rowwise.four_over_six = FourOverSix::kMae;
         q.rowwise.scale_rule = ScaleRule::kSingleLevel;
       })},
      {"element is f8_e4m3: nvfp4 has elements f4_e2m1x2",
       With(Format::kNvfp4, [](QuantizerSpec&) {})},
      {"element is f4_e2m1x2: fp8_tensor has",
       With(Format::kFp8Tensor, [](QuantizerSpec& s) { s.element = DType::kF4E2M1x2; })},
      {"element is f6_e2m3: fp8_block has",
       With(Format::kFp8Block, [](QuantizerSpec& s) { s.element = DType::kF6E2M3; })},
      {"block_dim is 2: not a field of fp8_rowwise",
       With(Format::kFp8Rowwise, [](QuantizerSpec& s) { s.block_dim = 2; })},
      {"scaling is delayed: not a field of fp8_rowwise",
       With(Format::kFp8Rowwise, [](QuantizerSpec& s) { s.scaling = Scaling::kDelayed; })},
      {"scale_rule is round_up: fp8_block has divide, reciprocal",
       With(Format::kFp8Block, [](QuantizerSpec& s) { s.scale_rule = ScaleRule::kRoundUp; })},
      {"scale_rule is divide: mxfp8 has round_up, floor, ceil, even, nearest",
       With(Format::kMxfp8, [](QuantizerSpec& s) { s.scale_rule = ScaleRule::kDivide; })},
      {"element_rounding is stochastic",
       With(Format::kMxfp8,
            [](QuantizerSpec& s) { s.element_rounding = ElementRounding::kStochastic; })},
      {"overflow is nan: f6_e3m2 has no NaN", With(Format::kMxfp8,
                                                   [](QuantizerSpec& s) {
                                                     s.element = DType::kF6E3M2;
                                                     s.overflow = Overflow::kNan;
                                                   })},
      {"power_2_scale is true: not a field of mxfp8",
       With(Format::kMxfp8, [](QuantizerSpec& s) { s.power_2_scale = true; })},
      {"quantizer.columnwise.hadamard is true: not a field of mxfp8",
       [] {
         Quantizer q(QuantizerSpec{.format = Format::kMxfp8});
         q.columnwise.hadamard = true;
         return q;
       }()},
      {"block_dim is 2: not a field of fp8_tensor",
       With(Format::kFp8Tensor, [](QuantizerSpec& s) { s.block_dim = 2; })},
      {"block_dim is 3: must be 1 or 2",
       With(Format::kFp8Block, [](QuantizerSpec& s) { s.block_dim = 3; })},
      {"amax_epsilon is -1",
       With(Format::kFp8Block, [](QuantizerSpec& s) { s.amax_epsilon = -1; })},
      {"amax_epsilon is 1: not a field of fp8_tensor with delayed scaling",
       With(Format::kFp8Tensor,
            [](QuantizerSpec& s) {
              s.scaling = Scaling::kDelayed;
              s.amax_epsilon = 1;
            })},
  };
  for (const Refusal& refusal : refusals) {
    const absl::Status status = CheckQuantizer(refusal.quantizer);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.message));
  }
  for (const NamedQuantizer& named : EveryQuantizer()) {
    EXPECT_TRUE(CheckQuantizer(named.quantizer).ok()) << named.name;
  }
}

TEST(CheckQuantization, TensorsThatDoNotFit) {
  const auto message = [](DType dtype, const Shape& shape, const Quantizer& quantizer,
                          Usages usages) {
    return std::string(CheckQuantization(dtype, shape, quantizer, usages).message());
  };
  const Usages row = {true, false}, both = {true, true};
  const QuantizerSpec mx = {.format = QuantizerFormat::kMxfp8};
  QuantizerSpec nv = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  EXPECT_THAT(message(DType::kBF16, {31, 64}, mx, both),
              HasSubstr("mxfp8 needs both dims in mult"));
  EXPECT_EQ(message(DType::kBF16, {31, 64}, mx, row), "");
  EXPECT_THAT(message(DType::kBF16, {2, 16, 48}, mx, row), HasSubstr("32x48"));
  EXPECT_EQ(message(DType::kBF16, {2, 16, 64}, mx, row), "");
  EXPECT_THAT(message(DType::kBF16, {16, 24}, nv, row), HasSubstr("multiples of 16"));
  Quantizer turned(nv);
  turned.columnwise.hadamard = true;
  EXPECT_THAT(message(DType::kF32, {16, 16}, turned, both), HasSubstr("needs a bf16 source"));
  EXPECT_EQ(message(DType::kF32, {16, 16}, turned, row), "");
  nv.row_scaled = true;
  EXPECT_THAT(message(DType::kF16, {32, 32}, nv, both), HasSubstr("needs a bf16 source"));
  EXPECT_THAT(message(DType::kBF16, {16, 32}, nv, both), HasSubstr("multiples of 32"));
  EXPECT_EQ(message(DType::kBF16, {16, 16}, nv, row), "");
  nv.four_over_six = FourOverSix::kMae;
  EXPECT_EQ(message(DType::kBF16, {32, 32}, nv, row), "");
  EXPECT_THAT(message(DType::kBF16, {32, 32}, nv, both),
              HasSubstr("a row_scaled columnwise copy cannot have it"));
}

TEST(QuantizeCpu, RefusesArguments) {
  const Tensor x = *Tensor::Allocate(DType::kBF16, {16, 16});
  const QuantizerSpec delayed = {.format = QuantizerFormat::kFp8Tensor,
                                 .scaling = Scaling::kDelayed};
  const auto message = [&](const QuantizerSpec& spec, const QuantizeArguments& arguments) {
    return std::string(QuantizeCpu(x, spec, {}, arguments, {}).status().message());
  };
  EXPECT_THAT(message(delayed, {}), HasSubstr("scale is absent: delayed scaling needs an f32"));
  EXPECT_THAT(message(delayed, {.scale = *Tensor::FromScalar(0)}),
              HasSubstr("scale is 0: must be positive"));
  EXPECT_THAT(message(delayed, {.scale = *Tensor::FromScalar(1.0f),
                                .columnwise_scale = *Tensor::FromScalar(1.0f)}),
              HasSubstr("columnwise_scale is given: only delayed scaling takes one"));
  Quantizer columnwise(QuantizerSpec{.format = QuantizerFormat::kFp8Tensor});
  columnwise.columnwise.scaling = Scaling::kDelayed;
  EXPECT_THAT(std::string(QuantizeCpu(x, columnwise, {}, {}, {}).status().message()),
              HasSubstr("columnwise_scale is absent: delayed scaling needs an f32"));
  EXPECT_THAT(message(StochasticSpec(), {.row_offset = 8}),
              HasSubstr("row_offset is 8: must be a multiple of 16"));
}

TEST(QuantizeCpu, ColumnwiseNvfp4HasNoValues) {
  const Tensor x = Source(DType::kBF16, {16, 16}, Distribution::kNormal, 1);
  const QuantizedTensor q = *QuantizeCpu(x, StochasticSpec(), {true, true}, {}, {});
  EXPECT_EQ(DequantizeCpu(q, Usage::kColumnwise, DType::kF32, {}).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(Names, ComeBackFromText) {
  for (const QuantizerFormat format :
       {QuantizerFormat::kFp8Tensor, QuantizerFormat::kFp8Block, QuantizerFormat::kMxfp8,
        QuantizerFormat::kNvfp4, QuantizerFormat::kFp8Rowwise}) {
    for (const ScaleRule rule : TraitsOf(format).rules) {
      EXPECT_EQ(*ParseScaleRule(ScaleRuleName(rule)), rule);
    }
  }
  EXPECT_TRUE(TraitsOf(QuantizerFormat::kIdentity).rules.empty());
  EXPECT_EQ(*ParseElementRounding("stochastic"), ElementRounding::kStochastic);
  EXPECT_EQ(*ParseOverflow("nan"), Overflow::kNan);
  EXPECT_THAT(std::string(ParseScaleRule("up").status().message()),
              HasSubstr("scale_rule is \"up\": unknown name; known: usual"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
