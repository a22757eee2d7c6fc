// Text to tokens on all cores, in the order of the text. One thread finds documents, workers parse and encode them, and
// next() gives them as if one thread had done it all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/input/text_input.h"
#include "data/tokenizer/chat.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// Some documents in order. One that could not be read is there too, with the sentence that says why.
struct EncodedBlock {
  struct Document {
    std::int64_t end = 0;         // in ids; it begins where the one before ends. Nothing in between: no text
    std::int64_t text_bytes = 0;  // that the tokenizer saw
    std::string problem = {};     // empty: none
    bool no_field = false;        // the problem is NoSuchField
  };
  std::vector<std::int32_t> ids;  // of conversations also context (data/batch.h)
  std::vector<Document> documents;
  std::string file_problem = {};  // the rest of a file could not be read: no documents
};

class EncodePipeline {
 public:
  // `end_token` closes every plain document that has a token; kNoTarget: none does. `chat`: how conversations are
  // written; null: there are none. Input, tokenizer and chat outlive it.
  EncodePipeline(TextInput& input, const Tokenizer& tokenizer, std::int32_t end_token, const Chat* chat, int threads);
  ~EncodePipeline();  // may be called at any time; waits for the threads

  enum class Got { block, nothing_yet, end };
  // The next block; nothing_yet after a tenth of a second, so that the caller can do other things. Errors that are no
  // document's fault (the disk, memory, a tokenizer gone wrong) are thrown here.
  Got next(EncodedBlock& block);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
