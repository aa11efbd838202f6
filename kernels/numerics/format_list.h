// Every floating-point format of this build by name. A new format is its record in float_format.h
// and one line here.
#pragma once

#include <string_view>
#include <tuple>
#include <type_traits>

#include "kernels/numerics/float_format.h"

namespace quantgate {

template <class F>
struct NamedFormat {
  using Format = F;
  std::string_view name;  ///< That of its DType; f4_e2m1 has none alone (kF4E2M1x2 holds two).
};

inline constexpr std::tuple kFormats{
    NamedFormat<Float32>{"f32"},  NamedFormat<BFloat16>{"bf16"}, NamedFormat<Float16>{"f16"},
    NamedFormat<E4M3>{"f8_e4m3"}, NamedFormat<E5M2>{"f8_e5m2"},  NamedFormat<E2M3>{"f6_e2m3"},
    NamedFormat<E3M2>{"f6_e3m2"}, NamedFormat<E2M1>{"f4_e2m1"},
};

/// Calls visit.template operator()<F>() for the format of that name; false when there is none.
template <class Visit>
bool VisitFormat(std::string_view name, Visit&& visit) {
  const auto visit_if_named = [&](const auto& entry) {
    using F = typename std::decay_t<decltype(entry)>::Format;
    if (entry.name == name) visit.template operator()<F>();
    return entry.name == name;
  };
  return std::apply([&](const auto&... entries) { return (visit_if_named(entries) || ...); },
                    kFormats);
}

}  // namespace quantgate
