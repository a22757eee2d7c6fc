// Bytes and named roles as tokens: ids 0 to 255 are bytes, then come the roles, written as <name>
// where people read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redline::data {

constexpr std::int32_t kEndOfDocument = 256;  // the first role of every such vocabulary: <end>

class ByteRoles {
 public:
  explicit constexpr ByteRoles(std::span<const std::string_view> names) : names_(names) {}

  std::int64_t size() const { return 256 + static_cast<std::int64_t>(names_.size()); }

  // An id that no role has (a larger model can sample one) is written as its number: <5000>.
  std::string decode(std::span<const std::int32_t> tokens) const;
  // <name> becomes a role when there is one of that name, and is plain bytes otherwise.
  std::vector<std::int32_t> encode(std::string_view text) const;

 private:
  std::span<const std::string_view> names_;
};

ByteRoles text_roles();  // <end> alone
ByteRoles ping_roles();  // those of the generated corpus

}  // namespace redline::data
