// Which tensor is which parameter.
#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

// A tied model's file may repeat the embedding as the head, and files of old transformers hold the rotary frequencies. A
// head that is another one is not thrown away unseen.
bool is_passed_over(const io::StoredTensor& t, const io::WeightFiles& weights, const config::Model& model) {
  if (t.name.ends_with("rotary_emb.inv_freq")) return true;
  if (!model.tied || t.name != "lm_head.weight") return false;
  const io::StoredTensor* embedding = weights.find("model.embed_tokens.weight");
  if (embedding && (embedding->dtype != t.dtype || !std::ranges::equal(embedding->bytes, t.bytes)))
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
        if (is_passed_over(t, weights, model)) continue;
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
