// Small checks on the objects of a tokenizer.json, all of which end in a UserError that names the file.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace redline::data {

// The member, or null where it is missing.
const io::Json* member_of(const io::Json& object, std::string_view key);
bool is_set(const io::Json& object, std::string_view key);  // there, and not null

void check_object(const io::Json& value, std::string_view what, const std::string& file);
// Refuses members but these: another one would be an unknown feature.
void check_members(const io::Json& object, std::initializer_list<std::string_view> known, std::string_view what,
                   const std::string& file);
std::string type_of(const io::Json& object, std::string_view what, const std::string& file);

}  // namespace redline::data
