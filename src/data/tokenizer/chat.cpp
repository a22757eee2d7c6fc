// Recognising a template by its marks, the contents of messages as it writes them, and which of their tokens are
// learned.
#include "data/tokenizer/chat.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "data/batch.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr const char* kOldTemplate = "chat_template.json";

// "chat_template": a text, or a list of named ones, of which "default" counts. Empty: there is none.
std::string template_in(const io::Json& config, const std::string& file) {
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
  if (!config.is_object() || found == config.end() || found->is_null()) return {};
  if (!found->is_array()) return io::string_at(config, "chat_template", file);
  for (const io::Json& one : *found)
    if (one.is_object() && one.value("name", io::Json()) == "default") return io::string_at(one, "template", file);
  return {};
}

std::string template_text(const TokenizerFiles& files) {
  if (const auto jinja = files.find(kChatTemplate); jinja != files.end()) return jinja->second;
  for (const char* name : {kTokenizerConfig, kOldTemplate})
    if (const auto file = files.find(name); file != files.end())
      if (std::string text = template_in(io::parse_json(file->second, name), name); !text.empty()) return text;
  return {};
}

std::string named_token(const TokenizerFiles& files, const char* key) {
  const auto file = files.find(kTokenizerConfig);
  if (file == files.end()) return {};
  const io::Json config = io::parse_json(file->second, kTokenizerConfig);
  return config.is_object() ? special_token(config, key, kTokenizerConfig) : std::string();
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Without what joins the texts of a template: '<|im_end|>' + '\n' and <|im_end|>{{ '\n' }} are then the same.
std::string joined(std::string text) {
  std::erase_if(text, [](char c) { return std::string_view(" '\"+{}%-").find(c) != std::string_view::npos; });
  constexpr std::string_view kGeneration = "endgeneration";
  for (std::size_t at; (at = text.find(kGeneration)) != text.npos;) text.erase(at, kGeneration.size());
  return text;
}

// The text of a system prompt that a template has within quotes, whole: one that is written where a conversation begins
// without. Nothing where it has none; why it is not understood in `why_not`.
std::optional<std::string> literal_system(const std::string& text, const ChatTemplate& form, std::string& why_not) {
  const std::string begin = form.turn + "system\\n";
  for (std::size_t at = text.find(begin); at != text.npos; at = text.find(begin, at + 1)) {
    const std::size_t from = at + begin.size(), end = text.find(form.turn_end, from);
    if (end == text.npos) break;
    std::string content = text.substr(from, end - from);
    if (content.find_first_of("'\"{}") != content.npos) continue;  // a variable stands there
    for (std::size_t escape; (escape = content.find("\\n")) != content.npos;) content.replace(escape, 2, "\n");
    if (has(content, "\\")) why_not = "its chat_template writes a system prompt that redline cannot read";
    return content;
  }
  return {};
}

// A mark that only a template of another kind has.
std::string_view other_marks(const std::string& text, bool thinks) {
  for (const std::string_view mark : {"strftime_now", "Cutting Knowledge Date"})
    if (has(text, mark)) return mark;
  if (!thinks && has(text, "think>")) return "think>";
  return {};
}

void trim(std::string& text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  text = first == text.npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}
std::string without_newlines(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

// Qwen3 keeps the thoughts of what answers the last question and drops those of earlier answers. The last message has a
// place for them also where there are none.
void write_thoughts(std::vector<Message>& messages) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const auto is_question = [](const Message& m) {
    const bool of_tool = m.content.starts_with("<tool_response>") && m.content.ends_with("</tool_response>");
    return m.role == Role::user && !of_tool;
  };
  std::size_t question = messages.size() - 1;
  for (std::size_t i = messages.size(); i-- > 0;)
    if (is_question(messages[i])) {
      question = i;
      break;
    }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message& m = messages[i];
    if (m.role != Role::assistant) continue;
    if (const std::size_t close = m.content.find(kClose); m.reasoning.empty() && close != m.content.npos) {
      std::string before = without_newlines(std::string_view(m.content).substr(0, close), false, true);
      if (const std::size_t open = before.rfind(kOpen); open != before.npos) before.erase(0, open + kOpen.size());
      m.reasoning = without_newlines(before, true, false);
      m.content =
          without_newlines(std::string_view(m.content).substr(m.content.rfind(kClose) + kClose.size()), true, false);
    }
    const bool last = i + 1 == messages.size();
    if (i > question && (last || !m.reasoning.empty()))
      m.content = fmt::format("<think>\n{}\n</think>\n\n{}", without_newlines(m.reasoning, true, true),
                              without_newlines(m.content, true, false));
  }
}

// The id of a text that is one token.
std::optional<std::int32_t> id_of(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (ids.size() != 1 || tokenizer.written(ids[0]) != text) return {};
  return ids[0];
}

void mark(std::vector<std::int32_t>& tokens, std::size_t begin, std::size_t end) {
  std::transform(tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.begin() + static_cast<std::ptrdiff_t>(end),
                 tokens.begin() + static_cast<std::ptrdiff_t>(begin), as_context);
}

}  // namespace

ChatTemplate chatml_template() {
  return {"ChatML", {"<|im_start|>", "<|im_end|>"}, "", "<|im_start|>", "\n", "<|im_end|>", "\n"};
}

ChatTemplate llama3_template() {
  return {"Llama-3",
          {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
          "<|begin_of_text|>",
          "<|start_header_id|>",
          "<|end_header_id|>\n\n",
          "<|eot_id|>",
          "",
          true};
}

FoundTemplate find_chat_template(const TokenizerFiles& files) {
  const std::string text = template_text(files);
  if (text.empty()) return {{}, "the tokenizer has no chat_template"};
  const bool chatml = has(text, "<|im_start|>") && has(text, "<|im_end|>");
  const bool llama3 = has(text, "<|start_header_id|>") && has(text, "<|end_header_id|>") && has(text, "<|eot_id|>");
  if (chatml == llama3) return {{}, "the tokenizer's chat_template is neither ChatML's nor Llama-3's"};

  ChatTemplate form = chatml ? chatml_template() : llama3_template();
  const std::string bare = joined(text);
  form.thinks = chatml && has(text, "last_query_index") && has(text, "</think>") && has(text, "loop.last") &&
                !has(bare, "|trim");  // which is how later ones differ
  if (form.thinks) form.name = "Qwen3";
  if (const std::string_view mark = other_marks(text, form.thinks); !mark.empty())
    return {{}, fmt::format("the tokenizer's chat_template has \"{}\", of which redline knows nothing", mark)};
  if (chatml && !has(bare, "<|im_end|>\\n") && !has(bare, "<|im_end|>\n"))
    return {{}, "the tokenizer's chat_template is not quite ChatML's: no new line follows <|im_end|>"};

  form.trims = has(bare, "content]|trim") || has(bare, "content|trim") || has(bare, "content].strip()") ||
               has(bare, "content.strip()");
  const std::string own_begin = has(text, "bos_token") ? named_token(files, "bos_token") : std::string();
  const bool literal_begin = llama3 && has(text, "<|begin_of_text|>");
  if (!literal_begin && own_begin != form.begin) {
    std::erase(form.tokens, form.begin);
    form.begin = own_begin;
    if (!form.begin.empty()) form.tokens.push_back(form.begin);
  }
  std::string why_not;
  if (chatml) form.default_system = literal_system(text, form, why_not);
  if (!why_not.empty()) return {{}, why_not};
  return {form, {}};
}

void keep_chat_template(TokenizerFiles& files, const ChatTemplate& form) {
  if (!template_text(files).empty()) return;
  std::string text = fmt::format(
      "{{% for message in messages %}}{{% if loop.first %}}{{{{ '{}' }}}}{{% endif %}}{{{{ '{}' + message['role'] + "
      "'{}' + "
      "message['content']{} + '{}' }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '{}assistant{}' }}}}{{% "
      "endif %}}",
      form.begin, form.turn, form.header_end, form.trims ? " | trim" : "", form.turn_end + form.after, form.turn,
      form.header_end);
  for (std::size_t at; (at = text.find('\n')) != text.npos;) text.replace(at, 1, "\\n");
  const auto file = files.find(kTokenizerConfig);
  io::Json config = file == files.end() ? io::Json::object() : io::parse_json(file->second, kTokenizerConfig);
  config["chat_template"] = text;
  files[kTokenizerConfig] = config.dump(2, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

std::vector<Message> as_written(const ChatTemplate& form, const std::vector<Message>& messages) {
  std::vector<Message> written;
  if (form.default_system && (messages.empty() || messages[0].role != Role::system))
    written.push_back({Role::system, *form.default_system});
  written.insert(written.end(), messages.begin(), messages.end());
  for (Message& m : written)
    if (form.trims) trim(m.content);
  if (form.thinks) write_thoughts(written);
  return written;
}

Chat::Chat(std::optional<ChatTemplate> form, std::string why_not, const Tokenizer& tokenizer, std::string key)
    : form_(std::move(form)), why_not_(std::move(why_not)), key_(std::move(key)), end_(tokenizer.end_token()) {
  if (!form_) return;
  for (const std::string& token : form_->tokens)
    if (!id_of(tokenizer, token))
      fail_user(
          "{}: {} writes the token {}, which the tokenizer {} does not have; take that of a model which was made for "
          "conversations, or leave {} at auto and give \"prompt\" and \"completion\"",
          key_, form_->name, token, tokenizer.name(), key_);
  end_ = id_of(tokenizer, form_->turn_end);
  beginning_ = tokenizer.encode(form_->begin);
}

const ChatTemplate& Chat::form() const {
  if (!form_)
    throw NoTemplate(fmt::format(
        "there are conversations, but {}; set {} to chatml or llama3, as the model knows it, or give \"prompt\" and "
        "\"completion\"",
        why_not_, key_));
  return *form_;
}

std::uint64_t Chat::fingerprint() const {
  Hasher hasher;
  const auto add = [&](const std::string& text) {
    const std::uint64_t hash = hash64(text);
    hasher.update(std::as_bytes(std::span(&hash, 1)));
  };
  add(fmt::format("chat {}", end_.value_or(kNoTarget)));
  if (!form_) return hasher.digest();
  for (const std::string* part : {&form_->begin, &form_->turn, &form_->header_end, &form_->turn_end, &form_->after})
    add(*part);
  add(fmt::format("{} {}", form_->trims, form_->thinks));
  if (form_->default_system) add(*form_->default_system);
  return hasher.digest();
}

std::shared_ptr<const Chat> open_chat(const std::string& how, const std::string& name, const Tokenizer& tokenizer,
                                      const std::string& key) {
  if (how == "none") return nullptr;
  FoundTemplate found;
  if (how == "auto")
    found = find_chat_template(tokenizer_files(real_files(), name));
  else
    found.form = how == "chatml" ? chatml_template() : llama3_template();
  return std::make_shared<Chat>(std::move(found.form), std::move(found.why_not), tokenizer, key);
}

std::int64_t ChatEncoder::append(const Conversation& conversation, std::vector<std::int32_t>& tokens) {
  bytes_ = 0;
  if (conversation.kind == Conversation::Kind::messages)
    append_messages(conversation.messages, tokens);
  else
    append_pair(conversation, tokens);
  return bytes_;
}

// Adds the tokens of text_, which begins with `before`. Returns where the first token stands that is not of it alone:
// one across the border belongs to what follows, whose first letters it has.
std::size_t ChatEncoder::append_after(const std::string& before, std::vector<std::int32_t>& tokens) {
  const auto from = static_cast<std::ptrdiff_t>(tokens.size());
  before_ids_.clear();
  encoder_.append(before, before_ids_);
  encoder_.append(text_, tokens);
  bytes_ += static_cast<std::int64_t>(text_.size());
  const auto border = std::mismatch(tokens.begin() + from, tokens.end(), before_ids_.begin(), before_ids_.end()).first;
  return static_cast<std::size_t>(border - tokens.begin());
}

void ChatEncoder::append_messages(const std::vector<Message>& messages, std::vector<std::int32_t>& tokens) {
  const ChatTemplate& form = chat_.form();
  std::size_t from = tokens.size();
  if (!form.begin.empty()) encoder_.append(form.begin, tokens);
  begin_with(marks_.begin_conversation, from, tokens);
  for (const Message& m : as_written(form, messages)) {
    const std::string header = fmt::format("{}{}{}", form.turn, name_of(m.role), form.header_end);
    text_ = header + m.content + form.turn_end + form.after;
    const std::size_t first = append_after(header, tokens);
    if (m.role != Role::assistant) continue;
    std::size_t end = tokens.size();  // after the token that closes the answer
    while (end > first && tokens[end - 1] != *chat_.end_token()) --end;
    mark(tokens, from, first);
    from = end;
  }
  mark(tokens, from, tokens.size());
}

void ChatEncoder::append_pair(const Conversation& pair, std::vector<std::int32_t>& tokens) {
  const std::size_t from = tokens.size();
  text_ = pair.text + pair.completion;
  std::size_t first = append_after(pair.text, tokens);
  first += begin_with(marks_.begin, from, tokens);
  if (chat_.end_token()) tokens.push_back(*chat_.end_token());
  mark(tokens, from, first);
}

}  // namespace redline::data
