// The four kinds of characters that the split patterns of the known families tell apart.
#pragma once

#include <cstdint>
#include <memory>

namespace redline::data {

enum class CharClass : std::uint8_t { other, letter, number, space };  // [^\s\p{L}\p{N}], \p{L}, \p{N}, \s

// White space as Unicode has it; the same in Oniguruma's \s and in Rust's.
bool is_space(std::uint32_t code_point);

class CharClasses {
 public:
  static const CharClasses& get();  // made on first use, in under a millisecond

  CharClass of(std::uint32_t code_point) const { return code_point < kSize ? classes_[code_point] : CharClass::other; }

 private:
  static constexpr std::uint32_t kSize = 0x33000;  // past the last letter
  CharClasses();
  std::unique_ptr<CharClass[]> classes_;
};

}  // namespace redline::data
