// A queue of jobs in the order of the text. The reader adds at its back, workers take the first one that nobody has,
// and the caller takes from the front what is done; the queue is bounded in jobs and in bytes.
#include "data/shards/encode_pipeline.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "data/batch.h"
#include "data/document_encoder.h"

namespace redline::data {
namespace {

// A megabyte takes a worker ten milliseconds or more: long against the hand-over of a job, which takes microseconds.
constexpr std::int64_t kBlockTarget = 1 << 20, kMostDocuments = 1 << 14;
constexpr std::size_t kMostBytes = std::size_t{1} << 28;  // of text in the queue, unless one document alone is longer

struct Job {
  TextBlock text;
  std::size_t bytes = 0;
  EncodedBlock encoded;
  std::exception_ptr failure;
  bool taken = false, done = false;
};

}  // namespace

struct EncodePipeline::Impl {
  TextInput& input;
  const Tokenizer& tokenizer;
  std::int32_t end_token;
  const Chat* chat;
  std::size_t most_jobs;

  std::mutex mutex;
  std::condition_variable room, work, ready;
  std::deque<std::shared_ptr<Job>> queue;
  std::size_t untaken = 0;  // index of the first job in the queue that nobody has taken
  std::size_t bytes = 0;
  bool read_all = false, stopping = false;
  std::vector<std::thread> threads;

  Impl(TextInput& in, const Tokenizer& t, std::int32_t end, const Chat* c, int workers)
      : input(in), tokenizer(t), end_token(end), chat(c), most_jobs(static_cast<std::size_t>(4 * workers + 4)) {
    try {
      threads.emplace_back([this] { read(); });
      for (int i = 0; i < workers; ++i) threads.emplace_back([this] { encode(); });
    } catch (const std::system_error& e) {
      stop();
      fail_machine("cannot start {} threads: {}", workers + 1, e.what());
    }
  }
  ~Impl() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    room.notify_all();
    work.notify_all();
    for (std::thread& t : threads) t.join();
    threads.clear();
  }

  void read() {
    for (;;) {
      auto job = std::make_shared<Job>();
      bool end = false;
      try {
        end = !input.next(job->text, kBlockTarget, kMostDocuments);
        job->bytes = job->text.bytes.size();
      } catch (const UserError& e) {
        job->encoded.file_problem = e.what();
      } catch (...) {
        job->failure = std::current_exception();
      }
      const bool for_workers = job->bytes > 0;
      job->taken = job->done = !for_workers;
      const bool last = end || job->failure;
      std::unique_lock lock(mutex);
      room.wait(lock, [&] {
        return stopping || queue.empty() || (queue.size() < most_jobs && bytes + job->bytes <= kMostBytes);
      });
      if (stopping) return;
      if (!end) {
        bytes += job->bytes;
        queue.push_back(std::move(job));
      }
      read_all = last;
      lock.unlock();
      if (for_workers) work.notify_one();
      if (!for_workers || last) {
        work.notify_all();
        ready.notify_all();
      }
      if (last) return;
    }
  }

  // The first job that nobody has taken; null at the end.
  std::shared_ptr<Job> take() {
    std::unique_lock lock(mutex);
    for (;;) {
      while (untaken < queue.size() && queue[untaken]->taken) ++untaken;
      if (stopping) return nullptr;
      if (untaken < queue.size()) {
        const std::shared_ptr<Job> job = queue[untaken++];
        job->taken = true;
        return job;
      }
      if (read_all) return nullptr;
      work.wait(lock);
    }
  }

  void encode() {
    std::unique_ptr<DocumentEncoder> encoder;
    const auto end = end_token == kNoTarget ? std::nullopt : std::optional(end_token);
    while (const std::shared_ptr<Job> job = take()) {
      try {
        if (!encoder) encoder = std::make_unique<DocumentEncoder>(tokenizer, end, chat);
        encode(*job, *encoder);
      } catch (...) {
        job->failure = std::current_exception();
      }
      job->text = {};
      {
        const std::lock_guard lock(mutex);
        job->done = true;
      }
      ready.notify_all();
    }
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
    std::unique_lock lock(mutex);
    const auto some = [&] { return queue.empty() ? read_all : queue.front()->done; };
    if (!ready.wait_for(lock, std::chrono::milliseconds(100), some)) return Got::nothing_yet;
    if (queue.empty()) return Got::end;
    const std::shared_ptr<Job> job = std::move(queue.front());
    queue.pop_front();
    bytes -= job->bytes;
    if (untaken > 0) --untaken;
    lock.unlock();
    room.notify_one();
    if (job->failure) std::rethrow_exception(job->failure);
    block = std::move(job->encoded);
    return Got::block;
  }
};

EncodePipeline::EncodePipeline(TextInput& input, const Tokenizer& tokenizer, std::int32_t end_token, const Chat* chat,
                               int threads)
    : impl_(std::make_unique<Impl>(input, tokenizer, end_token, chat, threads)) {}
EncodePipeline::~EncodePipeline() = default;
EncodePipeline::Got EncodePipeline::next(EncodedBlock& block) { return impl_->next(block); }

}  // namespace redline::data
