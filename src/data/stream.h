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

// Held out is the last of every 64 documents.
//
// With `skip_bad` malformed documents and what follows the break of an archive are passed over with a warning.
//
// With `chat` lines of JSON may be conversations, of which only the answers are learned.
//
// A document's id tells its file and the offset of its first byte there, or its row.
std::unique_ptr<Corpus> open_stream(const std::vector<std::string>& paths, const std::string& key, InputFormat format,
                                    std::shared_ptr<const Tokenizer> tokenizer, Part part, std::int64_t seed,
                                    bool skip_bad = false, std::shared_ptr<const Chat> chat = nullptr);

// Whether any of these files can only be read as a stream: .jsonl, Parquet, or compressed.
bool needs_stream(const std::vector<std::string>& paths, const std::string& key);

}  // namespace redline::data
