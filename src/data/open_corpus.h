// The factory of corpora: it opens the training and the held-out documents that CorpusOptions name, and says with which
// tokenizer their text is read. data/corpus.h has the interface of its results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/input/text_input.h"
#include "data/shards/token_documents.h"

namespace redline::data {

// How the documents of an entry are read or made.
struct ReadOptions {
  std::string chat = "none";   // none | auto | chatml | llama3
  std::string bos = "auto";    // none | auto | always: the token before a document
  InputFormat input = {};      // of text files and .jsonl
  bool skip_bad = false;       // malformed documents of a stream are skipped with a warning
  std::int64_t documents = 0;  // of "ping"; 0: endless
  std::int64_t row = 0;        // tokens of a row, which the documents of "random:" fill; 0: not known
  std::int64_t seed = 0;
  std::optional<TokenType> token_type = {};  // of token files without a header; empty: as their words show
  std::int64_t vocabulary = 0;               // of the model that reads them; 0: not known
};

// Entries are "ping" (the generated corpus; a file of that name is "./ping"), "random:VOCABULARY", or paths.
struct CorpusOptions {
  std::vector<std::string> train;
  std::vector<double> weights = {};    // one for each entry of `train`, which then is a mixture; empty: it is not
  std::vector<std::string> eval = {};  // empty: a part of `train` is held out, and training never sees it
  std::string tokenizer = {};          // empty: the one that the data bring or imply
  ReadOptions read = {};
  bool roles = true;  // whether names of files in a folder say what they are for (data/roles.h)
};

// Bad paths and empty files are a UserError. A mixture comes as a Mixture (data/mixture.h). Entries of `eval` are paths
// here, without the names of sets.
std::unique_ptr<Corpus> open_training_corpus(const CorpusOptions& options);
std::unique_ptr<Corpus> open_held_out_corpus(const CorpusOptions& options);

// "web=c4.jsonl" is the path c4.jsonl of the set "web"; any other text is a path of the set "eval". Names have letters,
// digits, - and _, so a path with a slash before its first '=' has none.
struct NamedPath {
  std::string name, path;
};
inline constexpr const char* kUnnamedSet = "eval";
NamedPath named_path(const std::string& entry);

// One set for each name among the entries of `eval`, in the order of their first entries. Without `eval` there is one
// set, "eval", a part of the training data.
struct HeldOutSet {
  std::string name;
  CorpusOptions corpus;  // for open_held_out_corpus()
};
std::vector<HeldOutSet> held_out_sets(const CorpusOptions& options);

// Whether held-out documents come from other files than those that training reads: from `eval`, or from files that are
// called val.
bool has_held_out_files(const CorpusOptions& options);

// The paths that training reads of each entry of `train` in turn.
std::vector<std::string> training_paths(const CorpusOptions& options);

// The files of these, without opening them: of prepared folders those with training tokens.
std::vector<Path> training_files(const CorpusOptions& options);

// Sentences about files that are read, held out or left aside by their names, one for each entry where that is so.
std::vector<std::string> roles_in_words(const CorpusOptions& options);

// Whether `train` is text for which nothing names a tokenizer. Data that are missing are a UserError.
bool is_text_of_no_tokenizer(const CorpusOptions& options);

// The vocabulary of the training data: their tokenizer's, or what a header says. Nothing where token files bring
// neither, since their largest id is no vocabulary. Missing data are a UserError.
std::optional<std::int64_t> data_vocabulary(const CorpusOptions& options);

// The tokenizer of the training text, as open_tokenizer() takes it: the one that was asked for, the one that a folder
// was prepared with, or the one that generated data and plain text have. Nothing where tokens stand for no known text.
// Data that are missing, and are needed to know it, are a UserError.
std::optional<std::string> data_tokenizer(const CorpusOptions& options);

// Token ids index the embedding: a corpus whose vocabulary is larger than the model's is a UserError led by `where`.
// `init_from` names the weights that decide the model, where there are some.
void require_vocabulary(const Corpus& corpus, std::int64_t model_vocab, std::string_view where = "",
                        std::string_view init_from = "");

}  // namespace redline::data
