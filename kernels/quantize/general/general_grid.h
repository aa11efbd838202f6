// How the general path of an engine divides one direction of a tensor: into scale units, each with
// one scale, and codes in the order in which they are stored. For every format, on the CPU and in
// kernels. Private to kernels/quantize.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// One direction of a rows x columns source as `lines` lines of `length` elements: rowwise a line
/// is a row, columnwise a column. A unit has `unit_lines` x `unit_length` elements, fewer at the
/// edges.
struct GeneralGrid {
  int64_t lines = 0, length = 0;
  int64_t line_stride = 0, element_stride = 1;  ///< In the source.
  bool stores_by_line = true;  ///< Codes are [lines][length], else [length][lines].
  int64_t unit_lines = 1, unit_length = 1;
  int64_t units_across = 0;  ///< Along a line.
  int64_t units = 0;
  int64_t scale_line = 0, scale_block = 1;  ///< Strides in the stored scales.
  bool is_replicated = false;               ///< A scale is stored for each line of a unit.

  QG_HOST_DEVICE constexpr int64_t SourceIndex(int64_t line, int64_t element) const {
    return line * line_stride + element * element_stride;
  }
  QG_HOST_DEVICE constexpr int64_t UnitOf(int64_t line, int64_t element) const {
    return line / unit_lines * units_across + element / unit_length;
  }

  /// The elements of a unit.
  struct Unit {
    int64_t line, line_end, begin, end;

    QG_HOST_DEVICE constexpr int64_t count() const { return (line_end - line) * (end - begin); }
  };
  QG_HOST_DEVICE constexpr Unit UnitAt(int64_t unit) const {
    const int64_t line = unit / units_across * unit_lines;
    const int64_t begin = unit % units_across * unit_length;
    return {line, line + unit_lines < lines ? line + unit_lines : lines, begin,
            begin + unit_length < length ? begin + unit_length : length};
  }
  /// The index in the source of element i of a unit, in the order of its lines.
  QG_HOST_DEVICE constexpr int64_t SourceIndexIn(const Unit& unit, int64_t i) const {
    const int64_t width = unit.end - unit.begin;
    return SourceIndex(unit.line + i / width, unit.begin + i % width);
  }

  /// Where the scale of a unit is stored: of its line `line` if scales are replicated, else of its
  /// first.
  QG_HOST_DEVICE constexpr int64_t ScaleIndex(const Unit& unit, int64_t line) const {
    return (is_replicated ? line : unit.line / unit_lines) * scale_line +
           unit.begin / unit_length * scale_block;
  }
  QG_HOST_DEVICE constexpr int64_t ScaleCopies(const Unit& unit) const {
    return is_replicated ? unit.line_end - unit.line : 1;
  }

  /// The place of the code that is stored i-th.
  struct Place {
    int64_t line, element;
  };
  QG_HOST_DEVICE constexpr Place PlaceOf(int64_t i) const {
    return stores_by_line ? Place{i / length, i % length} : Place{i % lines, i / lines};
  }
};

}  // namespace quantgate
