// Lines of conversations are few and short beside those of a corpus: a general parser makes a tree of each, once the
// scanner has found nothing wrong with the line.
#include "data/input/conversation.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/json.h"

namespace redline::data {
namespace {

using io::Json;

constexpr Role kRoles[] = {Role::system, Role::user, Role::assistant};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw JsonProblem{0, fmt::format(format, std::forward<Args>(args)...)};
}

std::string_view kind_of(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_null()) return "null";
  return value.is_boolean() ? "true or false" : value.is_string() ? "a string" : "a number";
}

std::string text_at(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) fail("{}there is no \"{}\"", where, key);
  if (!found->is_string()) fail("{}\"{}\" is {}, not a string", where, key, kind_of(*found));
  return found->get<std::string>();
}

Role role_named(const std::string& name, const std::string& where) {
  const auto found = std::ranges::find(kRoles, name, name_of);
  if (found == std::end(kRoles))
    fail("{}the role {} is none of \"system\", \"user\" and \"assistant\"", where, io::in_quotes(name));
  return *found;
}

void read_messages(const Json& list, std::vector<Message>& messages) {
  if (!list.is_array())
    fail("\"messages\" is {}, not an array of objects with \"role\" and \"content\"", kind_of(list));
  for (const Json& json : list) {
    const std::string where = fmt::format("message {}: ", messages.size() + 1);
    if (!json.is_object()) fail("{}it is {}, not an object with \"role\" and \"content\"", where, kind_of(json));
    Message& message = messages.emplace_back();
    message.role = role_named(text_at(json, "role", where), where);
    message.content = text_at(json, "content", where);
    if (const auto reasoning = json.find("reasoning_content"); reasoning != json.end() && !reasoning->is_null())
      message.reasoning = text_at(json, "reasoning_content", where);
  }
  if (std::ranges::find(messages, Role::assistant, &Message::role) == messages.end())
    fail("the messages hold no answer: none has the role \"assistant\", so that there is nothing to learn");
}

}  // namespace

std::string_view name_of(Role role) {
  return role == Role::system ? "system" : role == Role::user ? "user" : "assistant";
}

void read_conversation(std::string_view json, const JsonTextField& field, Conversation& conversation) {
  check_json_object(json);
  Json object;
  try {
    object = Json::parse(json);
  } catch (const Json::out_of_range&) {
    fail("a number is larger than any that can be read");
  }
  conversation.messages.clear();
  if (const auto messages = object.find("messages"); messages != object.end()) {
    conversation.kind = Conversation::Kind::messages;
    return read_messages(*messages, conversation.messages);
  }
  if (object.contains("completion")) {
    conversation.kind = Conversation::Kind::pair;
    conversation.text = text_at(object, "prompt", "beside \"completion\" ");
    conversation.completion = text_at(object, "completion", "");
    return;
  }
  conversation.kind = Conversation::Kind::text;
  try {
    field.read(json, conversation.text);
  } catch (const JsonProblem& problem) {
    if (!problem.no_field) throw;
    throw JsonProblem{
        problem.at,
        fmt::format("this is no conversation (it has no \"messages\", and no \"completion\"), and {}", problem.reason),
        true};
  }
}

}  // namespace redline::data
