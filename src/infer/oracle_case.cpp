// Reads a case and refuses what no model could be compared with.
#include "infer/oracle_case.h"

#include <algorithm>

#include "io/weight_files.h"
#include "model/family.h"

namespace redline::infer {
namespace {

constexpr const char* kOracle = "oracle.safetensors";

using Extents = std::vector<std::int64_t>;

void require_shape(const io::StoredTensor& t, const Extents& wanted, const std::string& file) {
  if (t.shape != wanted)
    fail_user("{}: {} has shape [{}]; it must be [{}]", file, t.name, fmt::join(t.shape, ", "),
              fmt::join(wanted, ", "));
}

std::vector<std::int32_t> read_vector(const io::SafetensorsReader& oracle, const char* key, const std::string& file) {
  const io::StoredTensor& t = oracle.at(key);
  if (t.shape.size() != 1) fail_user("{}: {} must have one dimension", file, key);
  return t.to_i32();
}

// Empty documents hold nothing to compute and are left out.
data::Batch pack(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& offsets, std::int64_t vocab,
                 std::int64_t multiple, const std::string& file) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (n == 0) fail_user("{}: tokens is empty", file);
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != n || !std::ranges::is_sorted(offsets))
    fail_user("{}: doc_offsets must rise from 0 to the number of tokens, {}", file, n);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab)
      fail_user("{}: tokens[{}] is {}, outside the vocabulary of {}", file, i, tokens[i], vocab);

  const std::int64_t documents = std::max<std::int64_t>(static_cast<std::int64_t>(offsets.size()) - 1, 1);
  data::Batch batch({1, (n + multiple - 1) / multiple * multiple, documents});
  batch.clear();
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    const auto begin = static_cast<std::size_t>(offsets[d]), end = static_cast<std::size_t>(offsets[d + 1]);
    if (begin < end) batch.append(std::span(tokens).subspan(begin, end - begin));
  }
  if (batch.pairs == 0) fail_user("{}: no document has two tokens, so there is no loss to compare", file);
  return batch;
}

// "grad." or "final.": every parameter of the model and nothing else, or none at all.
void check_names(const io::SafetensorsReader& oracle, const std::string& prefix, const model::FlatLayout& layout,
                 const std::string& file) {
  std::map<std::string, const io::StoredTensor*> given;
  for (const io::StoredTensor& t : oracle.tensors())
    if (t.name.starts_with(prefix)) given[t.name.substr(prefix.size())] = &t;
  if (given.empty()) return;
  for (const model::StoredParameter& p : layout.stored) {
    const auto it = given.find(p.name);
    if (it == given.end()) fail_user("{}: there is no {}{}", file, prefix, p.name);
    require_shape(*it->second, p.shape, file);
    given.erase(it);
  }
  if (!given.empty()) fail_user("{}: the model has no parameter for {}{}", file, prefix, given.begin()->first);
}

OracleCase read(FileSystem& files, const Path& folder, std::int64_t multiple) {
  if (!files.exists(folder)) fail_user("{}: there is no such folder", folder.string());
  const auto require = [&](bool there, const char* name) {
    if (!there) fail_user("{}: there is no {}, which a case must have", folder.string(), name);
  };
  require(files.exists(folder / "config.json"), "config.json");
  require(io::has_weights(files, folder), io::kWeightsFile);
  require(files.exists(folder / kOracle), kOracle);

  const std::string file = (folder / kOracle).string();
  Checkpoint checkpoint = read_checkpoint(files, folder);
  const config::Model& m = checkpoint.model;
  auto oracle = std::make_shared<const io::SafetensorsReader>(folder / kOracle);
  data::Batch batch =
      pack(read_vector(*oracle, "tokens", file), read_vector(*oracle, "doc_offsets", file), m.vocab, multiple, file);

  require_shape(oracle->at("logits"), {batch.real_tokens, m.vocab}, file);
  if (oracle->at("loss").elements() != 1) fail_user("{}: loss must be one number", file);
  const io::StoredTensor& losses = oracle->at("train_losses");
  if (losses.shape.size() != 1) fail_user("{}: train_losses must have one dimension", file);
  require_shape(oracle->at("grad_norms"), losses.shape, file);
  check_size(checkpoint);
  const model::FlatLayout layout = model::lay_out(model::family_of(m).table(m));
  for (const char* prefix : {"grad.", "final."}) check_names(*oracle, prefix, layout, file);
  return {std::move(checkpoint), std::move(oracle), std::move(batch)};
}

}  // namespace

OracleCase read_case(FileSystem& files, const Path& folder, std::int64_t tokens) {
  try {
    return read(files, folder, tokens);
  } catch (const MachineError& e) {  // a file of the case that cannot be opened is the user's to mend
    throw UserError(e.what());
  }
}

}  // namespace redline::infer
