// Every floating-point format of this build, and the one way from a format that is known at run
// time to its type. A new format is its record (float_format.h, or here where no algorithm names
// it) and its place in ElementFormats.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/numerics/float_format.h"

namespace quantgate {

/// A list of formats. A kernel that is compiled for some formats only names them in such a list.
template <class... F>
struct FormatTypes {};

/// Formats whose tensors hold one code per element. These can be cast, generated and compared.
using ElementFormats =
    FormatTypes<Float32, BFloat16, Float16, E4M3, E5M2, E2M3, E3M2, E4M3Fnuz, E5M2Fnuz>;

namespace format_list_internal {

template <class List, class... F>
struct Appended;
template <class... Listed, class... F>
struct Appended<FormatTypes<Listed...>, F...> {
  using Types = FormatTypes<Listed..., F...>;
};

template <class F, class... Listed>
constexpr uint8_t PlaceOf(FormatTypes<Listed...>) {
  static_assert((std::is_same_v<F, Listed> || ...), "not in the list of all formats");
  uint8_t place = 0;
  bool found = false;
  ((found = found || std::is_same_v<F, Listed>, place += found ? 0 : 1), ...);
  return place;
}

}  // namespace format_list_internal

/// All formats: these and E2M1, whose tensors hold two codes per byte.
using AllFormats = format_list_internal::Appended<ElementFormats, E2M1>::Types;

/// A format at run time: its place in AllFormats.
enum class FormatId : uint8_t {};
inline constexpr FormatId kNoFormat{0xFF};
template <class F>
inline constexpr FormatId kFormatId{format_list_internal::PlaceOf<F>(AllFormats{})};

/// Calls visit.template operator()<F>() for the format if the list has it, else for the last of the
/// list.
template <class First, class... Rest, class Visit>
constexpr auto VisitFormatIn(FormatTypes<First, Rest...>, FormatId format, const Visit& visit) {
  if constexpr (sizeof...(Rest) > 0) {
    if (format != kFormatId<First>) return VisitFormatIn(FormatTypes<Rest...>{}, format, visit);
  }
  return visit.template operator()<First>();
}

/// Calls visit.template operator()<F>() for the format if the list has it, else otherwise().
template <class First, class... Rest, class Visit, class Otherwise>
constexpr auto VisitFormatOr(FormatTypes<First, Rest...>, FormatId format, Visit&& visit,
                             Otherwise&& otherwise) {
  if (format == kFormatId<First>) return visit.template operator()<First>();
  if constexpr (sizeof...(Rest) == 0) {
    return otherwise();
  } else {
    return VisitFormatOr(FormatTypes<Rest...>{}, format, visit, otherwise);
  }
}

/// Calls visit.template operator()<F>() for the format; false if the list does not have it.
template <class Formats, class Visit>
constexpr bool VisitFormat(FormatId format, Visit&& visit) {
  const auto visit_it = [&]<class F>() {
    visit.template operator()<F>();
    return true;
  };
  return VisitFormatOr(Formats{}, format, visit_it, [] { return false; });
}

}  // namespace quantgate
