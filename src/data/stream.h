// Documents read from front to back and tokenized on the way (.jsonl, text, both also .gz and .zst; Parquet): training
// with nothing prepared on the disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/input/text_input.h"
#include "data/tokenizer/chat.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

struct StreamSettings {
  std::vector<std::string> paths;
  std::string key;  // names the paths in errors
  InputFormat format = {};
  std::shared_ptr<const Tokenizer> tokenizer;
  Part part = Part::all;  // held out is the last of every 64 documents
  std::uint64_t seed = 0;
  bool skip_bad = false;  // malformed documents, and the rest of a broken archive, are skipped with a warning
  std::shared_ptr<const Chat> chat = nullptr;  // lines of JSON may be conversations; null: all documents are plain
};

// A document's id tells its file and the offset of its first byte there, or its row.
std::unique_ptr<Corpus> open_stream(StreamSettings settings);

// Whether any of these files can only be read as a stream: .jsonl, Parquet, or compressed.
bool needs_stream(const std::vector<std::string>& paths, const std::string& key);

}  // namespace redline::data
