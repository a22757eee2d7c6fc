// Documents are read in the order of the files, and shuffled in windows by whoever draws their pieces: a place is a
// window's beginning and a position in it. Where blocks are cut is the input's affair and changes nothing.
#include "data/stream.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/words.h"
#include "data/identity.h"
#include "data/input/byte_stream.h"
#include "data/input/parquet.h"
#include "data/input/text_input.h"
#include "data/pieces.h"
#include "data/shards/token_documents.h"

namespace redline::data {
namespace {

constexpr std::int64_t kHeldOutEvery = 64;
constexpr std::size_t kLongText = std::size_t{1} << 22;  // bytes; what is longer is not held twice
constexpr std::size_t kTextPart = std::size_t{1} << 18;  // of it, whose tokens are handed on
constexpr int kOffsetBits = 40;                          // a terabyte a file, and eight million files
constexpr std::int64_t kMostFiles = std::int64_t{1} << (62 - kOffsetBits);

std::int64_t id_of(std::int64_t file, std::int64_t offset) { return file << kOffsetBits | offset; }
std::int64_t file_of(std::int64_t id) { return id >> kOffsetBits; }
std::int64_t offset_of(std::int64_t id) { return id & ((std::int64_t{1} << kOffsetBits) - 1); }

DocumentMarks marks_of(const StreamSettings& s) { return document_marks(*s.tokenizer, s.bos, "data.bos"); }

bool is_last_of_some(std::int64_t ordinal) { return ordinal % kHeldOutEvery == kHeldOutEvery - 1; }

// A document of the files is held out or not by its number; one that is parted is of both parts.
bool is_of(const StreamSettings& s, std::int64_t ordinal) {
  if (s.part == Part::all || s.held_out.parted) return true;
  const bool held_out = s.held_out.only ? ordinal == *s.held_out.only : is_last_of_some(ordinal);
  return held_out == (s.part == Part::held_out);
}

// Leaves of a document's tokens, which stand at the end, those of the part.
void keep_part(const StreamSettings& s, std::size_t from, std::vector<std::int32_t>& tokens) {
  if (s.part == Part::all || !s.held_out.parted) return;
  const auto all = static_cast<std::int64_t>(tokens.size() - from), trained = all - held_out_tokens(all);
  const auto cut = tokens.begin() + static_cast<std::ptrdiff_t>(from) + trained;
  if (s.part == Part::training)
    tokens.erase(cut, tokens.end());
  else
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(from), cut);
}

// A problem with a part of the files ends the run, or is a line on standard error. Each is named once, whatever the
// epoch, and only the first few: more would bury the rest.
class BadParts {
 public:
  BadParts(bool skip, bool quiet) : skip_(skip), quiet_(quiet) {}

  // `where`: the same for one part, while the sentence depends on how the reader came there (a line, or a byte).
  void stop_or_skip(const UserError& problem, const std::string& where) {
    if (!skip_ && dynamic_cast<const NoSuchField*>(&problem)) throw NoSuchField(problem.what());
    if (dynamic_cast<const TooLong*>(&problem)) throw TooLong(problem.what());
    if (dynamic_cast<const NoTemplate*>(&problem)) throw NoTemplate(problem.what());
    if (!skip_) fail_user("{}; mend it, or pass over such parts with data.on_error=skip", problem.what());
    if (quiet_) return;
    const std::lock_guard lock(mutex_);
    if (told_.contains(where) || told_.size() > kTold) return;
    told_.insert(where);
    if (told_.size() <= kTold)
      log::warn("passed over: {}", problem.what());
    else
      log::warn("more malformed documents are passed over, and counted as empty ones");
  }

 private:
  static constexpr std::size_t kTold = 5;
  bool skip_, quiet_;
  std::mutex mutex_;
  std::set<std::string> told_;
};

class StreamFeed final : public Feed {
 public:
  StreamFeed(const StreamSettings& settings, const FeedOptions& options)
      : settings_(settings), options_(options), input_(settings.paths, settings.format, settings.key) {
    if (static_cast<std::int64_t>(input_.files().size()) >= kMostFiles)
      fail_user("{}: {} files are too many to stream from; prepare them, or join them", settings.key,
                input_.files().size());
    bytes_before_ = {0};
    for (const Path& file : input_.files())
      bytes_before_.push_back(bytes_before_.back() + static_cast<double>(real_files().size(file)));
    const auto packed = [](const Path& file) { return compression_of(file) != Compression::none || is_parquet(file); };
    if (std::ranges::any_of(input_.files(), packed)) bytes_before_.clear();
  }

  std::int64_t seek(const FeedPlace& place) override {
    if (place.epoch < 0 || place.window < 0 || place.ordinal < 0 || place.position < 0 ||
        file_of(place.window) > static_cast<std::int64_t>(input_.files().size()))
      fail_user("{}: there is no such place in these files", settings_.key);
    input_.seek(file_of(place.window), offset_of(place.window));
    epoch_ = place.epoch;
    ordinal_ = place.ordinal;
    ended_ = false;
    return place.position;
  }

  bool take(Chunk& chunk) override {
    if (ended_) return false;
    TextBlock& block = chunk.raw;
    const bool more = next_block(block);
    chunk.place = {.epoch = epoch_};
    chunk.ordinal = ordinal_;
    chunk.ends_epoch = !more;
    ordinal_ += block.documents();
    if (!more) {
      ++epoch_;
      ordinal_ = 0;
      ended_ = !options_.repeat;
      input_.seek(0, 0);
    } else if (block.place(block.documents()) >= std::int64_t{1} << kOffsetBits) {
      fail_user("{}: more than a terabyte of text in one file; split it", name_of(block.file));
    }
    return true;
  }

  std::unique_ptr<ChunkMaker> maker() override { return std::make_unique<Maker>(*this); }

  // One pass over the files in their order: a compressed file cannot be entered in the middle.
  void fetch(const std::vector<PieceId>& ids, Chunk& chunk) override {
    std::vector<std::size_t> order(ids.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return ids[i].document; });
    std::vector<std::vector<std::int32_t>> found(ids.size());
    std::vector<std::int32_t> document;
    std::vector<Chunk::Piece> pieces(ids.size());
    TextBlock block;
    Maker maker(*this);
    std::optional<std::int64_t> encoded;
    for (const std::size_t i : order) {
      const std::int64_t id = ids[i].document, begin = ids[i].begin;
      if (encoded != id) {
        go_to(id, block);
        document.clear();
        maker.encode(block, find(id, block), document);
        encoded = id;
      }
      const auto length = static_cast<std::int64_t>(document.size());
      if (begin < 0 || begin >= (options_.cut.truncate ? std::min(length, options_.cut.row) : length))
        fail_user("{}: the document at {} {} has no piece at token {} any more; has the file changed?",
                  name_of(file_of(id)), unit_of(file_of(id)), offset_of(id), begin);
      const std::int64_t end = options_.cut.end(begin, length);
      found[i].assign(document.begin() + begin, document.begin() + end);
      pieces[i] = {{id, begin}, 0, 0, 0, end < length ? document[static_cast<std::size_t>(end)] : kNoTarget};
    }
    chunk.clear();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      chunk.tokens.insert(chunk.tokens.end(), found[i].begin(), found[i].end());
      pieces[i].end = static_cast<std::int64_t>(chunk.tokens.size());
      chunk.pieces.push_back(pieces[i]);
    }
  }

  std::int64_t window_pieces() const override { return options_.shuffle ? options_.shuffle_buffer : 1; }
  bool shuffles_windows() const override { return options_.shuffle; }
  std::int64_t shuffled(const FeedPlace& window, std::int64_t index, std::int64_t pieces) const override {
    const std::uint64_t seed = options_.seed.value_or(settings_.seed);
    return shuffled_in_window(index, pieces, seed, window.epoch, window.ordinal);
  }
  std::string_view maker_stage() const override { return "tokenize"; }

  // By bytes, which those of an archive or a table do not tell.
  std::optional<double> share_before(const FeedPlace& place) const override {
    if (bytes_before_.empty() || bytes_before_.back() == 0) return {};
    const auto file = static_cast<std::size_t>(file_of(place.window));
    return (bytes_before_[file] + static_cast<double>(offset_of(place.window))) / bytes_before_.back();
  }

 private:
  class Maker final : public ChunkMaker {
   public:
    explicit Maker(const StreamFeed& feed)
        : feed_(feed), encoder_(*feed.settings_.tokenizer, marks_of(feed.settings_), feed.settings_.chat.get()) {}

    // A window may hold many chunks: the text is not kept with the tokens.
    void make(Chunk& chunk) override {
      TextBlock block = std::exchange(chunk.raw, {});
      for (std::int64_t i = 0; i < block.documents(); ++i) {
        if (!is_of(feed_.settings_, chunk.ordinal + i)) continue;
        const auto from = static_cast<std::int64_t>(chunk.tokens.size());
        const std::int64_t id = id_of(block.file, block.place(i));
        encode(block, i, chunk.tokens);
        chunk.cut_document(id, chunk.ordinal + i, from, feed_.options_.cut);
      }
    }

    // Adds to `tokens`: nothing for a document without text, else its tokens and what closes a document, or the part of
    // them that is wanted.
    void encode(TextBlock& block, std::int64_t document, std::vector<std::int32_t>& tokens) {
      const std::size_t from = tokens.size();
      const std::int64_t id = id_of(block.file, block.place(document));
      try {
        encoder_.append(feed_.input_, block, document, tokens);
        keep_part(feed_.settings_, from, tokens);
      } catch (const UserError& problem) {
        feed_.bad_parts_.stop_or_skip(problem, std::to_string(id));
      }
    }

   private:
    const StreamFeed& feed_;
    DocumentEncoder encoder_;
  };

  std::string name_of(std::int64_t file) const { return input_.files()[static_cast<std::size_t>(file)].string(); }
  std::string_view unit_of(std::int64_t file) const {
    return is_parquet(input_.files()[static_cast<std::size_t>(file)]) ? "row" : "byte";
  }

  bool next_block(TextBlock& block) {
    for (;;) {
      try {
        return input_.next(block, kTextBlockBytes, kTextBlockDocuments);
      } catch (const UserError& problem) {  // a broken archive: the input goes on with the next file
        bad_parts_.stop_or_skip(problem, problem.what());
      }
    }
  }

  // Makes `block` hold the place, or stand right before it.
  void go_to(std::int64_t id, TextBlock& block) {
    const std::int64_t file = file_of(id), offset = offset_of(id);
    if (id < 0 || file >= static_cast<std::int64_t>(input_.files().size()))
      fail_user("{}: there is no such place in these files", settings_.key);
    const auto end = [&] { return block.place(block.documents()); };
    const bool same_file = block.documents() > 0 && block.file == file;
    if (same_file && offset < end()) return;
    const bool seeks = compression_of(input_.files()[static_cast<std::size_t>(file)]) == Compression::none;
    if (seeks || !same_file) {
      input_.seek(file, seeks ? offset : 0);
      input_.next(block, seeks ? 1 : kTextBlockBytes, seeks ? 1 : kTextBlockDocuments);
    }
    while (block.documents() > 0 && block.file == file && offset >= end())
      if (!input_.next(block, kTextBlockBytes, kTextBlockDocuments)) block.ends.clear();
  }

  std::int64_t find(std::int64_t id, const TextBlock& block) const {
    for (std::int64_t i = 0; i < block.documents(); ++i)
      if (block.file == file_of(id) && block.place(i) == offset_of(id)) return i;
    fail_user("{}: no document begins at {} {} any more; has the file changed?", name_of(file_of(id)),
              unit_of(file_of(id)), offset_of(id));
  }

  const StreamSettings& settings_;
  FeedOptions options_;
  TextInput input_;
  std::vector<double> bytes_before_;      // each file, and in all; empty where any is compressed
  std::int64_t epoch_ = 0, ordinal_ = 0;  // of the chunk that is taken next
  bool ended_ = false;
  mutable BadParts bad_parts_{settings_.skip_bad, options_.quiet};
};

class Stream final : public Corpus {
 public:
  explicit Stream(StreamSettings settings) : settings_(std::move(settings)) {
    files_ = expand_paths(settings_.paths, settings_.key);
  }

  std::string name() const override {
    const HeldOutDocuments& held_out = settings_.held_out;
    const std::vector<std::int32_t> begin = beginning().value_or(std::vector<std::int32_t>());
    return fmt::format("{}, tokenized by {} as they are read{}{}{}", counted(files_.size(), "file"),
                       settings_.tokenizer->name(),
                       settings_.chat ? fmt::format(" ({}, of which answers are learned)", settings_.chat->name()) : "",
                       begin.empty() ? "" : ", each document after " + settings_.tokenizer->written(begin.back()),
                       !held_out.only || settings_.part != Part::training ? ""
                       : held_out.parted                                  ? ", the end of the one document held out"
                                                                          : ", the last document held out");
  }
  bool endless() const override { return false; }
  std::int64_t vocabulary() const override { return settings_.tokenizer->vocabulary(); }
  std::uint64_t order_seed() const override { return settings_.seed; }
  std::string decode(const std::vector<std::int32_t>& tokens) const override {
    return settings_.tokenizer->decode(tokens);
  }
  std::vector<std::int32_t> encode(const std::string& text) const override { return settings_.tokenizer->encode(text); }
  std::unique_ptr<Feed> feed(const FeedOptions& options) const override {
    return std::make_unique<StreamFeed>(settings_, options);
  }
  std::optional<std::int32_t> end_token() const override {
    return settings_.chat ? settings_.chat->end_token() : settings_.tokenizer->end_token();
  }
  std::optional<std::vector<std::int32_t>> beginning() const override {
    return beginning_of(marks_of(settings_), settings_.chat.get());
  }
  bool masked() const override { return settings_.chat != nullptr; }
  std::optional<std::vector<std::int32_t>> bytes_of_ids() const override {
    return data::bytes_of_ids(*settings_.tokenizer, end_token());
  }

  // A hash of all that decides documents and ids, and of the files.
  std::uint64_t fingerprint() const override {
    Hasher hasher;
    const auto number = [&](std::uint64_t n) { hasher.update(std::as_bytes(std::span(&n, 1))); };
    number(settings_.tokenizer->fingerprint());
    number(hash64(settings_.format.text_field));
    number(hash64(settings_.format.separator));
    number(static_cast<std::uint64_t>(settings_.part));
    if (settings_.chat) number(settings_.chat->fingerprint());
    const DocumentMarks marks = marks_of(settings_);  // without any it is the number that it always was
    for (const auto* begin : {&marks.begin, &marks.begin_conversation})
      if (!begin->empty()) number(hash64(std::as_bytes(std::span(*begin))));
    for (const Path& path : files_) {
      const MappedFile file(path);
      hash_sampled(hasher, file.bytes(), files_.size());
    }
    return hasher.digest();
  }
  std::vector<Path> files() const override { return files_; }

 private:
  StreamSettings settings_;
  std::vector<Path> files_;
};

// Before a run starts, not at its first evaluation: something with text must be held out. Reads no further than the
// first document of every 64 that has some.
HeldOutDocuments find_held_out(const StreamSettings& s) {
  constexpr std::size_t kShortestParted = 64;  // bytes of text
  TextInput input(s.paths, s.format, s.key);
  TextBlock block;
  Conversation document;
  std::int64_t documents = 0, with_text = 0;
  HeldOutDocuments last;
  std::exception_ptr first_problem;
  std::size_t bytes = 0;
  const auto next = [&] {
    for (;;) {
      try {
        return input.next(block, kTextBlockBytes, kTextBlockDocuments);
      } catch (const UserError&) {  // a broken archive: the input goes on with the next file
        if (!s.skip_bad) throw;
      }
    }
  };
  while (next()) {
    for (std::int64_t i = 0; i < block.documents(); ++i, ++documents) {
      try {
        if (s.chat)
          input.parse(block, i, document);
        else
          input.parse(block, i, document.text);
      } catch (const UserError&) {
        if (!s.skip_bad && is_last_of_some(documents)) throw;
        if (!first_problem) first_problem = std::current_exception();
        continue;  // whoever reads it tells
      }
      if (document.kind == Conversation::Kind::messages) s.chat->form();  // where there is none, that is an error now
      if (document.empty()) continue;
      if (is_last_of_some(documents)) return {};
      last.only = documents;
      bytes = document.text.size();
      ++with_text;
    }
  }
  last.parted = with_text == 1;
  if (with_text == 0 && first_problem) std::rethrow_exception(first_problem);  // which says why there is none
  if (with_text == 0) fail_user("{}: there is no text in {}", s.key, counted(documents, "document"));
  if (last.parted && (s.chat || bytes < kShortestParted))
    fail_user("{}: one {} is too few to hold a part out for evaluation; set data.eval{}", s.key,
              s.chat ? "conversation" : "document of " + counted(bytes, "byte"),
              s.chat ? "" : ", or data.separator where a file holds many");
  return last;
}

}  // namespace

std::unique_ptr<Corpus> open_stream(StreamSettings settings) {
  marks_of(settings);  // a token that there is none of is told now
  if (!settings.skip_bad) TextInput(settings.paths, settings.format, settings.key).check_files();
  if (settings.part != Part::all) settings.held_out = find_held_out(settings);
  return std::make_unique<Stream>(std::move(settings));
}

bool needs_stream(const std::vector<std::string>& paths, const std::string& key) {
  const std::vector<Path> files = expand_paths(paths, key);
  return std::ranges::any_of(files, [](const Path& path) {
    return compression_of(path) != Compression::none || is_json_lines(path) || is_parquet(path);
  });
}

std::optional<std::vector<std::int32_t>> beginning_of(const DocumentMarks& marks, const Chat* chat) {
  if (!chat || !chat->beginning()) return marks.begin;
  const std::vector<std::int32_t> conversation =
      marks.begin_conversation.empty() ? *chat->beginning() : marks.begin_conversation;
  if (conversation != marks.begin) return {};  // conversations begin in their way, and other lines in theirs
  return conversation;
}

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, DocumentMarks marks, const Chat* chat)
    : bytewise_(tokenizer.bytewise()), encoder_(tokenizer.encoder()), marks_(std::move(marks)) {
  if (chat) chat_.emplace(*chat, marks_, *encoder_);
}

// Plain text or a conversation, whichever the document is.
std::int64_t DocumentEncoder::append(const TextInput& input, TextBlock& block, std::int64_t document,
                                     std::vector<std::int32_t>& tokens, const Drain& drain) {
  if (!chat_)
    input.parse(block, document, conversation_.text);
  else
    input.parse(block, document, conversation_);
  const bool large = block.bytes.size() > kLongText;
  if (large && block.documents() == 1) {
    std::string().swap(block.bytes);  // an empty string that is assigned leaves its memory to it
    block.ends.clear();
  }
  auto bytes = static_cast<std::int64_t>(conversation_.text.size());
  if (chat_ && conversation_.kind != Conversation::Kind::text)
    bytes = chat_->append(conversation_, tokens);
  else
    append_text(tokens, drain);
  if (large) {
    Conversation none;
    std::swap(conversation_, none);
  }
  return bytes;
}

// A vector that grows by doubling would copy the tokens of a long text with both copies in memory.
void DocumentEncoder::append_text(std::vector<std::int32_t>& tokens, const Drain& drain) {
  const std::string_view text = conversation_.text;
  if (text.size() <= kLongText) {
    append_document(*encoder_, text, marks_, tokens);
  } else if (!bytewise_ || !drain) {
    tokens.reserve(tokens.size() + text.size() / (bytewise_ ? 1 : 2) + 16);
    append_document(*encoder_, text, marks_, tokens);
  } else {  // such a tokenizer has no token that begins a text
    for (std::size_t at = 0; at < text.size(); at += kTextPart) {
      encoder_->append(text.substr(at, kTextPart), tokens);
      drain(tokens);
    }
    if (marks_.end) tokens.push_back(*marks_.end);
  }
}

}  // namespace redline::data
