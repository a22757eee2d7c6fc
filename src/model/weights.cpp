// Maps tensors to parameters.
#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/thread_pool.h"
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

// Whether two tensors hold the same. They are read by the piece: pages of a mapping would stay in memory until the
// weights are loaded, and a fault for every few of them takes longer than the copy.
bool same_bytes(const io::SafetensorsReader& a_file, const io::StoredTensor& a, const io::SafetensorsReader& b_file,
                const io::StoredTensor& b) {
  if (a.dtype != b.dtype || a.bytes.size() != b.bytes.size()) return false;
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  const InputFile a_input(a_file.path()), b_input(b_file.path());
  const std::int64_t a_begin = a.bytes.data() - a_file.file().bytes().data();
  const std::int64_t b_begin = b.bytes.data() - b_file.file().bytes().data();
  std::atomic<bool> same = true;
  ThreadPool().for_ranges(static_cast<std::int64_t>(a.bytes.size()), kPiece, [&](std::int64_t begin, std::int64_t end) {
    if (!same) return;
    const auto bytes = static_cast<std::size_t>(end - begin);
    const auto read = std::make_unique_for_overwrite<std::byte[]>(2 * bytes);
    a_input.read(static_cast<std::uint64_t>(a_begin + begin), {read.get(), bytes});
    b_input.read(static_cast<std::uint64_t>(b_begin + begin), {read.get() + bytes, bytes});
    if (std::memcmp(read.get(), read.get() + bytes, bytes) != 0) same = false;
  });
  return same;
}

// A tied model's file may repeat the embedding as the head, and files of old transformers hold the rotary frequencies.
// A head that is another one is not thrown away unseen.
bool is_passed_over(const io::SafetensorsReader& file, const io::StoredTensor& t, const io::WeightFiles& weights,
                    const config::Model& model) {
  if (t.name.ends_with("rotary_emb.inv_freq")) return true;
  if (!model.tied || t.name != "lm_head.weight") return false;
  for (const io::WeightFiles::File& other : weights.files())
    if (const io::StoredTensor* embedding = other.reader->find("model.embed_tokens.weight");
        embedding && !same_bytes(file, t, *other.reader, *embedding))
      fail_user(
          "{}: lm_head.weight is not model.embed_tokens.weight, though config.json says tie_word_embeddings; set "
          "that to false, or take lm_head.weight out",
          weights.listing().string());
  return true;
}

void require_match(const io::StoredTensor& t, const StoredParameter& p, const std::string& file) {
  if (t.shape != p.shape)
    fail_user("{}: {} has shape [{}], but the configuration asks for [{}]", file, p.name, fmt::join(t.shape, ", "),
              fmt::join(p.shape, ", "));
  constexpr DType kWeights[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  if (std::ranges::find(kWeights, t.dtype) == std::end(kWeights))
    fail_user("{}: {} has dtype {}; redline reads weights in f32, bf16, f16 and f64", file, p.name, name_of(t.dtype));
}

}  // namespace

std::vector<MatchedFile> match_weights(const io::WeightFiles& weights, const config::Model& model,
                                       const FlatLayout& layout) {
  std::map<std::string_view, const StoredParameter*> parameters;
  for (const StoredParameter& p : layout.stored) parameters.emplace(p.name, &p);
  std::vector<MatchedFile> matched;
  for (const io::WeightFiles::File& file : weights.files()) {
    MatchedFile& m = matched.emplace_back();
    m.file = &file;
    for (const io::StoredTensor& t : file.reader->tensors()) {
      const auto it = parameters.find(t.name);
      if (it == parameters.end()) {
        if (is_passed_over(*file.reader, t, weights, model)) continue;
        fail_user("{}: holds {}, which the configuration has no place for", file.reader->path().string(),
                  io::in_quotes(t.name));
      }
      require_match(t, *it->second, file.reader->path().string());
      m.tensors.push_back(&t);
      m.parameters.push_back(it->second);
    }
  }
  for (const StoredParameter& p : layout.stored) weights.at(p.name);
  return matched;
}

// In doubles: untrusted extents multiply past 64 bits.
void check_size(const io::WeightFiles& weights, const config::Model& model) {
  double held = 0, asked = 0;
  for (const io::WeightFiles::File& file : weights.files())
    for (const io::StoredTensor& t : file.reader->tensors()) held += static_cast<double>(t.elements());
  const bool too_deep = model.layers > static_cast<std::int64_t>(weights.tensors());
  if (!too_deep) {
    for (const ParameterSpec& p : family_of(model).table(model)) {
      double elements = 1;
      for (int i = 0; i < p.shape.rank(); ++i) elements *= static_cast<double>(p.shape[i]);
      asked += elements;
    }
  }
  if (too_deep || asked > held)
    fail_user("{}: {} tensors with {} elements, fewer than config.json describes", weights.listing().string(),
              weights.tensors(), static_cast<std::int64_t>(held));
}

}  // namespace redline::model
