// Turns tokens into text as they come. Text that was given out never changes. A token may end inside a character, and
// text may be the beginning of a stop string: both wait for the tokens that decide it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace redline::infer {

class TextStream {
 public:
  using Decode = std::function<std::string(std::span<const std::int32_t>)>;
  // `before`: the tokens that the text follows; some tokenizers write a token otherwise at the beginning.
  TextStream(Decode decode, std::span<const std::int32_t> before, std::vector<std::string> stops);

  std::string push(std::int32_t token);              // the text that is final now
  std::string finish();                              // the rest, at the end
  bool stopped() const { return stopped_; }          // a stop string has come: the text ends before it
  const std::string& text() const { return text_; }  // all text given out

 private:
  void add(std::string_view more);
  std::string give(std::size_t end);

  Decode decode_;
  std::vector<std::int32_t>
      tokens_;  // the last ones; known_ of them are in the text, and affect how the rest is written
  std::size_t known_;
  std::vector<std::string> stops_;
  std::string text_, waiting_;  // given out; complete characters that are not yet
  bool stopped_ = false;
};

}  // namespace redline::infer
