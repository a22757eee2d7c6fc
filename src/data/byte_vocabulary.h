// A vocabulary of bytes: ids 0 to 255 are bytes, and special tokens follow. In text for people they are <name>.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redline::data {

constexpr std::int32_t kEndOfDocument = 256;  // <end>, the first special token of every such vocabulary

class ByteVocabulary {
 public:
  explicit constexpr ByteVocabulary(std::span<const std::string_view> special) : names_(special) {}

  std::int64_t size() const { return 256 + static_cast<std::int64_t>(names_.size()); }

  // An id outside the vocabulary (a larger model can sample one) is written as its number: <5000>.
  std::string decode(std::span<const std::int32_t> tokens) const;
  // <name> becomes a special token when there is one of that name, and is plain bytes otherwise.
  std::vector<std::int32_t> encode(std::string_view text) const;

 private:
  std::span<const std::string_view> names_;
};

ByteVocabulary text_vocabulary();  // <end> alone
ByteVocabulary ping_vocabulary();  // of the generated corpus

}  // namespace redline::data
