// The interface of patterns that cut a text into pieces. pcre2_split.h compiles any pattern; family_split.h has code of
// our own for those of the known families.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace redline::data {

struct Match {
  std::size_t begin, end;
};

// Finds matches for one thread.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // The first match at or after `from`, which is less than text.size(); {size, size} when there is none. A match is
  // never empty. `text` is valid UTF-8. A UserError when the pattern takes too long or needs too much memory.
  virtual Match next(std::string_view text, std::size_t from) = 0;
};

// Immutable, and shared by threads.
class SplitPattern {
 public:
  virtual ~SplitPattern() = default;
  virtual std::unique_ptr<Splitter> splitter() const = 0;  // lives no longer than the pattern
};

}  // namespace redline::data
