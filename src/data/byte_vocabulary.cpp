// Tokens to text and back.
#include "data/byte_vocabulary.h"

#include <array>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr std::array<std::string_view, 11> kSpecial = {"end", "begin",    "source", "target", "time",    "rtt",
                                                       "ttl", "sequence", "lost",   "size",   "received"};

}  // namespace

ByteVocabulary text_vocabulary() { return ByteVocabulary(std::span(kSpecial).first(1)); }
ByteVocabulary ping_vocabulary() { return ByteVocabulary(kSpecial); }

std::string ByteVocabulary::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t id : tokens) {
    if (id >= 0 && id < 256) {
      text += static_cast<char>(id);
    } else if (id >= 256 && id < size()) {
      text += fmt::format("<{}>", names_[static_cast<std::size_t>(id) - 256]);
    } else {
      text += fmt::format("<{}>", id);
    }
  }
  return text;
}

std::vector<std::int32_t> ByteVocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  while (!text.empty()) {
    std::int32_t id = static_cast<unsigned char>(text.front());
    std::size_t used = 1;
    for (std::size_t i = 0; text.front() == '<' && i < names_.size(); ++i) {
      const std::string_view name = names_[i];
      if (text.size() >= name.size() + 2 && text.substr(1, name.size()) == name && text[name.size() + 1] == '>') {
        id = static_cast<std::int32_t>(256 + i);
        used = name.size() + 2;
        break;
      }
    }
    tokens.push_back(id);
    text.remove_prefix(used);
  }
  return tokens;
}

}  // namespace redline::data
