// Finds the files of a tokenizer, and writes those that are missing.
#include "data/tokenizer/tokenizer_files.h"

#include "base/error.h"
#include "data/tokenizer/built_in.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr const char *kJson = "tokenizer.json", *kModel = "tokenizer.model", *kConfig = "tokenizer_config.json";
constexpr const char* kSpecialTokens = "special_tokens_map.json";  // of older tokenizers: what kConfig says as well
constexpr const char* kCompanions[] = {kConfig,      kSpecialTokens,        "added_tokens.json", "vocab.json",
                                       "merges.txt", "chat_template.jinja", "chat_template.json"};

std::string text_of(const io::Json& json) {  // a token may end inside a character
  return json.dump(2, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

io::Json read_object(const TokenizerFiles& files, const char* name) {
  const auto it = files.find(name);
  io::Json json = it == files.end() ? io::Json::object() : io::parse_json(it->second, name);
  if (!json.is_object()) fail_user("the tokenizer's {} must hold an object", name);
  return json;
}

}  // namespace

TokenizerFiles tokenizer_files(FileSystem& files, const std::string& name) {
  const Path file = tokenizer_file(name);
  if (file.empty()) return {{kJson, built_in_tokenizer_json(name)}};
  const char* own_name = file.extension() == ".model" ? kModel : kJson;
  TokenizerFiles found = {{own_name, files.read(file)}};
  if (file.filename() != own_name) return found;  // what lies beside it may be another's
  for (const char* other : {kJson, kModel})
    if (const Path path = parent_of(file) / other; files.exists(path)) found.emplace(other, files.read(path));
  for (const char* companion : kCompanions)
    if (const Path path = parent_of(file) / companion; files.exists(path)) found.emplace(companion, files.read(path));
  return found;
}

void describe_use(TokenizerFiles& files, const Tokenizer* tokenizer, const TokenizerUse& use) {
  io::Json config = read_object(files, kConfig);
  // Without a class transformers takes that of the model's family, which would put its own way of splitting text in
  // place of the file's.
  if (!config.contains("tokenizer_class")) {
    const bool pieces = !files.contains(kJson);
    config["tokenizer_class"] = pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast";
    config["clean_up_tokenization_spaces"] = false;
    if (pieces) config["legacy"] = false;
    // As redline gives text to models. Readers that are not told may put a token of their choice before it: llama.cpp
    // does so where text is split as LLaMA-3 does.
    if (pieces || (tokenizer && tokenizer->beginning().empty())) config["add_bos_token"] = false;
    // These take the name of a special token in a text for its characters.
    if (pieces || (tokenizer && tokenizer->name() == "bytes")) config["split_special_tokens"] = true;
  }
  if (use.max_length > 0) config["model_max_length"] = use.max_length;
  std::map<std::string, std::string> tokens;
  if (tokenizer && use.end) tokens["eos_token"] = tokenizer->written(*use.end);
  if (tokenizer && use.pad >= 0)
    tokens["pad_token"] = tokenizer->written(static_cast<std::int32_t>(use.pad));
  else if (tokenizer && use.end && config.value("pad_token", io::Json()).is_null())
    tokens["pad_token"] = tokens["eos_token"];
  for (const auto& [key, text] : tokens) config[key] = text;
  files[kConfig] = text_of(config);
  if (!files.contains(kSpecialTokens)) return;
  io::Json specials = read_object(files, kSpecialTokens);
  for (const auto& [key, text] : tokens) specials[key] = text;
  files[kSpecialTokens] = text_of(specials);
}

}  // namespace redline::data
