// Deals tensors out to shards first, then streams them from the source's mapping into the files, a window at a time.
#include "infer/write_weights.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "io/json.h"
#include "io/tensor_stream.h"

namespace redline::infer {
namespace {

using Shard = std::vector<io::TensorToWrite>;

std::int64_t bytes_of(const io::StoredTensor& t, DType dtype) {
  return t.elements() * static_cast<std::int64_t>(size_of(dtype));
}

std::vector<Shard> deal(std::span<const model::MatchedFile> matched, const WriteWeights& options) {
  std::vector<Shard> shards(1);
  std::int64_t size = 0;
  for (const model::MatchedFile& m : matched)
    for (const io::StoredTensor* t : m.tensors) {
      const std::int64_t bytes = bytes_of(*t, options.dtype);
      if (!shards.back().empty() && bytes > options.shard_bytes - size) {
        shards.emplace_back();
        size = 0;
      }
      shards.back().push_back({t->name, options.dtype, t->shape, {}});
      size += bytes;
    }
  return shards;
}

class Writing {
 public:
  Writing(FileSystem& files, const Path& folder, std::span<const model::MatchedFile> matched,
          const WriteWeights& options)
      : files_(files), folder_(folder), options_(options), shards_(deal(matched, options)) {
    out_.shards = shards_.size();
    for (const model::MatchedFile& m : matched)
      for (const io::StoredTensor* t : m.tensors) {
        out_.parameters += t->elements();
        out_.bytes += static_cast<std::uint64_t>(bytes_of(*t, options.dtype));
      }
  }

  void begin() {
    if (options_.progress) options_.progress(0, out_.bytes);
  }

  void stream(const model::MatchedFile& m) {
    // Elements of at least two bytes, and one that begins in the window before.
    buffer_.resize((static_cast<std::size_t>(io::kStreamWindow) / 2 + 1) * size_of(options_.dtype));
    std::size_t filled = 0;
    const auto place = [&](const io::TensorPiece& piece) {
      const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(options_.dtype);
      return io::PiecePlace{buffer_.data() + std::exchange(filled, filled + bytes), options_.dtype};
    };
    const auto done = [&](std::span<const io::TensorPiece> pieces) {
      if (options_.stop && options_.stop->load() != 0) throw Stopped();
      const std::byte* from = buffer_.data();
      for (const io::TensorPiece& piece : pieces) {
        if (piece.first == 0) begin_tensor();
        const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(options_.dtype);
        writer_->put({from, bytes});
        from += bytes;
        written_ += bytes;
        if (options_.progress) options_.progress(written_, out_.bytes);
      }
      filled = 0;
    };
    io::stream_tensors({*m.file->reader, m.tensors, m.file->hashes, pool_}, place, done);
  }

  WrittenWeights finish() {
    finish_shard();
    if (shards_.size() > 1) write_index();
    return std::move(out_);
  }

 private:
  std::string name_of_shard(std::size_t i) const {
    if (shards_.size() == 1) return io::kWeightsFile;
    return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }

  void begin_tensor() {
    if (writer_ && tensor_ < shards_[shard_].size()) {
      ++tensor_;
      return;
    }
    if (writer_) {
      finish_shard();
      ++shard_;
    }
    tensor_ = 1;
    writer_.emplace(files_, folder_ / name_of_shard(shard_), shards_[shard_],
                    std::map<std::string, std::string>{{"format", "pt"}});
  }

  void finish_shard() {
    out_.hashes[name_of_shard(shard_)] = writer_->finish();
    writer_.reset();
  }

  void write_index() {
    std::map<std::string, std::string> by_name;
    for (std::size_t i = 0; i < shards_.size(); ++i)
      for (const io::TensorToWrite& t : shards_[i]) by_name.emplace(t.name, name_of_shard(i));
    const io::Json index = {{"metadata", {{"total_parameters", out_.parameters}, {"total_size", out_.bytes}}},
                            {"weight_map", by_name}};
    const std::string text = index.dump(2) + "\n";
    const auto file = files_.create(folder_ / io::kWeightsIndex);
    file->write(text);
    file->sync();
    file->close();
    out_.hashes[io::kWeightsIndex] = hash64(text);
  }

  FileSystem& files_;
  const Path& folder_;
  const WriteWeights& options_;
  std::vector<Shard> shards_;
  WrittenWeights out_;
  ThreadPool pool_;
  std::vector<std::byte> buffer_;
  std::optional<io::SafetensorsWriter> writer_;
  std::size_t shard_ = 0, tensor_ = 0;  // the shard being written, and how many of its tensors have begun
  std::uint64_t written_ = 0;
};

}  // namespace

WrittenWeights write_weights(FileSystem& files, const Path& folder, std::span<const model::MatchedFile> matched,
                             const WriteWeights& options) {
  Writing writing(files, folder, matched, options);
  writing.begin();
  for (const model::MatchedFile& m : matched) writing.stream(m);
  return writing.finish();
}

}  // namespace redline::infer
