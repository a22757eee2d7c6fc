// A message is encoded whole, as templates are: its marks are tokens that cut the text, so that messages before and
// behind it change nothing.
#include "data/tokenizer/chat.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "data/batch.h"

namespace redline::data {
namespace {

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
}

const ChatTemplate& Chat::form() const {
  if (!form_)
    throw NoTemplate(fmt::format(
        "there are \"messages\", but {}; set {} to chatml or llama3, as the model knows it, or give \"prompt\" and "
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
std::size_t ChatEncoder::append_behind(const std::string& before, std::vector<std::int32_t>& tokens) {
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
  for (const Message& m : as_written(form, messages)) {
    const std::string header = fmt::format("{}{}{}", form.turn, name_of(m.role), form.header_end);
    text_ = header + m.content + form.turn_end + form.after;
    const std::size_t first = append_behind(header, tokens);
    if (m.role != Role::assistant) continue;
    std::size_t end = tokens.size();  // behind the token that closes the answer
    while (end > first && tokens[end - 1] != *chat_.end_token()) --end;
    mark(tokens, from, first);
    from = end;
  }
  mark(tokens, from, tokens.size());
}

void ChatEncoder::append_pair(const Conversation& pair, std::vector<std::int32_t>& tokens) {
  const std::size_t from = tokens.size();
  text_ = pair.text + pair.completion;
  const std::size_t first = append_behind(pair.text, tokens);
  if (chat_.end_token()) tokens.push_back(*chat_.end_token());
  mark(tokens, from, first);
}

}  // namespace redline::data
