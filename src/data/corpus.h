// The interface of a corpus: a source of documents with random access by index, or a stream (data/stream.h). Both are a
// pure function of their settings. Order and resumption are those of data/feed.h. data/open_corpus.h is the factory.
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

// The part of documents that do not come split into training and held-out ones: all of them, those for training, or
// those that training never sees. Each kind of source says which they are.
enum class Part { all, training, held_out };

class Corpus {
 public:
  virtual ~Corpus() = default;
  virtual std::string name() const = 0;  // "ping (generated)", "3 text files as bytes"
  virtual bool endless() const = 0;
  virtual std::int64_t vocabulary() const = 0;              // ids are below it
  virtual std::uint64_t fingerprint() const = 0;            // of the contents: other documents, another number
  virtual std::vector<Path> files() const { return {}; }    // of the documents; none where they are generated
  virtual bool checked_when_read() const { return false; }  // against hashes of every byte, which fingerprint() covers
  virtual std::uint64_t order_seed() const { return 0; }    // of the order in which finite documents are read
  // Readable text; special tokens as <name>.
  virtual std::string decode(const std::vector<std::int32_t>& tokens) const = 0;
  virtual std::vector<std::int32_t> encode(const std::string& text) const = 0;  // the inverse
  virtual std::unique_ptr<Feed> feed(const FeedOptions& options) const = 0;     // lives no longer than the corpus
  virtual std::optional<std::int32_t> end_token() const { return {}; }          // closes a document, where it is known
  // The tokens that every document begins with, perhaps none; nothing where that is not known.
  virtual std::optional<std::vector<std::int32_t>> beginning() const { return {}; }
  // Whether some tokens may be context only, which nothing learns to predict (data/batch.h).
  virtual bool masked() const { return false; }
  // By id, how many bytes of text it stands for (Tokenizer::text_bytes); nothing where tokens stand for no known text.
  virtual std::optional<std::vector<std::int32_t>> bytes_of_ids() const { return {}; }
};

class DocumentSource : public Corpus {
 public:
  virtual std::int64_t documents() const = 0;  // 0: endless
  // Replaces `tokens`, of which some may be context. Any thread may call it. A document may be empty.
  virtual void read(std::int64_t index, std::vector<std::int32_t>& tokens) const = 0;
  // Adds `count` of its tokens to `tokens`, from `begin` on, without reading the others where the source can.
  virtual void append(std::int64_t index, std::int64_t begin, std::int64_t count,
                      std::vector<std::int32_t>& tokens) const;
  // The number of tokens that read() would give, without reading them where the source can.
  virtual std::int64_t length(std::int64_t index) const;
  bool endless() const override { return documents() == 0; }
  std::unique_ptr<Feed> feed(const FeedOptions& options) const override;
};

// Text that begins otherwise than a model learned it measures nothing: a UserError where both corpora say how their
// documents begin, and differ. `name` and `other_name` are for people: data.train, data.eval.
void require_same_beginning(const Corpus& corpus, std::string_view name, const Corpus& other,
                            std::string_view other_name);

// Tokenizer::text_bytes of every id; none for `end`, where documents are closed by another than the tokenizer's own.
std::vector<std::int32_t> bytes_of_ids(const Tokenizer& tokenizer, std::optional<std::int32_t> end = {});

}  // namespace redline::data
