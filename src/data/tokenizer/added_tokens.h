// Tokens that are found in the text before it is split: special ones such as <|endoftext|>, and words that were added
// to a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/splitter.h"

namespace redline::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;             // only where no word character touches it
  bool lstrip = false, rstrip = false;  // takes the white space on that side along
  bool normalized = false;              // is looked for in the text after normalisation
};

// A part of a text: an added token, or text between two.
struct AddedPart {
  std::int32_t id;  // -1: text
  std::string_view text;
};

// Finds the longest token at the first place that has one, and goes on behind it.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // contents differ and are not empty

  bool empty() const { return tokens_.empty(); }
  // The parts of `text` in order, into `parts`.
  void split(std::string_view text, std::vector<AddedPart>& parts) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index into tokens_
    std::vector<std::pair<unsigned char, std::int32_t>> children;
  };
  struct Found {
    std::size_t begin, end;
    std::int32_t token;
  };

  bool find(std::string_view text, std::size_t from, Found& found) const;
  bool stands_alone(std::string_view text, const Found& found) const;
  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<std::int32_t, 256> roots_{};  // child of the root for a first byte, -1: none
  int first_bytes_ = 0;                    // how many different ones
  char only_first_byte_ = 0;               // when it is one
  std::shared_ptr<const SplitPattern> word_;
};

}  // namespace redline::data
