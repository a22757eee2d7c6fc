// Tokens of bytes and roles to text and back.
#include "data/byte_roles.h"

#include <array>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr std::array<std::string_view, 11> kRoles = {"end", "begin",    "source", "target", "time",    "rtt",
                                                     "ttl", "sequence", "lost",   "size",   "received"};

}  // namespace

ByteRoles text_roles() { return ByteRoles(std::span(kRoles).first(1)); }
ByteRoles ping_roles() { return ByteRoles(kRoles); }

std::string ByteRoles::decode(std::span<const std::int32_t> tokens) const {
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

std::vector<std::int32_t> ByteRoles::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  while (!text.empty()) {
    std::int32_t id = static_cast<unsigned char>(text.front());
    std::size_t used = 1;
    for (std::size_t role = 0; text.front() == '<' && role < names_.size(); ++role) {
      const std::string_view name = names_[role];
      if (text.size() >= name.size() + 2 && text.substr(1, name.size()) == name && text[name.size() + 1] == '>') {
        id = static_cast<std::int32_t>(256 + role);
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
