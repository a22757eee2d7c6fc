// Which files belong to a tokenizer, and what is written where one is missing.
#include "infer/tokenizer_files.h"

#include "base/error.h"
#include "data/source.h"
#include "io/json.h"

namespace redline::infer {
namespace {

constexpr const char *kJson = "tokenizer.json", *kModel = "tokenizer.model", *kConfig = "tokenizer_config.json";
constexpr const char* kCompanions[] = {kConfig,      "special_tokens_map.json", "added_tokens.json", "vocab.json",
                                       "merges.txt", "chat_template.jinja",     "chat_template.json"};

void add_if_there(FileSystem& files, const Path& folder, const char* name, TokenizerFiles& out) {
  if (files.exists(folder / name)) out.files.emplace(name, folder / name);
}

// The file itself under the name that transformers looks for; what describes it only when it has that name already.
void add_file(FileSystem& files, const Path& file, TokenizerFiles& out) {
  const char* name = file.extension() == ".model" ? kModel : kJson;
  out.files.emplace(name, file);
  if (file.filename() != name) return;
  for (const char* companion : kCompanions) add_if_there(files, file.parent_path(), companion, out);
}

}  // namespace

TokenizerFiles find_tokenizer_files(FileSystem& files, const Checkpoint& checkpoint) {
  TokenizerFiles out;
  std::string name = checkpoint.folder.string();
  try {
    if (data::holds_tokenizer(files, checkpoint.folder)) {
      for (const char* file : {kJson, kModel}) add_if_there(files, checkpoint.folder, file, out);
      for (const char* file : kCompanions) add_if_there(files, checkpoint.folder, file, out);
    } else if (checkpoint.run) {
      name = data::data_tokenizer(checkpoint.run->data);
      if (const Path file = data::tokenizer_file(name); !file.empty())
        add_file(files, file, out);
      else
        out.note = fmt::format("the tokenizer \"{}\" is built in and has no files", name);
    } else {
      out.note = "there is no tokenizer beside the weights";
      return out;
    }
    out.tokenizer = data::open_tokenizer(name, "the tokenizer");
  } catch (const UserError& e) {
    out.note = out.files.empty()
                   ? fmt::format("no tokenizer: {}", e.what())
                   : fmt::format("the tokenizer's files are copied, but redline cannot read them: {}", e.what());
  }
  if (out.tokenizer) data::require_fits(*out.tokenizer, checkpoint.model.vocab, checkpoint.folder.string());
  return out;
}

std::map<std::string, std::uint64_t> copy_tokenizer(const TokenizerFiles& tokenizer, io::NewFolder& folder) {
  std::map<std::string, std::uint64_t> hashes;
  for (const auto& [name, from] : tokenizer.files) hashes[name] = folder.copy(from, name);
  if (!hashes.contains(kJson) || hashes.contains(kConfig)) return hashes;
  // Without it transformers takes the class of the model's family, which would put its own way of splitting text in place
  // of the file's.
  io::Json config = {{"clean_up_tokenization_spaces", false}, {"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (tokenizer.tokenizer)
    if (const auto end = tokenizer.tokenizer->end_token())
      config["eos_token"] = tokenizer.tokenizer->decode(std::span(&*end, 1));
  hashes[kConfig] = folder.write(kConfig, config.dump(2) + "\n");
  return hashes;
}

}  // namespace redline::infer
