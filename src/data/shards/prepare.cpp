// The writer's side of preparing: documents come in order, go to one of two splits, and are counted.
#include "data/shards/prepare.h"

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "base/words.h"
#include "data/batch.h"
#include "data/shards/encode_pipeline.h"
#include "data/shards/writer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "io/new_folder.h"

namespace redline::data {
namespace {

constexpr std::size_t kProblemsKept = 10;
constexpr std::uint64_t kValSeed = 0, kValStream = 0x76616c;  // docs/formats.md states them

std::int32_t end_token_of(const PrepareSettings& settings, const Tokenizer& tokenizer) {
  if (settings.no_end_token) return kNoTarget;
  if (!settings.end_token) return tokenizer.end_token().value_or(kNoTarget);
  if (*settings.end_token >= tokenizer.vocabulary())
    fail_user("--end-token {} is not below the vocabulary of {}, which is {}", *settings.end_token, tokenizer.name(),
              tokenizer.vocabulary());
  return *settings.end_token;
}

class Preparation {
 public:
  Preparation(FileSystem& files, const PrepareSettings& settings, const Path& folder, Manifest& manifest)
      : settings_(settings),
        manifest_(manifest),
        train_(files, folder, "train", manifest.dtype, settings.shard_tokens, !manifest.chat.empty()),
        val_(files, folder, "val", manifest.dtype, settings.shard_tokens, !manifest.chat.empty()) {}

  void take(const EncodedBlock& block, Prepared& prepared) {
    if (!block.file_problem.empty()) {
      skip(block.file_problem, manifest_.skipped_file_ends, prepared);
    }
    std::int64_t begin = 0;
    for (const EncodedBlock::Document& d : block.documents) {
      const auto ids =
          std::span(block.ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(d.end - begin));
      begin = d.end;
      if (d.no_field && !settings_.skip_bad) fail_user("{}", d.problem);
      if (!d.problem.empty()) {
        skip(d.problem, manifest_.skipped_malformed, prepared);
      } else if (ids.empty()) {
        ++manifest_.skipped_empty;
      } else {
        const auto ordinal = static_cast<std::uint64_t>(prepared.total.documents++);
        (random_.uniform(ordinal) < settings_.val_fraction ? val_ : train_).append(ids);
        prepared.total.tokens += static_cast<std::int64_t>(ids.size());
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
  ShardWriter train_, val_;
  const Random random_{kValSeed, kValStream};
};

}  // namespace

Prepared prepare(FileSystem& files, const PrepareSettings& settings, const std::atomic<int>& stop,
                 const std::function<void(const PrepareProgress&)>& show) {
  const auto tokenizer = open_tokenizer(settings.tokenizer, "--tokenizer");
  const auto chat = open_chat(settings.chat, settings.tokenizer, *tokenizer, "--chat");
  if (chat && (settings.end_token || settings.no_end_token))
    fail_user(
        "--end-token is for plain documents, and with --chat answers are closed as their template says: leave it out");
  const std::int32_t end_token = end_token_of(settings, *tokenizer);
  TextInput input(settings.inputs, settings.format, "INPUT");
  if (!settings.skip_bad) input.check_files();
  if (chat && std::ranges::none_of(input.files(), is_json_lines))
    fail_user("--chat {}: INPUT has no .jsonl files, so that there are no conversations; leave --chat out",
              settings.chat);
  io::NewFolder folder(files, settings.out, "--out");

  Prepared prepared;
  prepared.started_over = folder.started_over();
  prepared.threads = settings.threads > 0 ? settings.threads : ThreadPool().threads();
  prepared.total.bytes_on_disk = input.bytes_on_disk();
  Manifest& manifest = prepared.manifest;
  manifest.dtype = tokenizer->vocabulary() <= 65536 ? TokenType::u16 : TokenType::u32;
  manifest.vocabulary = tokenizer->vocabulary();
  manifest.tokenizer_name = tokenizer->name();
  manifest.tokenizer_hash = tokenizer->fingerprint();
  if (end_token != kNoTarget) manifest.end_token = end_token;
  if (chat) {
    manifest.chat = chat->name();
    manifest.end_token = chat->end_token();
  }
  manifest.val_fraction = settings.val_fraction;
  if (const Path file = tokenizer_file(settings.tokenizer); !file.empty()) {
    manifest.tokenizer_file = file.extension() == ".model" ? "tokenizer.model" : "tokenizer.json";
    for (const auto& [name, text] : tokenizer_files(files, settings.tokenizer))
      if (name == manifest.tokenizer_file || name == "tokenizer_config.json" ||  // which names what closes a document
          name == "chat_template.jinja")
        folder.write(name, text);
  }

  const double start = steady_seconds();
  Preparation preparation(files, settings, folder.path(), manifest);
  {
    EncodePipeline pipeline(input, *tokenizer, end_token, chat.get(), prepared.threads);
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
  preparation.finish();
  manifest.source_files = static_cast<std::int64_t>(input.files().size());
  manifest.source_bytes = prepared.total.text_bytes;
  folder.write(kManifestFile, manifest_text(manifest));
  folder.complete();
  prepared.total.seconds = steady_seconds() - start;
  return prepared;
}

}  // namespace redline::data
