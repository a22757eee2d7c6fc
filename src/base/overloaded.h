// One function object for std::visit, out of a lambda for each alternative.
#pragma once

namespace redline {

template <class... Ts>
struct overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
overloaded(Ts...) -> overloaded<Ts...>;  // clang 14 does not find it by itself

}  // namespace redline
