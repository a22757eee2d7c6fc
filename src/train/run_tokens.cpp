// Reads the tokenizer's files where the data say, and writes them into the run's folder.
#include "train/run_tokens.h"

#include <algorithm>
#include <filesystem>

#include "data/from_config.h"
#include "data/tokenizer/chat_template.h"

namespace redline::train {

RunTokens run_tokens(FileSystem& files, const config::Config& config, const data::Corpus& documents) {
  RunTokens tokens{documents.end_token(), {}};
  const std::optional<std::string> name = data::data_tokenizer(data::corpus_options(config.data));
  if (!name) return tokens;
  const auto tokenizer = data::open_tokenizer(*name, "data.tokenizer");
  tokens.files = data::tokenizer_files(files, *name);
  data::describe_use(tokens.files, tokenizer.get(),
                     {tokens.end, config.model.pad_token, std::max(config.model.max_positions, config.train.seq_len)});
  if (config.data.chat == "chatml" || config.data.chat == "llama3")  // so that others ask the model as it was taught
    data::keep_chat_template(tokens.files,
                             config.data.chat == "chatml" ? data::chatml_template() : data::llama3_template());
  return tokens;
}

void keep_tokenizer(FileSystem& files, const Path& run, const data::TokenizerFiles& tokenizer) {
  const Path folder = run / "tokenizer";
  if (!tokenizer.empty()) files.create_folders(folder);
  for (const auto& [name, text] : tokenizer)
    if (!files.exists(folder / name) || files.read(folder / name) != text) files.replace(folder / name, text);
  std::error_code ignored;
  for (const std::string& name : files.list(folder))  // of another tokenizer
    if (!tokenizer.contains(name) && std::filesystem::is_regular_file(folder / name, ignored))
      files.remove_all(folder / name);
}

}  // namespace redline::train
