// A scanner that walks the line once. Strings, which are nearly all of the bytes, go eight bytes at a time up to the
// next quote, backslash or control character.
#include "data/input/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr std::size_t kDeepest = 512;
constexpr std::ptrdiff_t kLongLine = 1 << 20;

constexpr std::uint64_t kOnes = 0x0101010101010101u, kHighs = 0x8080808080808080u;

// Whether some byte of the word is a quote, a backslash or below 0x20.
bool ends_a_run(std::uint64_t w) {
  const std::uint64_t quote = w ^ (kOnes * '"'), slash = w ^ (kOnes * '\\');
  return ((((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash) | ((w - kOnes * 0x20) & ~w)) & kHighs) != 0;
}

class Scanner {
 public:
  Scanner(std::string_view json, const std::vector<std::string>& names, std::string& text)
      : begin_(json.data()), at_(json.data()), end_(json.data() + json.size()), names_(names), text_(text) {}

  void line() {
    begin_line();
    if (end_ - begin_ > kLongLine) text_.reserve(static_cast<std::size_t>(end_ - begin_));  // it grows without copies
    object(0);
    end_line();
    if (!found_) throw JsonProblem{0, fmt::format("there is no field {}; {}", wanted(), fields()), true};
  }
  void any_object() {
    begin_line();
    skip_value();
    end_line();
  }

 private:
  // Up to the object that the line must be.
  void begin_line() {
    const std::size_t good = valid_utf8({begin_, static_cast<std::size_t>(end_ - begin_)});
    if (good != static_cast<std::size_t>(end_ - begin_)) fail_at(begin_ + good, "not valid UTF-8");
    text_.clear();
    skip_space();
    if (at_ == end_) fail("an object was expected, the line is empty");
    if (*at_ == '[')
      fail(
          "the line is an array, and must be an object, { ... }; jq -c '.[]' FILE > NEW.jsonl writes its objects a "
          "line each");
    if (*at_ != '{') fail("the line must be an object, { ... }");
    if (std::string_view(at_ + 1, end_).find_first_not_of(" \t\r") == std::string_view::npos)
      fail("an object begins and goes on in other lines; jq -c . FILE > NEW.jsonl writes each on one line");
  }
  void end_line() {
    skip_space();
    if (at_ != end_) fail("something follows the end of the object");
  }

  [[noreturn]] void fail_at(const char* where, std::string reason) const {
    throw JsonProblem{static_cast<std::size_t>(where - begin_), std::move(reason)};
  }
  [[noreturn]] void fail(std::string reason) const { fail_at(at_, std::move(reason)); }
  [[noreturn]] void fail_end() const { fail_at(end_, "the line ends in the middle of a value"); }

  std::string wanted() const {
    std::string path = names_[0];
    for (std::size_t i = 1; i < names_.size(); ++i) path += "." + names_[i];
    return io::in_quotes(path);
  }

  // The fields of the innermost object that was found on the way, by a second walk over the line.
  std::string fields() {
    constexpr std::size_t kShown = 12;
    std::vector<std::pair<std::size_t, std::string>> names;
    names_found_ = &names;
    at_ = begin_;
    skip_space();
    object(0);
    if (names.empty()) return "the object has no fields";
    const std::size_t depth = std::ranges::max_element(names)->first;
    std::string outer, list;
    for (std::size_t i = 0; i < depth; ++i) outer += names_[i] + ".";
    std::erase_if(names, [&](const auto& name) { return name.first != depth; });
    for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
      list += (i > 0 ? ", " : "") + io::in_quotes(outer + names[i].second);
    if (names.size() > kShown) list += fmt::format(" and {} more", names.size() - kShown);
    return fmt::format("the {} {}", names.size() == 1 ? "field is" : "fields are", list);
  }

  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  char peek() {
    skip_space();
    if (at_ == end_) fail_end();
    return *at_;
  }

  // An object on the way to the field: `depth` names have matched. Recursion is as deep as the path of the field.
  void object(std::size_t depth) {
    ++at_;  // {
    if (peek() == '}') {
      ++at_;
      return;
    }
    bool here = false;
    for (;;) {
      if (peek() != '"') fail("a name in quotes was expected");
      const char* const name_begin = at_;
      const bool matches = name_is(names_[depth]);
      if (names_found_) names_found_->emplace_back(depth, std::string(name_begin + 1, at_ - 1));
      if (peek() != ':') fail("a colon was expected after the name");
      ++at_;
      peek();
      if (matches) {
        if (here) fail_at(name_begin, fmt::format("the field {} is there twice", io::in_quotes(names_[depth])));
        here = true;
        if (depth + 1 < names_.size()) {
          if (*at_ == '{') {
            object(depth + 1);
          } else {
            skip_value();
          }
        } else {
          if (*at_ != '"') fail(fmt::format("the field {} is {}, not a string", wanted(), kind()));
          string(&text_);
          found_ = true;
        }
      } else {
        skip_value();
      }
      const char next = peek();
      ++at_;
      if (next == '}') return;
      if (next != ',') fail_at(at_ - 1, "a comma or } was expected");
    }
  }

  std::string_view kind() const {
    switch (*at_) {
      case '{': return "an object";
      case '[': return "an array";
      case 't':
      case 'f': return "true or false";
      case 'n': return "null";
      default: return "a number";
    }
  }

  bool name_is(const std::string& name) {
    const char* const start = at_ + 1;
    name_.clear();
    const bool plain = string(nullptr);
    const std::string_view raw(start, static_cast<std::size_t>(at_ - 1 - start));
    if (plain) return raw == name;
    at_ = start - 1;
    string(&name_);
    return name_ == name;
  }

  // Any value, of any depth, without recursion: `open_` is what is still to be closed.
  void skip_value() {
    open_.clear();
    for (;;) {
      switch (peek()) {
        case '{':
          ++at_;
          enter('}');
          if (peek() != '}') {
            name_and_colon();
            continue;
          }
          break;
        case '[':
          ++at_;
          enter(']');
          if (peek() != ']') continue;
          break;
        case '"': string(nullptr); break;
        case 't': literal("true"); break;
        case 'f': literal("false"); break;
        case 'n': literal("null"); break;
        default: number(); break;
      }
      // A value has ended: close what ends with it, then go on to the next one.
      for (;;) {
        if (open_.empty()) return;
        const char next = peek();
        if (next == open_.back()) {
          ++at_;
          open_.pop_back();
          continue;
        }
        if (next != ',') fail(fmt::format("a comma or {} was expected", open_.back()));
        ++at_;
        if (open_.back() == '}') name_and_colon();
        break;
      }
    }
  }
  void enter(char close) {
    if (open_.size() == kDeepest) fail(fmt::format("nested deeper than {}", kDeepest));
    open_.push_back(close);
  }
  void name_and_colon() {
    if (peek() != '"') fail("a name in quotes was expected");
    string(nullptr);
    if (peek() != ':') fail("a colon was expected after the name");
    ++at_;
  }

  void literal(std::string_view word) {
    if (static_cast<std::size_t>(end_ - at_) < word.size() || std::memcmp(at_, word.data(), word.size()) != 0)
      fail("a value was expected");
    at_ += word.size();
  }

  void number() {
    const auto digit = [&] { return at_ != end_ && *at_ >= '0' && *at_ <= '9'; };
    const auto digits = [&] {
      if (!digit()) fail("a digit was expected");
      while (digit()) ++at_;
    };
    const bool negative = *at_ == '-';
    if (negative) ++at_;
    if (!digit()) fail(negative ? "a digit was expected" : "a value was expected");
    if (*at_ == '0') {
      ++at_;
      if (digit()) fail("a number must not begin with 0");
    } else {
      digits();
    }
    if (at_ != end_ && *at_ == '.') {
      ++at_;
      digits();
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      digits();
    }
  }

  // The string that starts at the quote; appended to `to` when that is not null. True when it held no escape.
  bool string(std::string* to) {
    ++at_;
    bool plain = true;
    for (;;) {
      const char* const run = at_;
      std::uint64_t w;
      while (end_ - at_ >= 8 && (std::memcpy(&w, at_, 8), !ends_a_run(w))) at_ += 8;
      while (at_ != end_ && *at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= 0x20) ++at_;
      if (to) to->append(run, at_);
      if (at_ == end_) fail_at(end_, "the line ends inside a string");
      if (*at_ == '"') {
        ++at_;
        return plain;
      }
      if (*at_ != '\\') fail("a control character stands in a string; it must be escaped");
      plain = false;
      escape(to);
    }
  }

  void escape(std::string* to) {
    const char* const start = at_++;
    if (at_ == end_) fail_at(end_, "the line ends inside a string");
    const char c = *at_++;
    char out = 0;
    switch (c) {
      case '"':
      case '\\':
      case '/': out = c; break;
      case 'b': out = '\b'; break;
      case 'f': out = '\f'; break;
      case 'n': out = '\n'; break;
      case 'r': out = '\r'; break;
      case 't': out = '\t'; break;
      case 'u': return unicode(start, to);
      default: fail_at(start, "an unknown escape");
    }
    if (to) to->push_back(out);
  }

  void unicode(const char* start, std::string* to) {
    std::uint32_t code = hex4();
    if (code >= 0xDC00 && code <= 0xDFFF) fail_at(start, "the second half of a surrogate pair without the first");
    if (code >= 0xD800 && code <= 0xDBFF) {
      if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u')
        fail_at(start, "the first half of a surrogate pair without the second");
      at_ += 2;
      const std::uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail_at(start, "the first half of a surrogate pair without the second");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (!to) return;
    append_utf8(code, *to);
  }

  std::uint32_t hex4() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ == end_) fail_at(end_, "the line ends inside a string");
      const char c = *at_;
      const bool decimal = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
      if (!decimal && !lower && !upper) fail("four hexadecimal digits were expected");
      code = code << 4 | static_cast<std::uint32_t>(decimal ? c - '0' : (lower ? c - 'a' : c - 'A') + 10);
    }
    return code;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
  const std::vector<std::string>& names_;
  std::string& text_;
  std::string name_, open_;
  bool found_ = false;
  std::vector<std::pair<std::size_t, std::string>>* names_found_ = nullptr;  // depth and name, where they are wanted
};

}  // namespace

JsonTextField::JsonTextField(std::string_view path) {
  for (;;) {
    const std::size_t dot = path.find('.');
    names_.emplace_back(path.substr(0, dot));
    if (dot == path.npos) return;
    path.remove_prefix(dot + 1);
  }
}

void check_json_object(std::string_view json) {
  std::string unused;
  Scanner(json, {}, unused).any_object();
}

void JsonTextField::read(std::string_view json, std::string& text) const { Scanner(json, names_, text).line(); }

namespace {

// Lines of conversations are few and short beside those of a corpus: a general parser makes a tree of each, once the
// scanner has found nothing wrong with the line.

using io::Json;

constexpr const char* kShareGpt = "conversations";

constexpr Role kRoles[] = {Role::system, Role::user, Role::assistant};

template <class... Args>
[[noreturn]] void refuse_line(fmt::format_string<Args...> format, Args&&... args) {
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
  if (found == object.end()) refuse_line("{}there is no \"{}\"", where, key);
  if (!found->is_string()) refuse_line("{}\"{}\" is {}, not a string", where, key, kind_of(*found));
  return found->get<std::string>();
}

// ShareGPT's names of the roles beside ours.
constexpr std::pair<std::string_view, Role> kOtherNames[] = {
    {"human", Role::user}, {"gpt", Role::assistant}, {"chatgpt", Role::assistant}, {"model", Role::assistant}};

Role role_named(const std::string& name, bool share_gpt, const std::string& where) {
  const auto found = std::ranges::find(kRoles, name, name_of);
  if (found != std::end(kRoles)) return *found;
  const auto other = std::ranges::find(kOtherNames, std::string_view(name), &std::pair<std::string_view, Role>::first);
  if (share_gpt && other != std::end(kOtherNames)) return other->second;
  refuse_line("{}the role {} is none of {}\"system\", \"user\" and \"assistant\"", where, io::in_quotes(name),
              share_gpt ? "\"human\", \"gpt\", " : "");
}

// `key` is "messages", or "conversations" in the form of ShareGPT. There a message may say "from" and "value".
void read_messages(const Json& list, const char* key, std::vector<Message>& messages) {
  if (!list.is_array())
    refuse_line("\"{}\" is {}, not an array of objects with \"role\" and \"content\"", key, kind_of(list));
  const bool share_gpt = std::string_view(key) == kShareGpt;
  for (const Json& json : list) {
    const std::string where = fmt::format("message {}: ", messages.size() + 1);
    if (!json.is_object()) refuse_line("{}it is {}, not an object with \"role\" and \"content\"", where, kind_of(json));
    Message& message = messages.emplace_back();
    const bool from = share_gpt && json.contains("from");
    message.role = role_named(text_at(json, from ? "from" : "role", where), share_gpt, where);
    message.content = text_at(json, from ? "value" : "content", where);
    if (const auto reasoning = json.find("reasoning_content"); reasoning != json.end() && !reasoning->is_null())
      message.reasoning = text_at(json, "reasoning_content", where);
  }
  if (std::ranges::find(messages, Role::assistant, &Message::role) == messages.end())
    refuse_line("the messages hold no answer: none has the role \"assistant\", so that there is nothing to learn");
}

// A system prompt may stand beside the messages, and not among them.
void add_system(const Json& object, std::vector<Message>& messages) {
  const auto system = object.find("system");
  if (system == object.end() || system->is_null()) return;
  if (std::string text = text_at(object, "system", ""); !text.empty()) messages.push_back({Role::system, text});
}

// A question is the instruction and, on the next line, its input.
void read_alpaca(const Json& object, std::vector<Message>& messages) {
  add_system(object, messages);
  std::string question = text_at(object, "instruction", "");
  if (const auto input = object.find("input"); input != object.end() && !input->is_null())
    if (const std::string more = text_at(object, "input", ""); !more.empty()) question += "\n" + more;
  messages.push_back({Role::user, question});
  messages.push_back({Role::assistant, text_at(object, "output", "")});
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
    refuse_line("a number is larger than any that can be read");
  }
  conversation.messages.clear();
  conversation.kind = Conversation::Kind::messages;
  if (const auto messages = object.find("messages"); messages != object.end())
    return read_messages(*messages, "messages", conversation.messages);
  if (object.contains("completion")) {
    conversation.kind = Conversation::Kind::pair;
    conversation.text = text_at(object, "prompt", "beside \"completion\" ");
    conversation.completion = text_at(object, "completion", "");
    return;
  }
  if (const auto messages = object.find(kShareGpt); messages != object.end()) {
    add_system(object, conversation.messages);
    return read_messages(*messages, kShareGpt, conversation.messages);
  }
  if (object.contains("instruction") && object.contains("output")) return read_alpaca(object, conversation.messages);
  conversation.kind = Conversation::Kind::text;
  try {
    field.read(json, conversation.text);
  } catch (const JsonProblem& problem) {
    if (!problem.no_field) throw;
    throw JsonProblem{
        problem.at,
        fmt::format("this is no conversation (it has no \"messages\", no \"conversations\", no \"completion\", and no "
                    "\"instruction\" with its \"output\"), and {}",
                    problem.reason),
        true};
  }
}

}  // namespace redline::data
