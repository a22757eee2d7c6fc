// Text to tokens on all cores, and the writer's side of preparing: documents come in order, go to one of two splits,
// and are counted.
#include "data/shards/prepare.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "base/words.h"
#include "data/batch.h"
#include "data/input/text_input.h"
#include "data/ordered_workers.h"
#include "data/roles.h"
#include "data/shards/shards.h"
#include "data/stream.h"
#include "data/tokenizer/chat.h"
#include "data/tokenizer/tokenizer.h"
#include "io/new_folder.h"

namespace redline::data {
namespace {

// Some documents in order. One that could not be read is there too, with the sentence that says why.
struct EncodedBlock {
  struct Document {
    std::int64_t end = 0;         // in ids; it begins where the one before ends. Nothing in between: no text
    std::int64_t text_bytes = 0;  // that the tokenizer saw
    std::string problem = {};     // empty: none
    bool no_field = false;        // the problem is NoSuchField
  };
  // Ids, as the shards will hold them: one of the two is empty. Conversations have context among theirs (data/batch.h).
  std::vector<std::uint16_t> narrow;
  std::vector<std::int32_t> wide;
  std::vector<Document> documents;
  std::string file_problem = {};  // the rest of a file could not be read: no documents
  std::int64_t file = 0;          // of the input, that they are of
};

// A megabyte takes a worker ten milliseconds or more: long against the hand-over of a job, which takes microseconds.
constexpr std::int64_t kBlockTarget = 1 << 20, kMostDocuments = 1 << 14;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;  // of text at a time, unless one document alone is longer

TokenType token_type(const Tokenizer& tokenizer) {
  return tokenizer.vocabulary() <= 65536 ? TokenType::u16 : TokenType::u32;
}

struct Job {
  TextBlock text;
  std::int64_t text_bytes = 0;
  EncodedBlock encoded;

  std::int64_t bytes() const { return text_bytes; }
  void clear() {
    text_bytes = 0;
    encoded = {};
  }
};

// Text to tokens on all cores, in the order of the text, as items of OrderedWorkers: taking finds documents, making
// parses and encodes them, and next() gives them as if one thread had done it all.
class EncodePipeline {
 public:
  // `chat`: how conversations are written; null: there are none. Input, tokenizer and chat outlive it.
  EncodePipeline(TextInput& input, const Tokenizer& tokenizer, const DocumentMarks& marks, const Chat* chat,
                 int threads)
      : input_(input),
        tokenizer_(tokenizer),
        marks_(marks),
        chat_(chat),
        narrow_(!chat && token_type(tokenizer) == TokenType::u16),
        workers_({[this](Job& job) { return take(job); }, [this] { return encoding(); }},
                 {threads, static_cast<std::size_t>(4 * threads + 4), kMostBytes}, waiting_ns_) {}

  enum class Got { block, nothing_yet, end };
  // The next block; nothing_yet after a tenth of a second, so that the caller can do other things. Errors that are no
  // document's fault (the disk, memory, a tokenizer gone wrong) are thrown here.
  Got next(EncodedBlock& block) {
    using Workers = OrderedWorkers<Job>;
    std::unique_ptr<Job> job;
    switch (workers_.next(job, std::chrono::milliseconds(100))) {
      case Workers::Got::nothing_yet: return Got::nothing_yet;
      case Workers::Got::end: return Got::end;
      case Workers::Got::item: break;
    }
    block = std::move(job->encoded);
    workers_.give_back(std::move(job));
    return Got::block;
  }

 private:
  // A file that cannot be read on is a job without text, and reading goes on after it.
  bool take(Job& job) {
    try {
      if (!input_.next(job.text, kBlockTarget, kMostDocuments)) return false;
      job.text_bytes = std::ssize(job.text.bytes);
      job.encoded.file = job.text.file;
    } catch (const UserError& e) {
      job.text = {};
      job.encoded.file_problem = e.what();
    }
    return true;
  }

  std::function<void(Job&)> encoding() {
    return [this, encoder = std::shared_ptr<DocumentEncoder>()](Job& job) mutable {
      if (job.text.documents() == 0) return;
      if (!encoder) encoder = std::make_shared<DocumentEncoder>(tokenizer_, marks_, chat_);
      encode(job, *encoder);
      job.text = {};
    };
  }

  void encode(Job& job, DocumentEncoder& encoder) const {
    EncodedBlock& out = job.encoded;
    const std::int64_t documents = job.text.documents();
    out.documents.reserve(static_cast<std::size_t>(documents));
    std::vector<std::int32_t> ids;  // of the document, where they become narrow
    const auto narrow = [&](std::vector<std::int32_t>& some) {
      check_ids(some);
      out.narrow.insert(out.narrow.end(), some.begin(), some.end());
      some.clear();
    };
    for (std::int64_t i = 0; i < documents; ++i) {
      EncodedBlock::Document& document = out.documents.emplace_back();
      const std::size_t narrow_before = out.narrow.size(), wide_before = out.wide.size();
      try {
        if (narrow_) {
          if (documents == 1)  // growing would copy them with both copies in memory
            out.narrow.reserve(job.text.bytes.size() / (tokenizer_.bytewise() ? 1 : 2) + 16);
          document.text_bytes = encoder.append(input_, job.text, i, ids, narrow);
          narrow(ids);
        } else {
          document.text_bytes = encoder.append(input_, job.text, i, out.wide);
          check_ids(std::span(out.wide).subspan(wide_before));
        }
      } catch (const NoTemplate&) {
        throw;
      } catch (const UserError& e) {
        document.problem = e.what();
        document.no_field = dynamic_cast<const NoSuchField*>(&e) != nullptr;
        ids.clear();
        out.narrow.resize(narrow_before);
        out.wide.resize(wide_before);
      }
      document.end = static_cast<std::int64_t>(out.narrow.size() + out.wide.size());
    }
  }

  void check_ids(std::span<const std::int32_t> ids) const {
    std::uint32_t largest = 0;
    for (const std::int32_t id : ids) largest = std::max(largest, static_cast<std::uint32_t>(token_id(id)));
    REDLINE_CHECK(ids.empty() || largest < tokenizer_.vocabulary(),
                  "the tokenizer {} gave the id {} where its vocabulary has {}", tokenizer_.name(), largest,
                  tokenizer_.vocabulary());
  }

  TextInput& input_;
  const Tokenizer& tokenizer_;
  const DocumentMarks marks_;
  const Chat* chat_;
  const bool narrow_;
  std::atomic<std::int64_t> waiting_ns_ = 0;
  OrderedWorkers<Job> workers_;
};

constexpr std::size_t kProblemsKept = 10;
constexpr std::uint64_t kValSeed = 0, kValStream = 0x76616c;  // docs/formats.md states them

DocumentMarks marks_of(const PrepareSettings& settings, const Tokenizer& tokenizer) {
  DocumentMarks marks = document_marks(tokenizer, settings.bos, "--bos");
  if (settings.end_token && *settings.end_token >= tokenizer.vocabulary())
    fail_user("--end-token {} is not below the vocabulary of {}, which is {}", *settings.end_token, tokenizer.name(),
              tokenizer.vocabulary());
  if (settings.end_token || settings.no_end_token) marks.end = settings.end_token;
  return marks;
}

// The inputs with those for validation last, by the names of files in folders (data/roles.h).
struct Inputs {
  std::vector<std::string> paths, sentences;
  std::int64_t first_val = std::numeric_limits<std::int64_t>::max();  // file
};

Inputs inputs_by_role(const PrepareSettings& settings) {
  Inputs all;
  std::vector<std::string> val;
  for (const std::string& input : settings.inputs) {
    const std::optional<RoleSplit> roles = settings.roles ? split_by_role(input, "INPUT") : std::nullopt;
    const std::vector<std::string> own = roles ? roles->train : std::vector{input};
    all.paths.insert(all.paths.end(), own.begin(), own.end());
    if (!roles) continue;
    val.insert(val.end(), roles->held_out.begin(), roles->held_out.end());
    all.sentences.push_back(in_words(*roles, input, "INPUT", RoleUse::train_and_hold_out));
  }
  if (val.empty()) return all;
  if (settings.val_fraction > 0)
    fail_user(
        "--val-fraction {}: INPUT has files for validation by their names ({}); leave one of both out: the flag, "
        "or the roles of names with --roles none",
        settings.val_fraction, val[0]);
  all.first_val = std::ssize(expand_paths(all.paths, "INPUT"));
  all.paths.insert(all.paths.end(), val.begin(), val.end());
  return all;
}

class Preparation {
 public:
  Preparation(FileSystem& files, const PrepareSettings& settings, const Path& folder, Manifest& manifest,
              std::int64_t first_val)
      : settings_(settings),
        manifest_(manifest),
        first_val_(first_val),
        train_(files, folder, "train", manifest.dtype, settings.shard_tokens, !manifest.chat.empty()),
        val_(files, folder, "val", manifest.dtype, settings.shard_tokens, !manifest.chat.empty()) {}

  void take(const EncodedBlock& block, Prepared& prepared) {
    if (!block.file_problem.empty()) {
      skip(block.file_problem, manifest_.skipped_file_ends, prepared);
    }
    std::int64_t begin = 0;
    for (const EncodedBlock::Document& d : block.documents) {
      const auto from = static_cast<std::size_t>(begin), size = static_cast<std::size_t>(d.end - begin);
      begin = d.end;
      if (d.no_field && !settings_.skip_bad) fail_user("{}", d.problem);
      if (!d.problem.empty()) {
        skip(d.problem, manifest_.skipped_malformed, prepared);
      } else if (size == 0) {
        ++manifest_.skipped_empty;
      } else {
        const auto ordinal = static_cast<std::uint64_t>(prepared.total.documents++);
        const bool val = block.file >= first_val_ || random_.uniform(ordinal) < settings_.val_fraction;
        ShardWriter& writer = val ? val_ : train_;
        if (block.wide.empty())
          writer.append(std::span(block.narrow).subspan(from, size));
        else
          writer.append(std::span(block.wide).subspan(from, size));
        prepared.total.tokens += static_cast<std::int64_t>(size);
        prepared.total.text_bytes += d.text_bytes;
      }
    }
  }
  void finish() {
    manifest_.train = train_.finish();
    manifest_.val = val_.finish();
  }

 private:
  void skip(const std::string& problem, std::int64_t& count, Prepared& prepared) const {
    if (!settings_.skip_bad) fail_user("{} (--on-error skip counts such input and goes on)", problem);
    ++count;
    if (prepared.problems.size() < kProblemsKept) prepared.problems.push_back(problem);
  }

  const PrepareSettings& settings_;
  Manifest& manifest_;
  std::int64_t first_val_;  // file
  ShardWriter train_, val_;
  const Random random_{kValSeed, kValStream};
};

// A Parquet file without checksums, or plain text, does not tell that a bit of it has changed. A second reading does.
void require_same_inputs(const PreparedFolder& before, const std::vector<HashedInput>& inputs) {
  const std::string folder = before.path.string();
  const std::vector<HashedInput>& known = before.manifest.inputs;
  if (known.size() != inputs.size())
    fail_user("--same-input-as {}: it was made from {}, and INPUT has {} that could be read whole", folder,
              counted(known.size(), "file"), counted(inputs.size(), "file"));
  for (std::size_t i = 0; i < known.size(); ++i)
    if (known[i].name != inputs[i].name || known[i].bytes != inputs[i].bytes || known[i].hash != inputs[i].hash)
      fail_user(
          "--same-input-as {}: file {} of INPUT is {} ({} bytes, XXH3 {}), and was {} ({} bytes, XXH3 {}) when it was "
          "made: the file has changed, or one of the two readings is damaged; nothing was written",
          folder, i + 1, inputs[i].name, inputs[i].bytes, hex64(inputs[i].hash), known[i].name, known[i].bytes,
          hex64(known[i].hash));
}

}  // namespace

Prepared prepare(FileSystem& files, const PrepareSettings& settings, const std::atomic<int>& stop,
                 const std::function<void(const PrepareProgress&)>& show) {
  const auto tokenizer = open_tokenizer(settings.tokenizer, "--tokenizer");
  const auto chat = open_chat(settings.chat, settings.tokenizer, *tokenizer, "--chat");
  if (chat && (settings.end_token || settings.no_end_token))
    fail_user(
        "--end-token is for plain documents, and with --chat answers are closed as their template says: leave it out");
  const DocumentMarks marks = marks_of(settings, *tokenizer);
  InputFormat format = settings.format;
  format.any_bytes = settings.tokenizer == "bytes";
  format.bytes_setting = "--tokenizer bytes";
  const Inputs inputs = inputs_by_role(settings);
  for (const std::string& path : inputs.paths)
    if (is_prepared_folder(path) || Path(path).extension() == ".bin" || Path(path).extension() == ".idx")
      fail_user("INPUT: {} holds tokens already, which need no preparing: redline train data.train={} reads them", path,
                path);
  TextInput input(inputs.paths, format, "INPUT");
  input.hash_files();
  if (!settings.skip_bad) input.check_files();
  if (chat && std::ranges::none_of(input.files(), is_json_lines))
    fail_user(
        "--chat {}: INPUT has no .jsonl files, so that there are no conversations (those in Parquet are to be written "
        "as .jsonl); leave --chat out",
        settings.chat);
  io::NewFolder folder(files, settings.out, "--out");

  Prepared prepared;
  prepared.by_role = inputs.sentences;
  prepared.started_over = folder.started_over();
  prepared.threads = settings.threads > 0 ? settings.threads : ThreadPool().threads();
  prepared.total.bytes_on_disk = input.bytes_on_disk();
  Manifest& manifest = prepared.manifest;
  manifest.dtype = token_type(*tokenizer);
  manifest.vocabulary = tokenizer->vocabulary();
  manifest.tokenizer_name = tokenizer->name();
  manifest.tokenizer_hash = tokenizer->fingerprint();
  manifest.end_token = marks.end;
  manifest.beginning = beginning_of(marks, chat.get());
  if (chat) {
    manifest.chat = chat->name();
    manifest.end_token = chat->end_token();
  }
  manifest.val_fraction = settings.val_fraction;
  if (const Path file = tokenizer_file(settings.tokenizer); !file.empty()) {
    manifest.tokenizer_file = file.extension() == ".model" ? kTokenizerModel : kTokenizerJson;
    for (const auto& [name, text] : tokenizer_files(files, settings.tokenizer))
      if (name == manifest.tokenizer_file || name == kTokenizerConfig ||  // which names what closes a document
          name == kChatTemplate)
        folder.write(name, text);
  }

  const double start = steady_seconds();
  Preparation preparation(files, settings, folder.path(), manifest, inputs.first_val);
  {
    EncodePipeline pipeline(input, *tokenizer, marks, chat.get(), prepared.threads);
    EncodedBlock block;
    for (auto got = pipeline.next(block); got != EncodePipeline::Got::end; got = pipeline.next(block)) {
      if (stop != 0) {
        prepared.stopped = true;
        return prepared;
      }
      if (got == EncodePipeline::Got::block) preparation.take(block, prepared);
      prepared.total.bytes_read = input.bytes_read();
      prepared.total.seconds = steady_seconds() - start;
      show(prepared.total);
    }
  }
  if (prepared.total.documents == 0)
    fail_user("INPUT: no documents were found in {}{}{}", counted(input.files().size(), "file"),
              manifest.skipped_malformed + manifest.skipped_empty > 0 ? ": all of them were skipped" : "",
              prepared.problems.empty() ? "" : fmt::format("; the first: {}", prepared.problems[0]));
  std::set<Path> val;
  for (std::size_t i = 0; i < input.files().size(); ++i)
    if (static_cast<std::int64_t>(i) >= inputs.first_val) val.insert(input.files()[i]);
  for (const auto& [path, bytes, hash] : input.hashes())
    manifest.inputs.push_back({path.filename().string(), bytes, hash, val.contains(path)});
  if (settings.same_input_as) require_same_inputs(*settings.same_input_as, manifest.inputs);
  preparation.finish();
  manifest.source_files = static_cast<std::int64_t>(input.files().size());
  manifest.source_bytes = prepared.total.text_bytes;
  folder.write(kManifestFile, manifest_text(manifest));
  folder.complete();
  prepared.total.seconds = steady_seconds() - start;
  return prepared;
}

}  // namespace redline::data
