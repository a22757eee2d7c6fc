// Where a tokenizer is looked for, and what is said when it is not there.
#include "infer/model_tokenizer.h"

#include "base/error.h"
#include "base/log.h"
#include "data/from_config.h"

namespace redline::infer {
namespace {

ModelTokenizer open(const std::string& name, std::string_view key) {
  return {name, data::open_tokenizer(name, key), {}};
}

ModelTokenizer own_tokenizer(FileSystem& files, const Checkpoint& c) {
  const std::string folder = c.folder.string();
  if (data::holds_tokenizer(files, c.folder)) return open(folder, folder);
  if (!c.run) return {{}, nullptr, fmt::format("{} holds no tokenizer", folder)};
  try {
    if (const Path of_run = parent_of(parent_of(c.folder)) / "tokenizer"; data::holds_tokenizer(files, of_run))
      return open(of_run.string(), of_run.string());
    if (const auto name = data::data_tokenizer(data::corpus_options(c.run->data))) return open(*name, "data.tokenizer");
  } catch (const UserError& e) {
    fail_user("{}: the tokenizer that the model was trained with is not to be found ({}); name it with --tokenizer",
              folder, e.what());
  }
  return {{}, nullptr, fmt::format("{}: the tokens that the model was trained on stand for no known text", folder)};
}

}  // namespace

ModelTokenizer tokenizer_of(FileSystem& files, const Checkpoint& c, const std::string& given) {
  if (given.empty()) return own_tokenizer(files, c);
  ModelTokenizer named = open(given, "--tokenizer"), own;
  try {
    own = own_tokenizer(files, c);
  } catch (const UserError& e) {  // that is what it is given for
    if (data::holds_tokenizer(files, c.folder))
      log::warn("--tokenizer {} cannot be held against the model's own, which redline cannot read: {}", given,
                e.what());
    return named;
  }
  if (own.tokenizer && !data::covers(*own.tokenizer, *named.tokenizer))
    fail_user(
        "--tokenizer {}: the model of {} was trained with another one ({}), and ids of this one stand for other text "
        "there; leave --tokenizer out",
        given, c.folder.string(), own.tokenizer->name());
  return named;
}

ModelTokenizer require_tokenizer(FileSystem& files, const Checkpoint& c, const std::string& given) {
  ModelTokenizer found = tokenizer_of(files, c, given);
  if (!found.tokenizer)
    fail_user(
        "{}; name one with --tokenizer: a tokenizer.json, a sentencepiece .model, a folder with one, bytes or ping",
        found.why_none);
  data::require_fits(*found.tokenizer, c.model.vocab, c.folder.string());
  return found;
}

}  // namespace redline::infer
