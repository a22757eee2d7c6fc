// See the header.
#include "data/tokenizer/json_checks.h"

#include <algorithm>

#include "base/error.h"
#include "io/json.h"

namespace redline::data {

const io::Json* member_of(const io::Json& object, std::string_view key) {
  for (const auto& [name, value] : object.get_ref<const io::Json::object_t&>())
    if (name == key) return &value;
  return nullptr;
}

bool is_set(const io::Json& object, std::string_view key) {
  const io::Json* value = member_of(object, key);
  return value != nullptr && !value->is_null();
}

void check_object(const io::Json& value, std::string_view what, const std::string& file) {
  if (!value.is_object()) fail_user("{}: {} must be an object, not {}", file, what, value.type_name());
}

void check_members(const io::Json& object, std::initializer_list<std::string_view> known, std::string_view what,
                   const std::string& file) {
  for (const auto& [name, value] : object.get_ref<const io::Json::object_t&>())
    if (std::ranges::find(known, name) == known.end())
      fail_user("{}: {} has the setting {}, which redline does not support", file, what, io::in_quotes(name));
}

std::string type_of(const io::Json& object, std::string_view what, const std::string& file) {
  check_object(object, what, file);
  const io::Json* type = member_of(object, "type");
  if (type == nullptr || !type->is_string()) fail_user("{}: {} does not say its \"type\"", file, what);
  return type->get<std::string>();
}

}  // namespace redline::data
