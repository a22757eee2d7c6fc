// Templates are known by their marks, conversations become the tokens of their text, and exactly the answers are
// learned. tests/interop/chat_interop.py holds the tokens against transformers.
#include "data/tokenizer/chat.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "data/batch.h"
#include "data/chat_folder.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

using redline::testing::says;
using Ids = std::vector<std::int32_t>;

FoundTemplate found(const std::string& text) {
  return find_chat_template(
      {{"tokenizer_config.json", io::Json{{"bos_token", "<|begin_of_text|>"}, {"chat_template", text}}.dump()}});
}

TEST(ChatTemplate, IsKnownByItsMarks) {
  EXPECT_EQ(found(kChatMl).form, chatml_template());
  EXPECT_EQ(found(kLlama3).form, llama3_template());
  EXPECT_EQ(found("{{ '<|im_start|>assistant\\n' }}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
                  "{{ '\\n' }}")
                .form,
            chatml_template());
  const FoundTemplate with_system = found(
      "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou help.\\nAlways.<|im_end|>\\n' }}{% endif "
      "%}" +
      std::string(kChatMl));
  ASSERT_TRUE(with_system.form);
  EXPECT_EQ(with_system.form->default_system, "You help.\nAlways.");
  const FoundTemplate trims = found(
      "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + "
      "'<|im_end|>\\n' }}{% endfor %}");
  ASSERT_TRUE(trims.form);
  EXPECT_TRUE(trims.form->trims);
  EXPECT_EQ(trims.form->begin, "<|begin_of_text|>");
  const FoundTemplate qwen3 =
      found(std::string(kChatMl) +
            "{%- set ns = namespace(last_query_index=0) %}{% if loop.last %}<think>{{ '\\n</think>' }}");
  ASSERT_TRUE(qwen3.form);
  EXPECT_TRUE(qwen3.form->thinks);
  EXPECT_EQ(qwen3.form->name, "Qwen3");
}

TEST(ChatTemplate, ComesFromTheFilesThatTransformersReads) {
  const std::string other = "{{ '[INST]' }}";
  const auto config = [](const io::Json& text) { return io::Json{{"chat_template", text}}.dump(); };
  EXPECT_EQ(find_chat_template({{"tokenizer_config.json", config(other)}, {"chat_template.jinja", kChatMl}}).form,
            chatml_template());
  const io::Json named = {{{"name", "tool_use"}, {"template", other}}, {{"name", "default"}, {"template", kChatMl}}};
  EXPECT_EQ(find_chat_template({{"tokenizer_config.json", config(named)}}).form, chatml_template());
}

TEST(ChatTemplate, IsWrittenWhereATokenizerBringsNone) {
  for (const ChatTemplate& form : {chatml_template(), llama3_template()}) {
    TokenizerFiles files = {{"tokenizer_config.json", R"({"bos_token": "<|begin_of_text|>", "n": 1})"}};
    keep_chat_template(files, form);
    EXPECT_EQ(find_chat_template(files).form, form);
    EXPECT_EQ(io::parse_json(files.at("tokenizer_config.json"), "c")["n"], 1);
    const TokenizerFiles before = files;
    keep_chat_template(files, chatml_template());
    EXPECT_EQ(files, before) << "its own stays";
  }
}

TEST(ChatTemplate, OneThatIsNotKnownIsSaidToBe) {
  EXPECT_TRUE(says(find_chat_template({}).why_not, {"no chat_template"}));
  EXPECT_TRUE(says(found("{{ '[INST] ' }}").why_not, {"chat_template", "ChatML", "Llama-3"}));
  EXPECT_TRUE(
      says(found(std::string(kLlama3) + "Cutting Knowledge Date: December").why_not, {"Cutting Knowledge Date"}));
  EXPECT_TRUE(says(found(std::string(kChatMl) + "<think>").why_not, {"think>"}));
  EXPECT_TRUE(says(found("{{ '<|im_start|>' + message.content + '<|im_end|>' }}").why_not, {"no new line"}));
}

class ChatTest : public ::testing::Test {
 protected:
  // The text of all tokens, and of each run of learned ones.
  struct Encoded {
    std::string text;
    std::vector<std::string> learned;
    std::int64_t bytes = 0;
  };
  Encoded encode(const std::string& how, const std::string& line, const std::string& chat_template = "") {
    const std::string name = write_chat_tokenizer(temp_ / "t", chat_template);
    const auto tokenizer = open_tokenizer(name, "data.tokenizer");
    const auto chat = open_chat(how, name, *tokenizer, "data.chat");
    Conversation conversation;
    read_conversation(line, JsonTextField("text"), conversation);
    const auto encoder = tokenizer->encoder();
    const DocumentMarks marks = document_marks(*tokenizer, "auto", "data.bos");
    Ids tokens = {7};  // what stood there stays
    Encoded out;
    out.bytes = ChatEncoder(*chat, marks, *encoder).append(conversation, tokens);
    EXPECT_EQ(tokens[0], 7);
    Ids all, run;
    for (std::size_t i = 1; i <= tokens.size(); ++i) {
      const bool learned = i < tokens.size() && !is_context(tokens[i]);
      if (i < tokens.size()) all.push_back(token_id(tokens[i]));
      if (learned) run.push_back(tokens[i]);
      if (!learned && !run.empty()) out.learned.push_back(tokenizer->decode(std::exchange(run, {})));
    }
    out.text = tokenizer->decode(all);
    EXPECT_EQ(tokenizer->encode(out.text), all) << "the whole text gives other tokens";
    return out;
  }
  redline::testing::TempFolder temp_;
};

const std::string kTwoTurns = messages_line({{"system", "Be brief."},
                                             {"user", "Hello there"},
                                             {"assistant", "Hi!"},
                                             {"user", " And? "},
                                             {"assistant", " No. "}});

TEST_F(ChatTest, OfChatMlTheAnswersAndWhatClosesThemAreLearned) {
  const Encoded e = encode("chatml", kTwoTurns);
  EXPECT_EQ(e.text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
            "Hi!<|im_end|>\n<|im_start|>user\n And? <|im_end|>\n<|im_start|>assistant\n No. <|im_end|>\n");
  EXPECT_EQ(e.learned, (std::vector<std::string>{"Hi!<|im_end|>", " No. <|im_end|>"}));
  EXPECT_EQ(e.bytes, static_cast<std::int64_t>(e.text.size()));
}

TEST_F(ChatTest, Llama3BeginsTheTextAndTrimsContents) {
  for (const char* how : {"llama3", "auto"}) {
    const Encoded e = encode(how, kTwoTurns, kLlama3);
    EXPECT_EQ(e.text,
              "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nHello there<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nHi!<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nNo.<|eot_id|>");
    EXPECT_EQ(e.learned, (std::vector<std::string>{"Hi!<|eot_id|>", "No.<|eot_id|>"}));
  }
}

TEST_F(ChatTest, AnEmptyAnswerIsTheTokenThatClosesIt) {
  const std::string line = messages_line({{"user", "x"}, {"assistant", ""}});
  EXPECT_EQ(encode("chatml", line).learned, std::vector<std::string>{"<|im_end|>"});
  EXPECT_EQ(encode("llama3", line).learned, std::vector<std::string>{"<|eot_id|>"});
}

TEST_F(ChatTest, ATokenAcrossTheBorderBelongsToTheAnswer) {
  const Encoded e = encode("chatml", messages_line({{"user", "x"}, {"assistant", "\n\n\nyes"}}));
  ASSERT_EQ(e.learned.size(), 1u);
  EXPECT_TRUE(e.learned[0].ends_with("\n\n\nyes<|im_end|>")) << e.learned[0];
}

TEST_F(ChatTest, ADefaultSystemPromptStandsWhereTheFirstMessageIsNone) {
  const std::string text = "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}" + std::string(kChatMl);
  const std::string asked = messages_line({{"user", "x"}, {"assistant", "y"}});
  EXPECT_TRUE(
      encode("auto", asked, text).text.starts_with("<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user"));
  EXPECT_TRUE(encode("auto", kTwoTurns, text).text.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n"));
}

TEST_F(ChatTest, Qwen3KeepsThoughtsOfTheLastAnswerOnly) {
  const std::string text = std::string(kChatMl) + "{# last_query_index loop.last <think> </think> #}";
  const Encoded e = encode("auto",
                           messages_line({{"user", "a"},
                                          {"assistant", "<think>\nold\n</think>\n\nb"},
                                          {"user", "c"},
                                          {"assistant", "<think>\nnew\n</think>\n\nd"}}),
                           text);
  EXPECT_EQ(e.learned, (std::vector<std::string>{"b<|im_end|>", "<think>\nnew\n</think>\n\nd<|im_end|>"}));
  const Encoded silent = encode("auto", messages_line({{"user", "a"}, {"assistant", "b"}}), text);
  EXPECT_EQ(silent.learned, std::vector<std::string>{"<think>\n\n</think>\n\nb<|im_end|>"});
}

TEST_F(ChatTest, APromptIsContextAndItsCompletionIsLearned) {
  const std::string line = R"({"prompt": "Two and two? ", "completion": "four"})";
  EXPECT_EQ(encode("auto", line).learned, std::vector<std::string>{"four<|endoftext|>"});
  EXPECT_EQ(encode("auto", line, kChatMl).learned, std::vector<std::string>{"four<|im_end|>"});
  EXPECT_EQ(encode("auto", line, kChatMl).text, "Two and two? four<|im_end|>");
  EXPECT_EQ(encode("auto", R"({"prompt": "", "completion": "four"})").learned,
            std::vector<std::string>{"four<|endoftext|>"});
}

TEST_F(ChatTest, WhatATokenizerLacksIsNamed) {
  const auto error_of = [&](const std::string& how, const std::vector<std::string>& specials) {
    const std::string name = write_chat_tokenizer(temp_ / "t", "", specials);
    const auto tokenizer = open_tokenizer(name, "data.tokenizer");
    return testing::error_of([&] { open_chat(how, name, *tokenizer, "data.chat")->form(); });
  };
  EXPECT_TRUE(says(error_of("chatml", {"<|im_end|>"}), {"data.chat", "<|im_start|>", "tokenizer.json"}));
  EXPECT_TRUE(says(error_of("llama3", {"<|im_end|>"}), {"<|begin_of_text|>"}));
  EXPECT_TRUE(says(error_of("auto", {}), {"chat_template", "data.chat"}));
  EXPECT_EQ(open_chat("none", "bytes", *open_tokenizer("bytes", "k"), "data.chat"), nullptr);
  EXPECT_THROW(open_chat("chatml", "bytes", *open_tokenizer("bytes", "k"), "data.chat"), UserError);
}

TEST_F(ChatTest, AnotherFormIsAnotherFingerprint) {
  const std::string name =
      write_chat_tokenizer(temp_ / "t", std::string(kChatMl) + "{# last_query_index loop.last </think> #}");
  const auto tokenizer = open_tokenizer(name, "data.tokenizer");
  const auto print = [&](const char* how) { return open_chat(how, name, *tokenizer, "k")->fingerprint(); };
  EXPECT_NE(print("chatml"), print("llama3"));
  EXPECT_NE(print("chatml"), print("auto"));
  EXPECT_EQ(print("chatml"), print("chatml"));
}

TEST_F(ChatTest, OtherFormsOfConversationsAreRead) {
  const auto same = [&](const char* line, const std::vector<std::pair<std::string, std::string>>& messages) {
    const Encoded got = encode("chatml", line), wanted = encode("chatml", messages_line(messages));
    EXPECT_EQ(got.text, wanted.text);
    EXPECT_EQ(got.learned, wanted.learned);
    EXPECT_FALSE(got.learned.empty());
  };
  same(R"({"id": "x", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]})",
       {{"user", "Why?"}, {"assistant", "So."}});
  same(R"({"system": "Be brief.", "conversations": [{"from": "user", "value": "Why?"},)"
       R"( {"from": "chatgpt", "value": "So."}]})",
       {{"system", "Be brief."}, {"user", "Why?"}, {"assistant", "So."}});
  same(R"({"conversations": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]})",
       {{"user", "Why?"}, {"assistant", "So."}});
  same(R"({"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "all of it"})",
       {{"user", "Add.\n1 and 2"}, {"assistant", "3"}});
  same(R"({"instruction": "Say hello.", "input": "", "output": "Hello."})",
       {{"user", "Say hello."}, {"assistant", "Hello."}});
}

std::string problem_of(const std::string& line) {
  Conversation conversation;
  try {
    read_conversation(line, JsonTextField("text"), conversation);
  } catch (const JsonProblem& problem) {
    EXPECT_EQ(problem.no_field, line.find("other") != line.npos) << line;
    return problem.reason;
  }
  return "none";
}

TEST(Conversation, WhatIsWrongWithOneIsSaid) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"messages": [{"content": "x"}]})", "message 1: there is no \"role\""},
      {R"({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]})",
       "message 2: the role \"tool\""},
      {R"({"messages": [{"role": "user", "content": "x"}]})", "no answer"},
      {R"({"messages": []})", "no answer"},
      {R"({"messages": [{"role": "assistant", "content": ["x"]}]})", "message 1: \"content\" is an array"},
      {R"({"messages": [{"role": "assistant", "content": null}]})", "message 1: \"content\" is null"},
      {R"({"messages": [{"role": "assistant"}]})", "message 1: there is no \"content\""},
      {R"({"messages": [{"role": 3, "content": "x"}]})", "message 1: \"role\" is a number"},
      {R"({"messages": ["x"]})", "message 1: it is a string"},
      {R"({"messages": {"role": "user"}})", "\"messages\" is an object"},
      {R"({"completion": "x"})", "\"prompt\""},
      {R"({"conversations": [{"from": "human", "value": "x"}]})", "no answer"},
      {R"({"conversations": [{"from": "tool", "value": "x"}]})", "message 1: the role \"tool\" is none of \"human\""},
      {R"({"conversations": [{"from": "gpt", "content": "x"}]})", "message 1: there is no \"value\""},
      {R"({"messages": [{"role": "gpt", "content": "x"}]})", "message 1: the role \"gpt\""},
      {R"({"instruction": "x", "output": 1})", "\"output\" is a number"},
      {R"({"instruction": "x", "input": [], "output": "y"})", "\"input\" is an array"},
      {R"({"prompt": 1, "completion": "x"})", "\"prompt\" is a number"},
      {R"({"prompt": "x", "completion": true})", "\"completion\" is true or false"},
      {R"({"other": 1})", "this is no conversation"},
      {R"({"messages": [)", "the line ends"},
      {R"({"messages": [], "n": 1e999})", "larger than any"},
      {"\"x\"", "an object"},
  };
  for (const auto& [line, words] : cases) EXPECT_TRUE(says(problem_of(line), {words}));
  EXPECT_EQ(problem_of(R"({"text": "x"})"), "none");
  EXPECT_EQ(problem_of(R"({"messages": [{"role": "assistant", "content": "x"}], "prompt": 3})"), "none");
}

}  // namespace
}  // namespace redline::data
