// Blocks of text as items of OrderedWorkers: taking finds documents, making parses and encodes them.
#include "data/shards/encode_pipeline.h"

#include <chrono>

#include "base/error.h"
#include "data/batch.h"
#include "data/document_encoder.h"
#include "data/ordered_workers.h"

namespace redline::data {
namespace {

// A megabyte takes a worker ten milliseconds or more: long against the hand-over of a job, which takes microseconds.
constexpr std::int64_t kBlockTarget = 1 << 20, kMostDocuments = 1 << 14;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;  // of text at a time, unless one document alone is longer

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

}  // namespace

struct EncodePipeline::Impl {
  TextInput& input;
  const Tokenizer& tokenizer;
  std::int32_t end_token;
  const Chat* chat;
  std::atomic<std::int64_t> waiting_ns = 0;
  OrderedWorkers<Job> workers;

  Impl(TextInput& in, const Tokenizer& t, std::int32_t end, const Chat* c, int threads)
      : input(in),
        tokenizer(t),
        end_token(end),
        chat(c),
        workers({[this](Job& job) { return take(job); }, [this] { return encoding(); }},
                {threads, static_cast<std::size_t>(4 * threads + 4), kMostBytes}, waiting_ns) {}

  // A file that cannot be read on is a job without text, and reading goes on behind it.
  bool take(Job& job) {
    try {
      if (!input.next(job.text, kBlockTarget, kMostDocuments)) return false;
      job.text_bytes = std::ssize(job.text.bytes);
    } catch (const UserError& e) {
      job.text = {};
      job.encoded.file_problem = e.what();
    }
    return true;
  }

  std::function<void(Job&)> encoding() {
    return [this, encoder = std::shared_ptr<DocumentEncoder>()](Job& job) mutable {
      if (job.text.documents() == 0) return;
      const auto end = end_token == kNoTarget ? std::nullopt : std::optional(end_token);
      if (!encoder) encoder = std::make_shared<DocumentEncoder>(tokenizer, end, chat);
      encode(job, *encoder);
      job.text = {};
    };
  }

  void encode(Job& job, DocumentEncoder& encoder) const {
    EncodedBlock& out = job.encoded;
    out.documents.reserve(static_cast<std::size_t>(job.text.documents()));
    for (std::int64_t i = 0; i < job.text.documents(); ++i) {
      EncodedBlock::Document& document = out.documents.emplace_back();
      const std::size_t begin = out.ids.size();
      try {
        document.text_bytes = encoder.append(input, job.text, i, out.ids);
      } catch (const NoTemplate&) {
        throw;
      } catch (const UserError& e) {
        document.problem = e.what();
        document.no_field = dynamic_cast<const NoSuchField*>(&e) != nullptr;
        out.ids.resize(begin);
      }
      std::uint32_t largest = 0;
      for (std::size_t t = begin; t < out.ids.size(); ++t)
        largest = std::max(largest, static_cast<std::uint32_t>(token_id(out.ids[t])));
      REDLINE_CHECK(out.ids.size() == begin || largest < tokenizer.vocabulary(),
                    "the tokenizer {} gave the id {} where its vocabulary has {}", tokenizer.name(), largest,
                    tokenizer.vocabulary());
      document.end = static_cast<std::int64_t>(out.ids.size());
    }
  }

  Got next(EncodedBlock& block) {
    using Workers = OrderedWorkers<Job>;
    std::unique_ptr<Job> job;
    switch (workers.next(job, std::chrono::milliseconds(100))) {
      case Workers::Got::nothing_yet: return Got::nothing_yet;
      case Workers::Got::end: return Got::end;
      case Workers::Got::item: break;
    }
    block = std::move(job->encoded);
    workers.give_back(std::move(job));
    return Got::block;
  }
};

EncodePipeline::EncodePipeline(TextInput& input, const Tokenizer& tokenizer, std::int32_t end_token, const Chat* chat,
                               int threads)
    : impl_(std::make_unique<Impl>(input, tokenizer, end_token, chat, threads)) {}
EncodePipeline::~EncodePipeline() = default;
EncodePipeline::Got EncodePipeline::next(EncodedBlock& block) { return impl_->next(block); }

}  // namespace redline::data
