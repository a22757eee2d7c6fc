// Documents as the rest of the program sees them: a corpus is a source with random access by index, or a stream
// (data/stream.h). Both are a pure function of their settings, so the order of training and its resumption are somebody
// else's (data/feed.h). data/source.h opens the corpus that a configuration names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/batch.h"
#include "data/feed.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// Of what is not split into training and held-out documents by its owner: all of it, or a part that training never sees
// and what that leaves. Each kind of source says which part that is.
enum class Part { all, training, held_out };

class Corpus {
 public:
  virtual ~Corpus() = default;
  virtual std::string name() const = 0;  // "ping (generated)", "3 text files"
  virtual bool endless() const = 0;
  virtual std::int64_t vocabulary() const = 0;              // ids are below it
  virtual std::uint64_t fingerprint() const = 0;            // of the contents: other documents, another number
  virtual std::vector<Path> files() const { return {}; }    // that the documents are in; none where they are made up
  virtual bool checked_when_read() const { return false; }  // against hashes of every byte, which fingerprint() covers
  virtual std::uint64_t order_seed() const { return 0; }    // of the order in which finite documents are read
  virtual std::string decode(const std::vector<std::int32_t>& tokens) const = 0;  // readable text; roles as <name>
  virtual std::vector<std::int32_t> encode(const std::string& text) const = 0;    // the inverse; <name> is a role
  virtual std::unique_ptr<Feed> feed(const FeedOptions& options) const = 0;       // lives no longer than the corpus
  virtual std::optional<std::int32_t> end_token() const { return {}; }  // what closes a document, where that is known
  // Whether some tokens may be context only, which nothing learns to predict (data/batch.h).
  virtual bool masked() const { return false; }
  // By id, how many bytes of text it stands for (Tokenizer::text_bytes); nothing where tokens stand for no known text.
  virtual std::optional<std::vector<std::int32_t>> bytes_of_ids() const { return {}; }
};

class DocumentSource : public Corpus {
 public:
  virtual std::int64_t documents() const = 0;  // 0: endless
  // Replaces `tokens`, of which some may be context. Any thread may call it. Whoever draws passes over an empty one.
  virtual void read(std::int64_t index, std::vector<std::int32_t>& tokens) const = 0;
  // Adds `count` of its tokens to `tokens`, from `begin` on. Where that can be done without reading the others, it is.
  virtual void append(std::int64_t index, std::int64_t begin, std::int64_t count,
                      std::vector<std::int32_t>& tokens) const;
  // How many tokens read() would give. Where that can be told without reading them, it is.
  virtual std::int64_t length(std::int64_t index) const;
  bool endless() const override { return documents() == 0; }
  std::unique_ptr<Feed> feed(const FeedOptions& options) const override;
};

// Tokenizer::text_bytes of every id; none for `end`, where documents are closed by another than the tokenizer's own.
std::vector<std::int32_t> bytes_of_ids(const Tokenizer& tokenizer, std::optional<std::int32_t> end = {});

}  // namespace redline::data
