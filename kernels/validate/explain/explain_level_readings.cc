#include "kernels/validate/explain/explain_level_readings.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/round_up.h"
#include "kernels/compare/element_values.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {
namespace {

/// The lengths of groups in use, tried where the last of a line is shorter.
constexpr std::array<int64_t, 5> kGroupLengths = {16, 32, 64, 128, 256};
/// What libraries add to numbers of four bits that have a sign.
constexpr int kOffset = 8;

struct ByteRange {
  int least = 255, most = 0;  ///< As they are.
  int signed_least = 127, signed_most = -128;
};
ByteRange RangeOf(const Tensor& codes) {
  ByteRange range;
  const auto* bytes = codes.as<uint8_t>();
  for (size_t i = 0; i < codes.byte_size(); ++i) {
    const int byte = bytes[i], number = static_cast<int8_t>(bytes[i]);
    range.least = std::min(range.least, byte);
    range.most = std::max(range.most, byte);
    range.signed_least = std::min(range.signed_least, number);
    range.signed_most = std::max(range.signed_most, number);
  }
  return range;
}

/// An element and what was added to its numbers.
struct Kind {
  DType element;
  int offset = 0;
};

/// What codes of one byte each may be.
std::vector<Kind> KindsOfBytes(const Tensor& codes) {
  const ByteRange range = RangeOf(codes);
  std::vector<Kind> kinds = {{codes.dtype()}};
  if (codes.dtype() == DType::kI8) {
    if (range.signed_least >= -8 && range.signed_most <= 7) kinds.push_back({DType::kI4x2});
    if (range.signed_least >= 0 && range.signed_most <= 15) kinds.push_back({DType::kU4x2});
  } else if (range.most <= 15) {
    kinds.push_back({DType::kU4x2});
    kinds.push_back({DType::kI4x2, kOffset});
    kinds.push_back({DType::kNf4x2});
    kinds.push_back({DType::kBnbFp4x2});
  }
  return kinds;
}

/// What codes of four bits may be.
std::vector<Kind> KindsOfNibbles(DType given) {
  const std::vector<Kind> integers = {{DType::kI4x2}, {DType::kI4x2, kOffset}, {DType::kU4x2}};
  if (given == DType::kI32) return integers;
  if (given != DType::kU8) return {{given}};
  std::vector<Kind> kinds = integers;
  kinds.push_back({DType::kNf4x2});
  kinds.push_back({DType::kBnbFp4x2});
  return kinds;
}

/// Whether a tensor may be [across][lines], and whether it must be: it has no such shape itself.
struct MayBeTurned {
  bool may = false, must = false;
};
MayBeTurned TurnedOf(const Tensor& tensor, int64_t lines, int64_t across) {
  const bool has_shape = tensor.rank() >= 2 && lines > 1 && across > 1;
  if (!has_shape || tensor.rows() != across || tensor.columns() != lines) return {};
  return {true, across != lines};
}

/// [inner][outer] as [outer][inner].
std::vector<float> Turned(const std::vector<float>& values, int64_t outer, int64_t inner) {
  std::vector<float> turned(values.size());
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) turned[i * inner + j] = values[j * outer + i];
  }
  return turned;
}

/// The values of a tensor in the order of groups.
std::vector<float> ValuesOf(const Tensor& tensor, int64_t lines, int64_t across, bool is_turned) {
  std::vector<double> stored(static_cast<size_t>(lines * across));
  DecodeValues(tensor, 0, lines * across, stored.data());
  std::vector<float> values(stored.begin(), stored.end());
  return is_turned ? Turned(values, lines, across) : values;
}

/// Eight numbers to an i32 along the second dim of [outer][inner], or along the first one.
std::vector<float> UnpackedNibbles(const Tensor& words, int64_t outer, int64_t inner,
                                   bool along_outer) {
  std::vector<float> values(static_cast<size_t>(outer * inner));
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t word = along_outer ? i / 8 * inner + j : i * DivideUp(inner, 8) + j / 8;
      const int64_t place = along_outer ? i % 8 : j % 8;
      values[i * inner + j] = static_cast<float>(words.as<uint32_t>()[word] >> (4 * place) & 15);
    }
  }
  return values;
}

/// Every way to read zero points.
std::vector<LevelZeros> ZerosOf(const Tensor& given, int64_t lines, int64_t across) {
  std::vector<LevelZeros> zeros;
  const int64_t count = given.element_count();
  if (count == 1) {
    const float value = ValuesOf(given, 1, 1, false).front();
    zeros.push_back({std::vector<float>(static_cast<size_t>(lines * across), value)});
    return zeros;
  }
  if (count == lines * across) {
    const MayBeTurned turned = TurnedOf(given, lines, across);
    if (!turned.must) zeros.push_back({ValuesOf(given, lines, across, false)});
    if (turned.may) zeros.push_back({ValuesOf(given, lines, across, true)});
    return zeros;
  }
  if (given.dtype() != DType::kI32 || given.rank() < 2) return zeros;
  const int64_t rows = given.rows(), columns = given.columns();
  if (rows == lines && columns == DivideUp(across, 8)) {
    zeros.push_back({UnpackedNibbles(given, lines, across, false), true});
  }
  if (rows == DivideUp(lines, 8) && columns == across) {
    zeros.push_back({UnpackedNibbles(given, lines, across, true), true});
  }
  if (rows == across && columns == DivideUp(lines, 8)) {
    zeros.push_back({Turned(UnpackedNibbles(given, across, lines, false), lines, across), true});
  }
  if (rows == DivideUp(across, 8) && columns == lines) {
    zeros.push_back({Turned(UnpackedNibbles(given, across, lines, true), lines, across), true});
  }
  return zeros;
}

/// Extremes of a part of a group, and whether it has a number.
struct Part {
  GroupExtremes extremes;
  bool has_one = false;

  void Add(float value) {
    if (value != value) return;
    if (!has_one || value < extremes.least) extremes.least = value;
    if (!has_one || value > extremes.most) extremes.most = value;
    if (!has_one || std::fabs(value) > std::fabs(extremes.first_largest)) {
      extremes.first_largest = value;
    }
    has_one = true;
  }
  /// Of later elements.
  void Add(const Part& later) {
    if (!later.has_one) return;
    if (!has_one) {
      *this = later;
      return;
    }
    extremes.least = std::min(extremes.least, later.extremes.least);
    extremes.most = std::max(extremes.most, later.extremes.most);
    if (std::fabs(later.extremes.first_largest) > std::fabs(extremes.first_largest)) {
      extremes.first_largest = later.extremes.first_largest;
    }
  }
};

/// Of groups that lie one after the other in memory.
std::vector<Part> PartsOfRuns(const LevelGroups& groups, const std::vector<float>& values,
                              const ExecutionContext& context) {
  constexpr int64_t kPiece = 1 << 15;
  const int64_t pieces_per_group = DivideUp(std::min(groups.unit, groups.length), kPiece);
  std::vector<Part> pieces(static_cast<size_t>(groups.count() * pieces_per_group));
  const int64_t grain = std::max<int64_t>(kPiece / std::min(groups.unit, kPiece), 1);
  ParallelFor(context, static_cast<int64_t>(pieces.size()), grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t group = piece / pieces_per_group, j = group % groups.across;
      const int64_t line = group / groups.across * groups.length;
      const int64_t stop = std::min((j + 1) * groups.unit, groups.length);
      const int64_t first = j * groups.unit + piece % pieces_per_group * kPiece;
      for (int64_t i = first; i < std::min(first + kPiece, stop); ++i) {
        pieces[piece].Add(values[line + i]);
      }
    }
  });
  if (pieces_per_group == 1) return pieces;
  std::vector<Part> parts(static_cast<size_t>(groups.count()));
  for (size_t i = 0; i < pieces.size(); ++i) parts[i / pieces_per_group].Add(pieces[i]);
  return parts;
}

/// Of groups of columns.
std::vector<Part> PartsOfColumns(const LevelGroups& groups, const std::vector<float>& values,
                                 const ExecutionContext& context) {
  constexpr int64_t kColumnsAtOnce = 64;
  std::vector<Part> parts(static_cast<size_t>(groups.count()));
  const int64_t chunks = DivideUp(groups.columns, kColumnsAtOnce);
  ParallelFor(context, chunks * groups.across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t j = piece / chunks, first = piece % chunks * kColumnsAtOnce;
      const int64_t row_end = std::min((j + 1) * groups.unit, groups.rows);
      const int64_t stop = std::min(first + kColumnsAtOnce, groups.columns);
      for (int64_t row = j * groups.unit; row < row_end; ++row) {
        for (int64_t column = first; column < stop; ++column) {
          parts[column * groups.across + j].Add(values[row * groups.columns + column]);
        }
      }
    }
  });
  return parts;
}

}  // namespace

std::string LevelReading::Text() const {
  std::string text(DTypeName(element));
  if (is_i32) {
    absl::StrAppend(&text, ", eight to an i32");
  } else if (CodesPerElement(element) == 2) {
    absl::StrAppend(&text,
                    packing == LevelPacking::kOneToAByte  ? ", one to a byte"
                    : packing == LevelPacking::kHighFirst ? ", the even index in the high nibble"
                    : packing == LevelPacking::kHalves    ? ", the second half in the high nibbles"
                                                          : "");
  }
  if (offset != 0) absl::StrAppend(&text, ", stored plus ", offset);
  if (transposed) absl::StrAppend(&text, ", transposed");
  return text;
}

std::vector<LevelReading> LevelReadingsOf(const Tensor& codes, int64_t rows, int64_t columns) {
  std::vector<LevelReading> readings;
  const DType given = codes.dtype();
  const bool is_i32 = given == DType::kI32;
  const bool are_bytes = given == DType::kI8 || given == DType::kU8;
  const int64_t given_columns = codes.columns();
  const auto add = [&](const std::vector<Kind>& kinds, LevelPacking packing, bool transposed,
                       int64_t stride) {
    for (const Kind& kind : kinds) {
      LevelReading reading;
      reading.element = kind.element;
      reading.packing = packing;
      reading.transposed = transposed;
      reading.is_i32 = is_i32;
      reading.offset = kind.offset;
      reading.bytes = codes.as<uint8_t>();
      reading.rows = rows;
      reading.columns = columns;
      reading.stride = stride;
      readings.push_back(reading);
    }
  };
  for (const bool transposed : {false, true}) {
    if (transposed && (rows == 1 || columns == 1)) continue;  // The same bytes.
    const int64_t lines = transposed ? columns : rows, length = transposed ? rows : columns;
    const int64_t per_given = are_bytes ? 1 : is_i32 ? 8 : 2;
    // Libraries give codes that lie row after row other shapes, too.
    const auto fits = [&](int64_t per) {
      if (codes.rows() == lines && given_columns == DivideUp(length, per)) return true;
      const bool is_of_other = codes.rows() == length && given_columns == DivideUp(lines, per);
      return !transposed && !is_of_other && codes.element_count() == DivideUp(rows * columns, per);
    };
    if (are_bytes && fits(1)) {
      add(KindsOfBytes(codes), LevelPacking::kOneToAByte, transposed, length);
    }
    if (given == DType::kI8) continue;
    const int64_t per = given == DType::kU8 ? 2 : per_given;
    if (fits(per)) {
      // Stored lines begin at whole bytes and words, but for codes in another shape.
      const int64_t stride = codes.rows() == lines ? given_columns * per : length;
      add(KindsOfNibbles(given), LevelPacking::kLowFirst, transposed, stride);
      if (!is_i32) add(KindsOfNibbles(given), LevelPacking::kHighFirst, transposed, stride);
    }
    if (!transposed && !is_i32 && codes.element_count() == DivideUp(rows * columns, 2)) {
      add(KindsOfNibbles(given), LevelPacking::kHalves, false, columns);
    }
  }
  return readings;
}

std::string LevelGroups::Text() const {
  const bool is_rowwise = usage == Usage::kRowwise;
  std::string text;
  if (group == kTensorGroup) {
    text = "tensor";
  } else if (is_flat) {
    text = absl::StrCat("run of ", group, " elements");
  } else if (group == kLineGroup) {
    text = is_rowwise ? "row" : "column";
  } else {
    text = absl::StrCat(group, " elements", is_rowwise ? "" : " of a column");
  }
  return absl::StrCat(text, is_turned ? ", scales group after group" : "");
}

absl::StatusOr<std::vector<LevelGroups>> LevelGroupsOf(const ExplainCodesRequest& request,
                                                       bool with_runs) {
  const int64_t rows = request.source.rows(), columns = request.source.columns();
  const Tensor& scales = request.scale_inv;
  const int64_t count = scales.element_count();
  std::vector<LevelGroups> found;
  bool scales_fit = false;
  const auto add = [&](Usage usage, int group, bool is_flat, int64_t lines, int64_t unit) {
    LevelGroups groups;
    groups.usage = usage;
    groups.group = group;
    groups.is_flat = is_flat;
    groups.rows = rows;
    groups.columns = columns;
    groups.lines = lines;
    groups.length = rows * columns / lines;
    groups.unit = unit;
    groups.across = DivideUp(groups.length, unit);
    if (groups.count() != count) return;
    scales_fit = true;
    if (request.zero_point.has_value()) {
      groups.zeros = ZerosOf(request.zero_point, lines, groups.across);
      if (groups.zeros.empty()) return;
    }
    const MayBeTurned turned = TurnedOf(scales, lines, groups.across);
    for (const bool is_turned : {false, true}) {
      if (is_turned ? !turned.may : turned.must) continue;
      groups.is_turned = is_turned;
      groups.scales = ValuesOf(scales, lines, groups.across, is_turned);
      found.push_back(groups);
    }
  };
  const auto add_groups = [&](Usage usage, bool is_flat, int64_t lines) {
    const int64_t length = rows * columns / lines;
    if (count % lines != 0 || count < lines || (count == lines && !is_flat)) return;
    const int64_t across = count / lines;
    std::vector<int64_t> units;
    if (length % across == 0) units.push_back(length / across);
    for (const int64_t unit : kGroupLengths) {
      const bool is_known = std::find(units.begin(), units.end(), unit) != units.end();
      if (!is_known && DivideUp(length, unit) == across) units.push_back(unit);
    }
    for (const int64_t unit : units) {
      // A run that the tensor does not fill is one group, however long.
      if (unit < 2 || unit > kGroupMax) continue;
      add(usage, static_cast<int>(unit), is_flat, lines, unit);
    }
  };
  if (count == 1) add(Usage::kRowwise, kTensorGroup, true, 1, rows * columns);
  if (rows > 1 || count > 1) add(Usage::kRowwise, kLineGroup, false, rows, columns);
  add_groups(Usage::kRowwise, false, rows);
  if (with_runs) add_groups(Usage::kRowwise, true, 1);
  if (rows > 1) {
    if (columns > 1) add(Usage::kColumnwise, kLineGroup, false, columns, rows);
    add_groups(Usage::kColumnwise, false, columns);
  }
  if (!found.empty() || !scales_fit) return found;
  return Refuse("zero_point", TensorText(request.zero_point),
                absl::StrCat("must be one number, or one per group of ", TensorText(scales),
                             ", i32 also eight numbers of four bits each"));
}

std::vector<GroupExtremes> ExtremesOf(const LevelGroups& groups, const std::vector<float>& values,
                                      const ExecutionContext& context) {
  const bool are_columns = groups.usage == Usage::kColumnwise;
  const std::vector<Part> parts =
      are_columns ? PartsOfColumns(groups, values, context) : PartsOfRuns(groups, values, context);
  std::vector<GroupExtremes> extremes;
  extremes.reserve(parts.size());
  for (int64_t group = 0; group < groups.count(); ++group) {
    extremes.push_back(parts[group].extremes);
    const int64_t begin = group % groups.across * groups.unit;
    extremes.back().is_partial = begin + groups.unit > groups.length;
  }
  return extremes;
}

}  // namespace quantgate
