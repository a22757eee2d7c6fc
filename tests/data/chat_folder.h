// A small tokenizer that knows the marks of conversations, with a template beside it, and files of conversations: for
// tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "io/json.h"
#include "testing/paths.h"

namespace redline::data {

inline constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
inline constexpr const char* kLlama3 =
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = "
    "bos_token + content %}{% endif %}{{ content }}{% endfor %}";

// Writes tokenizer.json and, unless the template is empty, tokenizer_config.json.
inline std::string write_chat_tokenizer(const Path& folder, const std::string& chat_template,
                                        const std::vector<std::string>& specials = {
                                            "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                                            "<|end_header_id|>", "<|eot_id|>"}) {
  io::Json json =
      io::read_json(real_files(), testing::source_folder() + "/tests/fixtures/tokenizers/gpt2.tokenizer.json");
  io::Json token = json["added_tokens"][0];
  for (const std::string& special : specials) {
    token["id"] = token["id"].get<int>() + 1;
    token["content"] = special;
    json["added_tokens"].push_back(token);
  }
  real_files().create_folders(folder);
  real_files().replace(folder / "tokenizer.json", json.dump());
  real_files().remove_all(folder / "tokenizer_config.json");
  if (!chat_template.empty())
    real_files().replace(
        folder / "tokenizer_config.json",
        io::Json{{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|im_end|>"}, {"chat_template", chat_template}}
            .dump());
  return folder.string();
}

// A line of messages: (role, content) each.
inline std::string messages_line(const std::vector<std::pair<std::string, std::string>>& messages) {
  io::Json list = io::Json::array();
  for (const auto& [role, content] : messages) list.push_back({{"role", role}, {"content", content}});
  return io::Json{{"messages", list}}.dump() + "\n";
}

// Conversations of one to three turns of many lengths, every fourth a prompt with its completion and every seventh
// plain text.
inline std::string many_conversations(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string words;
    for (int k = 0; k < 1 + i * 7 % 23; ++k) words += "word " + std::to_string(i * 31 + k) + " ";
    if (i % 7 == 6) {
      lines += io::Json{{"text", "plain " + words}}.dump() + "\n";
    } else if (i % 4 == 3) {
      lines += io::Json{{"prompt", "Q: " + words + "\nA:"}, {"completion", " because " + words}}.dump() + "\n";
    } else {
      std::vector<std::pair<std::string, std::string>> messages;
      if (i % 3 == 0) messages.emplace_back("system", "Be brief.");
      for (int turn = 0; turn <= i % 3; ++turn) {
        messages.emplace_back("user", words);
        messages.emplace_back("assistant", i % 5 == 0 ? "" : "Answer " + std::to_string(turn) + ": " + words);
      }
      lines += messages_line(messages);
    }
  }
  return lines;
}

// The Llama form: a template that puts <|begin_of_text|> before a text, and an end of text after it.
inline std::string write_llama_tokenizer(const Path& where, const std::string& chat_template = "") {
  const std::string folder = write_chat_tokenizer(where, chat_template);
  io::Json json = io::read_json(real_files(), Path(folder) / "tokenizer.json");
  json["post_processor"] = io::Json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
     "pair": [], "special_tokens": {
       "<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [503], "tokens": ["<|begin_of_text|>"]},
       "<|endoftext|>": {"id": "<|endoftext|>", "ids": [500], "tokens": ["<|endoftext|>"]}}}]})");
  real_files().replace(Path(folder) / "tokenizer.json", json.dump());
  return folder;
}

}  // namespace redline::data
