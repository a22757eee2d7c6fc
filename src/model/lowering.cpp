// Model and batch shape to programs: declares what persists, then writes one program after the other. Before it, the
// options of a configuration; and the nodes around an update that norms of tensors are made of.
#include "model/lowering.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/step_state.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "model/fp8_linears.h"
#include "ops/experts.h"
#include "program/builder.h"
#include "program/planner.h"
#include "program/program.h"

namespace redline::model {
namespace {

// Rows of logits that exist at a time: enough that their products fill the device, and on a card at least so many
// elements, since a chunk of a small vocabulary is over before the next is launched. Every chunk adds to the gradient
// of the whole head: with 8192 rows instead of 16384 a step of qwen3-1.8b takes 0.8% longer.
constexpr std::int64_t kCpuLossChunk = 512, kCudaLossChunk = 16384, kCudaLossElements = 1 << 26;

// Elements of an array that come from the host's memory at a time. 2^23 floats take 0.6 ms over PCIe 5, some sixty
// times what a node costs to launch, and a step's three pieces of four arrays 400 MB, where activations stand
// otherwise. A small model has some pieces, too.
constexpr std::int64_t kLargestPiece = 1 << 23, kPieces = 16;
// The same of gradients and masters that are taken to fp32 for the update, where nothing comes from the host.
constexpr std::int64_t kLargestWide = 1 << 26;

constexpr std::int64_t kMostIndex = std::numeric_limits<std::int32_t>::max();  // of tokens and of documents

// Products of a card, and those of eight bits anywhere, want rows in sixteens; the last chunk is what is left.
std::int64_t loss_chunk(const config::Config& c, device::Kind kind) {
  constexpr std::int64_t kRows = ops::kFp8Multiple;
  if (const std::int64_t rows = c.kernels.logits_rows; rows > 0) return (rows + kRows - 1) / kRows * kRows;
  return kind == device::Kind::cuda ? std::max(kCudaLossChunk, kCudaLossElements / c.model.vocab) : kCpuLossChunk;
}

program::Recompute recompute_of(std::string_view name) {
  if (name == "mlp") return program::Recompute::mlp;
  if (name == "rest") return program::Recompute::rest;
  return name == "block" ? program::Recompute::block : program::Recompute::none;
}

}  // namespace

data::BatchShape batch_shape(const config::Config& c) {
  return {c.train.batch_size, c.train.seq_len, c.data.max_segments};
}

std::int64_t most_rows(const config::Config& c) {
  return std::min(kMostIndex / c.train.seq_len, kMostIndex / c.data.max_segments);
}

DecodeShape decode_shape(device::Kind kind, std::int64_t texts, std::int64_t prompt, std::int64_t tokens,
                         std::int64_t positions) {
  constexpr std::int64_t kPromptStep = 64;  // a card's products are tuned for each number of rows: few of them
  if (prompt + tokens <= positions)
    positions = prompt + tokens;
  else
    prompt = std::max(prompt, positions / 2);
  DecodeShape shape{.slots = std::min(texts, kMostSlots), .positions = positions, .prompt = prompt, .rows = kMostSlots};
  if (kind == device::Kind::cuda)
    shape.prompt = (prompt + kPromptStep - 1) / kPromptStep * kPromptStep;
  else
    shape.rows = shape.slots;
  return shape;
}

LoweringOptions lowering_options(const config::Config& c, device::Kind kind) {
  LoweringOptions o;
  o.batch = batch_shape(c);
  o.accumulate = c.train.accumulate > 1;
  o.single = o.accumulate && c.train.accumulate_from == 1;
  o.loss_chunk = loss_chunk(c, kind);
  o.z_loss = c.train.z_loss;
  o.optim = c.optim;
  if (c.optim.name == "muon") o.optimizer = c.optim.muon_beta2 > 0 ? &kNorMuon : &kMuon;
  o.spike = c.guard.spike;
  o.average = c.train.average != "none";
  if (c.precision.gradients == "bf16") o.gradients = DType::bf16;
  if (c.precision.masters == "bf16") o.masters = DType::bf16;
  o.norms = c.log.norms_every > 0;
  o.seed = static_cast<std::uint64_t>(c.train.seed);
  o.placement = c.memory.placement;
  o.recompute = recompute_of(o.placement.recompute.empty() ? c.train.recompute : o.placement.recompute);
  o.recompute_layers = o.placement.recompute_layers;
  o.execution.graphs = c.kernels.graphs == "auto";
  o.kind = kind;
  if (c.train.sample_every > 0)
    o.decode = decode_shape(kind, std::max<std::int64_t>(static_cast<std::int64_t>(c.train.sample_prompts.size()), 1),
                            std::min(kSamplePromptTokens, c.train.seq_len), c.train.sample_tokens, c.train.seq_len);
  if (c.precision.matmul == "fp8") {  // on any device: the CPU is the truth for the others
    o.compute = DType::bf16;
    const Fp8Products fp8 = fp8_products(c);
    o.fp8 = fp8.taken;
    o.fp8_head = fp8.head;
    o.fp8_fast_sums = c.precision.fp8_sums == "fast";
  }
  if (kind != device::Kind::cuda) return o;
  if (c.kernels.deterministic && c.kernels.attention == "cudnn")
    fail_user(
        "{}kernels.deterministic does not go with kernels.attention = \"cudnn\", whose backward pass adds in the order "
        "in "
        "which blocks finish; use \"auto\", \"hopper\" or \"flash\"",
        c.origins.prefix({"kernels.deterministic", "kernels.attention"}));
  if (c.kernels.deterministic) o.products.bits = o.attention.bits = ops::Bits::repeat;
  o.attention.by = ops::attention_by(c.kernels.attention);
  const std::string& matmul = c.precision.matmul;
  if (matmul == "bf16")
    o.compute = DType::bf16;
  else if (matmul == "tf32")
    o.products.math = o.attention.math = ops::Math::tf32;
  return o;
}

std::vector<TensorNorm> tensor_norms(const ParameterTable& table, const NormSums& sums, double pairs) {
  std::vector<TensorNorm> norms;
  for (std::size_t i = 0; i < table.size(); ++i)
    norms.push_back({table[i].name, std::sqrt(sums.gradients[i]) / pairs, std::sqrt(sums.weights[i]),
                     sums.updates.empty() ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(sums.updates[i])});
  return norms;
}

RouterFigures router_figures(const config::Model& m, const std::vector<double>& totals, double pairs) {
  const auto experts = static_cast<std::size_t>(m.experts), layers = static_cast<std::size_t>(layers_with_experts(m));
  REDLINE_CHECK(totals.size() == (layers + 1) * (experts + 1), "{} totals of {} routers", totals.size(), layers);
  const double count = static_cast<double>(experts);
  RouterFigures f;
  if (pairs > 0) {
    f.balance = totals[layers * (experts + 1)] / pairs;
    f.z_loss = totals[layers * (experts + 1) + 1] / pairs;
  }
  for (std::int64_t i = 0; i < m.layers; ++i)
    if (has_experts(m, static_cast<std::size_t>(i))) f.layers.push_back(i);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const double* const row = totals.data() + layer * (experts + 1);
    double chosen = 0;
    for (std::size_t e = 0; e < experts; ++e) chosen += row[e];
    const double each = std::max(chosen, 1.0) / count;
    std::vector<double>& loads = f.loads.emplace_back();
    for (std::size_t e = 0; e < experts; ++e) loads.push_back(row[e] / each);
    f.entropy.push_back(row[experts] * static_cast<double>(m.experts_per_token) / std::max(chosen, 1.0));
  }
  return f;
}

std::vector<std::int64_t> tensor_bounds(const LoweredModel& m) {
  std::vector<std::int64_t> bounds;
  for (std::size_t i = 0; i < m.table.size(); ++i) {
    const std::int64_t offset = m.layout.offsets[i];
    const Range part = intersection({offset, offset + m.table[i].shape.elements()}, m.own);
    bounds.push_back(part.empty() ? 0 : part.begin - m.own.begin);
    bounds.push_back(part.empty() ? 0 : part.end - m.own.begin);
  }
  return bounds;
}

std::vector<program::Distribution::Unit> travelling_units(const ParameterTable& table, const FlatLayout& layout) {
  using Key = std::pair<Travels, std::size_t>;  // and the layer or the row
  std::map<std::int64_t, Key> begins;           // of parameters in the flat layout, and the unit that they are of
  for (std::size_t i = 0; i < table.size(); ++i) {
    const ParameterSpec& p = table[i];
    Key& key = begins[layout.offsets[i]] = {p.travels, 0};
    if (p.travels == Travels::alone) key.second = i;
    if (p.travels == Travels::with_layer) key.second = static_cast<std::size_t>(p.layer);
  }
  std::vector<program::Distribution::Unit> units;
  const Key* last = nullptr;
  for (const auto& [begin, key] : begins) {
    if (!last || key != *last) {
      if (!units.empty()) units.back().end = begin;
      units.push_back({{begin, layout.total}, key.first == Travels::with_small});
    }
    last = &key;
  }
  return units;
}

namespace {

using program::Builder;
using program::Role;
using program::ValueId;

// The nodes around an update that norms are made of, over what this rank owns; ranks add their sums up. First the
// values that hold the sums.
void declare_norms(Builder& b, LoweredModel& m) {
  const auto tensors = static_cast<std::int64_t>(m.table.size());
  const auto sums = [&](const char* name) { return b.declare(name, {tensors}, DType::f64, program::Role::output); };
  m.norms = {.bounds = b.declare("tensor bounds", {tensors, 2}, DType::i64, program::Role::input),
             .gradients = sums("squares of gradients"),
             .weights = sums("squares of weights"),
             .updates = sums("squares of updates"),
             .small = b.declare("gradient of a micro-batch", {sizeof(UpdateResult)}, DType::u8, program::Role::output)};
}

// Before an update; the result goes to norms_after_update. `updates`: with a copy of the weights.
ValueId norms_before_update(Builder& b, const LoweredModel& m, bool updates) {
  b.tensor_sums({m.gradients(b, m.own), {}, m.norms.bounds, m.norms.gradients}, "gradient norms");
  if (!updates) return program::kAbsent;
  const ValueId weights = m.view(b, optim::kParameters, m.own);
  return m.set.at(weights).dtype == DType::bf16 ? m.masters(b, m.own) : b.copy(weights, "weights before");
}

void norms_after_update(Builder& b, const LoweredModel& m, ValueId before) {
  const ValueId weights = m.masters(b, m.own);
  b.tensor_sums({weights, {}, m.norms.bounds, m.norms.weights}, "weight norms");
  if (before.present()) b.tensor_sums({weights, before, m.norms.bounds, m.norms.updates}, "update norms");
}

// The parameters in so many parts.
Shards shards_of(const ParameterTable& table, const FlatLayout& layout, const LoweringOptions& options, int parts) {
  Shards shards{layout.total, parts};
  if (options.training && options.optimizer->whole) shards.whole = options.optimizer->whole(table, layout);
  return shards;
}

// Whether an update is made beside the forward pass of the next step, so that copies of its state hide there. Where
// gradients or weights come from the host as well, the link is busy in a forward pass already: 8B within 24 GiB would
// be 2% slower by the plan.
bool is_late(const LoweringOptions& o) {
  const config::Placement& p = o.placement;
  return o.training && p.state_on_host() && !p.gradients && !p.weights && o.sharing.alone() && !o.optimizer->every;
}

// With several micro-steps only the last one's gradients travel, or only after it between copies of the state.
bool adds_up_last(const LoweringOptions& options) { return options.accumulate && options.sharing.apart() > 1; }

// Whether both products that read a linear's weight take it in eight bits.
bool reads_in_fp8_alone(const LoweringOptions& o, std::string_view linear) {
  const auto taken = [&](std::string_view product) {
    return std::ranges::find(o.fp8, fmt::format("{}/{}", linear, product)) != o.fp8.end();
  };
  return !linear.empty() && taken(kFp8Forward) && taken(kFp8Input);
}

// Stretches of weights whose copies can be made: from a block's beginning to one's end. Where an optimizer has matrices
// whole, its nodes have those of many layers, so all of them or none.
std::vector<Range> made_ranges(const ParameterTable& table, const FlatLayout& layout, const LoweringOptions& o) {
  std::vector<Range> made =
      ranges_where(table, layout, [&](const ParameterSpec& p) { return reads_in_fp8_alone(o, p.fp8); });
  const auto cuts_blocks = [](const Range& r) { return r.begin % kCutBlock != 0 || r.end % kCutBlock != 0; };
  const bool cut = std::erase_if(made, cuts_blocks) > 0;
  const auto is_read = [&](const ParameterSpec& p) { return p.by_matrix && !reads_in_fp8_alone(o, p.fp8); };
  if (o.optimizer->whole && (cut || std::ranges::any_of(table, is_read))) return {};
  return made;
}

class Lower {
 public:
  Lower(const config::Model& model, const LoweringOptions& options)
      : model_(model), options_(options), attention_(options.attention), family_(family_of(model)), b_(m_.set) {
    m_.table = family_.table(model);
    m_.layout = lay_out(m_.table);
    const dist::Sharing& sharing = options.sharing;
    m_.shards = shards_of(m_.table, m_.layout, options, sharing.holders());
    m_.updated = m_.shards.part(sharing.holder());
    parts_ = shards_of(m_.table, m_.layout, options, sharing.ranks);
    m_.own = parts_.part(sharing.own_part());
    d_.sharing = sharing;
    d_.shards = m_.shards;
    d_.units = travelling_units(m_.table, m_.layout);
    const bool on_host = options.placement.state_on_host();
    if (options.rounds_masters() && options.kind == device::Kind::cuda && options.compute == DType::f32)
      fail_user(
          "precision.masters = \"bf16\" is for products that take bf16 or fp8 on a card: set precision.matmul to one "
          "of them, or precision.masters = \"fp32\"");
    if (options.training && (on_host || rounds() || options.rounds_masters()))
      m_.piece = std::min((m_.layout.total / kPieces + kCutBlock) / kCutBlock * kCutBlock,
                          on_host ? kLargestPiece : kLargestWide);
  }

  LoweredModel lower() {
    lower_steps();
    if (options_.training && options_.norms) norms();
    return std::move(m_);
  }

 private:
  void lower_steps() {
    declare_parameters();
    declare_batch_and_results();
    for (const ops::Documents documents : variants()) {
      attention_.documents = documents;
      if (options_.training) micro_step(kFirst, {.training = true});
      if (is_late(options_)) micro_step(kUpdateAndFirst, {.training = true});
      if (options_.training && options_.accumulate) micro_step(kAccumulate, {.training = true, .accumulate = true});
      if (options_.training && has_last()) micro_step(kLast, {.training = true, .accumulate = true});
      if (options_.training && has_last() && options_.single) micro_step(kOnly, {.training = true});
      micro_step(kEvaluate, {});
    }
    attention_.documents = ops::Documents::packed;
    if (options_.training) update(kUpdate);
    if (is_late(options_)) late_update();
    if (options_.training) check();
    if (m_.at(optim::kAverage).present()) averages();
    if (options_.training) results();
    if (options_.logits) logits();
    if (options_.decode.slots > 0) decoding();
    if (options_.refreshes()) refresh();
    if (!options_.sharing.alone() && options_.sharing.mode == dist::Mode::zero1)
      m_.set.programs.push_back(program::gather_weights(m_.set, std::string(kGather), d_));
    if (const auto count = std::ranges::count_if(m_.set.values, is_fp8, &program::Value::dtype); count > 0)
      m_.fp8_counts =
          b_.declare("fp8 counts", {count * static_cast<std::int64_t>(sizeof(ops::Fp8Count))}, DType::u8, Role::output);
    plan();
  }
  void plan() {
    for (program::Program& p : m_.set.programs) {
      if (m_.copies.all.present()) program::make_copies(m_.set, p, m_.copies);
      program::stream_host_values(m_.set, p);
    }
    program::plan_memory(m_.set);
  }
  ValueId placed(ValueId value, bool on_host) {
    if (on_host && options_.training) m_.set.at(value).memory = program::Memory::host;
    return value;
  }

  // A card has a faster way for full rows; a run may meet both kinds of batches. Ranks run the same programs, though
  // one may have full rows where another has none.
  std::span<const ops::Documents> variants() const {
    static constexpr ops::Documents kAll[] = {ops::Documents::packed, ops::Documents::full_rows};
    const bool both = options_.kind == device::Kind::cuda && options_.sharing.alone();
    return std::span(kAll).first(both ? 2 : 1);
  }

  bool has_last() const { return adds_up_last(options_); }
  bool rounds() const { return options_.gradients == DType::bf16; }
  bool fsdp() const { return !options_.sharing.alone() && options_.sharing.mode == dist::Mode::fsdp; }

  // An array with an element for every one of the parameters' in a range.
  ValueId declare_range(std::string_view name, const Range& range, DType dtype, Role role, const char* file = "") {
    const Range all = m_.layout.whole();
    return m_.declare(b_,
                      {.name = std::string(name),
                       .dtype = dtype,
                       .range = range,
                       .file = file,
                       .shared = range == all ? Range{} : all},
                      role);
  }
  // The same for all parameters; or, where ranks keep shards of it only, a name for all of it and this rank's shard.
  program::Distribution::Array declare_all(std::string_view name, DType dtype, Role role, const char* file = "") {
    const Range all = m_.layout.whole();
    if (!fsdp()) return {declare_range(name, all, dtype, role, file), {}, all};
    const ValueId shard = declare_range(name, m_.updated, dtype, role, file);
    return {b_.declare(fmt::format("all {}", name), {m_.layout.total}, dtype, Role::activation), shard, all};
  }

  // A name for all of them in fp32, and what is kept.
  program::Distribution::Array rounded_gradients() {
    const Range all = m_.layout.whole();
    const ValueId kept = declare_range(optim::kGradients, all, DType::bf16, Role::gradient);
    return {b_.declare("all gradients", {m_.layout.total}, DType::f32, Role::activation), kept, all};
  }

  // The first parameter whose moments lie in the host's memory, where those of the last layers alone do: one that
  // begins a block, so that no piece cuts one.
  std::int64_t first_on_host() const {
    std::int64_t first = m_.layout.total;
    for (std::size_t i = 0; i < m_.table.size(); ++i)
      if (const std::int64_t at = m_.layout.offsets[i];
          m_.table[i].layer >= model_.layers - options_.placement.moment_layers && at % kCutBlock == 0)
        first = std::min(first, at);
    return first;
  }
  // A row of moments, or two, where a part of it lies in the host's memory. Scales of blocks are few: they stay.
  void declare_moments_of(optim::StateArray row) {
    const std::int64_t cut = options_.placement.moment_layers > 0 ? first_on_host() : 0;
    const bool behind = cut == 0 || (row.range.begin >= cut && row.by_parameter());
    if (behind || !row.by_parameter() || row.range.end <= cut) {
      placed(m_.declare(b_, std::move(row), Role::moment), options_.placement.moments && behind);
      return;
    }
    optim::StateArray here = row;
    here.range.end = row.range.begin = cut;
    m_.declare(b_, std::move(here), Role::moment);
    placed(m_.declare(b_, std::move(row), Role::moment), true);
  }

  // Rows of one name that follow each other are one array, back to back: a node may have elements of several.
  void declare_moments(optim::StateTable rows) {
    REDLINE_CHECK(options_.placement.moment_layers == 0 || cuts_moments(options_),
                  "moments of some layers are apart for AdamW on one rank alone");
    for (auto first = rows.begin(); first != rows.end();) {
      const auto end = std::find_if(first, rows.end(), [&](const auto& a) { return a.name != first->name; });
      if (end - first == 1) {
        declare_moments_of(std::move(*first++));
        continue;
      }
      std::int64_t elements = 0, at = 0;
      for (auto row = first; row != end; ++row) elements += row->elements();
      const ValueId array =
          placed(b_.declare(first->name, {elements}, first->dtype, Role::moment), options_.placement.moments);
      for (; first != end; ++first) {
        const std::int64_t bytes = first->elements() * static_cast<std::int64_t>(size_of(first->dtype));
        m_.state_values.push_back(b_.view(array, first->name, {first->elements()}, at));
        m_.state.push_back(std::move(*first));
        at += bytes;
      }
    }
  }

  // The table's parameters as views into a flat array.
  std::vector<ValueId> views(ValueId of, const char* suffix) {
    const auto element = static_cast<std::int64_t>(size_of(m_.set.at(of).dtype));
    std::vector<ValueId> values;
    for (std::size_t i = 0; i < m_.table.size(); ++i) {
      const std::string name = m_.table[i].name + suffix;
      const Shape& shape = m_.table[i].shape;
      const std::int64_t at = m_.layout.offsets[i];
      const bool in_parts = of == m_.copies.all;  // some have rows, others are made
      values.push_back(in_parts ? b_.view(m_.view(b_, optim::kWorking, {at, at + shape.elements()}), name, shape, 0)
                                : b_.view(of, name, shape, at * element));
      b_.set_parameter(values.back(), i);
    }
    return values;
  }

  // A name for all working copies, and rows for those that training reads. What lies between is made where it is read.
  program::Distribution::Array declare_made_copies() {
    REDLINE_CHECK(can_make_copies(model_, options_) && !options_.placement.masters && !options_.placement.weights,
                  "working copies that are made need masters on the device, and no product that reads them");
    const Range all = m_.layout.whole();
    const ValueId name = b_.declare("all working copies", {all.end}, options_.compute, Role::activation);
    std::int64_t from = 0;
    std::vector<Range> made = made_ranges(m_.table, m_.layout, options_);
    made.push_back({all.end, all.end});
    for (const Range& next : made) {
      if (from < next.begin) declare_range(optim::kWorking, {from, next.begin}, options_.compute, Role::working);
      from = next.end;
    }
    m_.copies = {name, m_.at(optim::kParameters)};
    return {name, {}, all};
  }
  // Pieces end where moments on the device do, and what is made; that is made layer by layer.
  void cut_pieces() {
    if (!options_.training) return;
    std::set<std::int64_t> cuts;
    if (options_.placement.moment_layers > 0) cuts.insert(first_on_host());
    if (m_.copies.all.present())
      for (const Range& made : made_ranges(m_.table, m_.layout, options_)) {
        cuts.insert({made.begin, made.end});
        std::int32_t layer = program::kNoLayer;
        for (std::size_t i = 0; i < m_.table.size(); ++i) {
          const std::int64_t at = m_.layout.offsets[i];
          if (at < made.begin || at >= made.end) continue;
          if (std::exchange(layer, m_.table[i].layer) != m_.table[i].layer && at % kCutBlock == 0) cuts.insert(at);
        }
      }
    m_.cuts.assign(cuts.begin(), cuts.end());
  }

  void declare_parameters() {
    // The weights of products: the parameters themselves, or their copies in the type that products take.
    const bool copies = options_.has_copies();
    if (copies)
      placed(declare_range(optim::kParameters, m_.updated, DType::f32, Role::parameter, io::kWeightsFile),
             options_.placement.masters);
    REDLINE_CHECK(copies || !options_.placement.masters, "products read the parameters: they are weights");
    REDLINE_CHECK(streams_layers(options_.sharing) || !(options_.placement.gradients || options_.placement.weights),
                  "ranks that keep all gradients and weights have them on the device");
    const DType kept = options_.rounds_masters() ? DType::bf16 : DType::f32;
    d_.weights = options_.placement.copies ? declare_made_copies()
                 : copies                  ? declare_all(optim::kWorking, options_.compute, Role::working)
                                           : declare_all(optim::kParameters, kept, Role::parameter, io::kWeightsFile);
    cut_pieces();
    place_weights();
    const std::vector<ValueId> parameters = views(d_.weights.all, "");
    for (std::size_t i = 0; i < parameters.size(); ++i) values_.add(m_.table[i].name, parameters[i]);
    if (!options_.training) return;
    REDLINE_CHECK(!rounds() || options_.sharing.alone(), "ranks add up gradients in fp32");
    REDLINE_CHECK(!options_.rounds_masters() || (options_.sharing.alone() && !options_.average),
                  "masters in bf16 are those of one rank, and have no average");
    d_.gradients = rounds() ? rounded_gradients() : declare_all(optim::kGradients, DType::f32, Role::gradient);
    placed(m_.at(optim::kGradients), options_.placement.gradients);
    const std::vector<ValueId> gradients = views(d_.gradients.all, " gradient");
    for (std::size_t i = 0; i < parameters.size(); ++i) b_.pair_gradient(parameters[i], gradients[i]);
    declare_moments(options_.optimizer->state(m_.table, m_.layout, m_.updated, options_.optim));
    if (options_.spike > 0) m_.declare(b_, optim::usual_norm_state(), Role::record);
    const Range all = m_.layout.whole();
    if (options_.average)
      placed(m_.declare(b_, optim::average_state(m_.updated, m_.updated == all ? Range{} : all), Role::average),
             options_.placement.averages);
    fp8_.declare(b_, m_, options_, parameters);
    place_weights();
    d_.fp8_weights = fp8_.shared_weights();
    m_.first_gathers_all = !d_.fp8_weights.all.present();
  }

  // What products read, in whatever type, goes to the host's memory. The flat array goes before it has views.
  void place_weights() {
    for (std::size_t i = 0; i < m_.set.values.size(); ++i)
      if (const Role role = m_.set.values[i].role;
          role == Role::working || (role == Role::parameter && !options_.has_copies()))
        placed({static_cast<std::int32_t>(i)}, options_.placement.weights);
  }

  void declare_batch_and_results() {
    const data::BatchShape& batch = options_.batch;
    const std::int64_t n = batch.tokens() / options_.sharing.sequence;
    REDLINE_CHECK(n * options_.sharing.sequence == batch.tokens() && model_.heads % options_.sharing.sequence == 0,
                  "{} ranks cannot share {} tokens and {} heads alike", options_.sharing.sequence, batch.tokens(),
                  model_.heads);
    const auto input = [&](const char* name, std::int64_t size) {
      return b_.declare(name, {size}, DType::i32, Role::input);
    };
    m_.batch = {.tokens = input("tokens", n),
                .targets = input("targets", n),
                .positions = input("positions", n),
                .doc_offsets = input("doc_offsets", batch.documents() + 1),
                .longest = batch.seq_len};
    m_.step_state = b_.declare("step state", {sizeof(StepState)}, DType::u8, Role::input);
    m_.update_result = b_.declare("update result", {sizeof(UpdateResult)}, DType::u8, Role::output);
    m_.check_result =
        b_.declare("check result", {std::ssize(checked()), sizeof(UpdateResult)}, DType::u8, Role::output);
    m_.losses = b_.declare("losses", {n}, DType::f32, Role::output);
    m_.loss_sum = b_.declare("loss sum", {1}, DType::f64, Role::output);
    if (options_.training && model_.experts > 0) declare_router_values();
    b_.set_step_state(m_.step_state);
    const std::int64_t positions = std::max(batch.seq_len, options_.decode.positions);
    for (ConstantSpec& c : family_.constants(model_, positions))
      values_.add(c.name, b_.constant(c.name, c.shape, std::move(c.make)));
  }

  // What routers did: of a micro-batch, and of a step, whose ranks add up theirs in the update.
  void declare_router_values() {
    const std::int64_t layers = layers_with_experts(model_);
    const auto sums = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      return b_.declare(name, {rows, columns}, DType::f64, Role::output);
    };
    m_.batch.router_load = sums("router load", layers, ops::load_columns(model_.experts));
    m_.router_totals = sums("router totals", layers + 1, ops::total_columns(model_.experts));
    d_.sums = {m_.router_totals};
  }

  void begin(std::string_view name, program::Lowering lowering) {
    lowering.compute = options_.compute;
    lowering.loss_chunk = options_.loss_chunk;
    lowering.z_loss = static_cast<float>(options_.z_loss);
    lowering.recompute = options_.recompute;
    lowering.recompute_layers = options_.recompute_layers;
    lowering.keep_on_host = options_.placement.residuals && lowering.training;
    lowering.kind = options_.kind;
    lowering.products = options_.products;
    lowering.attention = attention_;
    lowering.fp8 = fp8_.linears();
    b_.begin(std::string(name), lowering);
  }

  ForwardValues forward(const program::BatchValues& batch) { return family_.forward(b_, model_, values_, batch); }

  void micro_step(std::string_view name, program::Lowering lowering) {
    lowering.fresh_gradients = fsdp() || rounds();
    lowering.sequence = options_.sharing.sequence;
    begin(name, lowering);
    const auto [hidden, head] = forward(m_.batch);
    b_.lm_loss(hidden, head, m_.batch.targets, {m_.losses, m_.loss_sum});
    if (lowering.training && model_.experts > 0)
      b_.balance_loss(m_.batch, m_.router_totals, model_.experts_per_token, static_cast<float>(model_.router_aux),
                      static_cast<float>(model_.router_z_loss), model_.router_balance == "model");
    if (lowering.training) b_.backward();
    b_.end();
    if (lowering.training && rounds())
      program::round_gradients(m_.set, m_.set.programs.back(), {d_.gradients.all, d_.gradients.shard, m_.step_state},
                               lowering.accumulate);
    const bool last = name == kOnly || name == kUpdateAndFirst || name == (has_last() ? kLast : kFirst);
    distribute({.gather_weights = name == kFirst || name == kOnly,
                .reduce_gradients = lowering.training && (fsdp() || last),
                .accumulate = lowering.accumulate,
                .complete = last});
  }

  void end() {
    b_.end();
    distribute();
  }
  void distribute(const program::Collectives& collectives = {}) {
    program::distribute(m_.set, m_.set.programs.back(), d_, collectives);
  }

  // Gradients as the norm has them: whole, or in pieces of whole groups where they come from the host's memory or are
  // taken to fp32, which give the same bits.
  std::vector<program::NormOf::Piece> summed(const Range& range) {
    std::vector<program::NormOf::Piece> pieces;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      pieces.push_back({m_.view(b_, optim::kGradients, {begin, end}), begin});
    };
    std::int64_t begin = range.begin;
    for (std::int64_t g = 1; g <= kCutGroups && (options_.placement.gradients || rounds()); ++g) {
      const std::int64_t end = group_begin(g, m_.layout.total), next = group_begin(g + 1, m_.layout.total);
      if (end <= begin || end >= range.end || next - begin <= m_.piece) continue;
      add(begin, end);
      begin = end;
    }
    add(begin, range.end);
    return pieces;
  }

  enum class Norms { none, without_updates, all };
  void update(std::string_view name, Norms norms = Norms::none) {
    begin(name, {});
    b_.at(program::Part::update);
    const ValueId before = norms == Norms::none ? program::kAbsent : norms_before_update(b_, m_, norms == Norms::all);
    decide();
    move();
    if (norms != Norms::none) norms_after_update(b_, m_, before);
    end();
    m_.set.split_by_step();
  }
  // Whether and how far the update moves.
  void decide() {
    b_.grad_norm({summed(m_.own), m_.layout.total, m_.loss_sum, m_.step_state},
                 {{},
                  m_.update_result,
                  static_cast<float>(options_.optim.clip),
                  m_.at(optim::kUsual),
                  static_cast<float>(options_.spike)});
  }
  void move() {
    options_.optimizer->update(b_, m_, options_.optim);
    if (m_.at(optim::kAverage).present())
      for (const Range& part : m_.pieces(m_.updated))
        b_.average({m_.view(b_, optim::kParameters, part), m_.view(b_, optim::kAverage, part), m_.step_state,
                    m_.update_result});
    fp8_.append_update(b_, m_, m_.update_result);
  }

  // The norm keeps the state of its step for the nodes that move, which stand in the next step.
  void late_update() {
    m_.late_state = b_.declare("step state of a late update", {sizeof(StepState)}, DType::u8, Role::input);
    begin(kNorm, {});
    b_.at(program::Part::update);
    decide();
    b_.copy_bytes(m_.step_state, m_.late_state, "step state");
    end();
    const std::size_t count = m_.set.programs.size();
    for (std::size_t i = 0; i <= count; ++i) {
      if (i < count && m_.set.programs[i].name != kUpdateAndFirst) continue;
      begin(kFinish, {});
      b_.at(program::Part::update);
      move();
      end();
      std::vector<program::Node>& nodes = m_.set.programs.back().nodes;
      const auto late = [&](std::string_view, ValueId id, Access) { return id == m_.step_state ? m_.late_state : id; };
      for (program::Node& node : nodes) {
        REDLINE_CHECK(node.every == 1, "{} runs every {} steps, and its optimizer does not say so", node.name,
                      node.every);
        std::visit([&](auto& op) { op = op.map(late); }, node.op);
      }
      if (i == count) return;
      program::run_beside(m_.set, m_.set.programs[i], std::exchange(nodes, {}));
      m_.set.programs.pop_back();
    }
  }

  // Programs that run at few steps. They take no memory that the others do not: the weights before an update lie where
  // activations were, if there is room for all of them.
  void norms() {
    if (have_room(add_norms())) return;
    std::erase_if(m_.set.programs, [](const program::Program& p) { return p.name == kUpdateWithNorms; });
    m_.norms.has_updates = false;
    update(kUpdateWithNorms, Norms::without_updates);
    plan();
  }
  // Adds them with a copy of the weights; whether that has room here.
  bool add_norms() {
    const std::int64_t arena = m_.set.memory.device.total - m_.set.memory.device.persistent;
    declare_norms(b_, m_);
    if (options_.accumulate) {
      const Range local = fsdp() ? m_.updated : m_.layout.whole();  // not added up yet
      begin(kSmallGradient, {});
      b_.at(program::Part::update);
      b_.grad_norm({summed(local), m_.layout.total, {}, m_.step_state}, {{}, m_.norms.small});
      end();
    }
    update(kUpdateWithNorms, Norms::all);
    m_.norms.has_updates = true;
    plan();
    return m_.set.memory.device.total - m_.set.memory.device.persistent <= arena;
  }
  // Whether it has room on all ranks, which add up as many sums each, though their shards are uneven where matrices are
  // whole. Two of them decide, whose programs the others lower as well: the one that has most weights to copy, and the
  // one that updates most whole matrices. Of a tiny model another one's arena may grow by some percent.
  bool have_room(bool here) const {
    if (options_.sharing.alone()) return here;
    for (const int rank : std::set{rank_of_most(), largest_ranks(model_, options_).by_update}) {
      LoweringOptions theirs = options_;
      theirs.sharing.rank = rank;
      if (!(rank == options_.sharing.rank ? here : Lower(model_, theirs).has_room())) return false;
    }
    return true;
  }
  bool has_room() {
    lower_steps();
    return add_norms();
  }
  int rank_of_most() const {
    const auto elements = [&](int rank) {
      dist::Sharing sharing = options_.sharing;
      sharing.rank = rank;
      return parts_.part(sharing.own_part()).elements();
    };
    int most = 0;
    for (int rank = 1; rank < options_.sharing.ranks; ++rank)
      if (elements(rank) > elements(most)) most = rank;
    return most;
  }

  // Working copies are made from the average; where there are none, it and the parameters change places. Products of
  // an evaluation take no operands in eight bits.
  void averages() {
    const bool copies = m_.at(optim::kWorking).present();
    for (const std::string_view name : {kStartAverage, kShowAverage, kShowWeights}) {
      begin(name, {});
      b_.at(program::Part::update);
      for (const Range& range : m_.pieces(m_.updated)) {
        const auto part = [&](std::string_view array) { return m_.view(b_, array, range); };
        if (name == kStartAverage)
          b_.refresh({part(optim::kParameters), part(optim::kAverage)});
        else if (copies)
          b_.refresh({part(name == kShowAverage ? optim::kAverage : optim::kParameters), part(optim::kWorking)});
        else
          b_.exchange({part(optim::kParameters), part(optim::kAverage)});
      }
      end();
    }
  }

  void results() {
    for (std::size_t i = 0; i < kResults.size(); ++i) {
      const auto host = [&](ValueId of) {
        const program::Value value = m_.set.at(of);
        return b_.declare(value.name + " on the host", value.shape, value.dtype, Role::output, program::Memory::host);
      };
      const ValueId loss_sum = host(m_.loss_sum), update = host(m_.update_result);
      const ValueId router = m_.router_totals.present() ? host(m_.router_totals) : program::kAbsent;
      m_.results[i] = {loss_sum, update, router};
      begin(kResults[i], {});
      b_.at(program::Part::update);
      b_.copy_bytes(m_.loss_sum, loss_sum, "loss");
      b_.copy_bytes(m_.update_result, update, "update result");
      if (router.present()) b_.copy_bytes(m_.router_totals, router, "router totals");
      end();
    }
  }

  // The pieces of the parameters that are looked at one by one; as many on every rank, since ranks add their sums up.
  std::vector<Range> checked() const {
    std::size_t most = 0;
    for (int part = 0; part < parts_.ranks; ++part) most = std::max(most, m_.pieces(parts_.part(part)).size());
    std::vector<Range> parts = m_.pieces(m_.own);
    parts.resize(most, Range(parts.back()));
    return parts;
  }

  // Their norms are finite where all of them are.
  void check() {
    begin(kCheck, {});
    b_.at(program::Part::update);
    std::int64_t at = 0;
    for (const Range& part : checked()) {
      const ValueId result = b_.view(m_.check_result, "check result", {sizeof(UpdateResult)}, at);
      at += static_cast<std::int64_t>(sizeof(UpdateResult));
      b_.grad_norm({{{m_.view(b_, optim::kParameters, part), part.begin}}, m_.layout.total}, {{}, result});
    }
    end();
  }

  void logits() {
    REDLINE_CHECK(options_.sharing.sequence == 1, "a rank has the logits of a part of its rows");
    m_.logits = b_.declare("logits", {options_.batch.tokens(), model_.vocab}, DType::f32, Role::output);
    begin(kLogits, {});
    copy_logits(m_.batch, m_.logits);
    end();
  }

  void copy_logits(const program::BatchValues& batch, ValueId logits) {
    const auto [hidden, head] = forward(batch);
    b_.copy_logits(hidden, head, logits);
  }

  // Both programs are the model's own forward pass; what they are given decides what attention does in them.
  void decoding() {
    const DecodeShape& shape = options_.decode;
    DecodeValues& d = m_.decode;
    const auto input = [&](const char* name, Shape extents) {
      return b_.declare(name, extents, DType::i32, Role::input);
    };
    std::vector<program::LayerCache> caches;
    for (std::int64_t i = 0; i < model_.layers; ++i) {
      // Of a layer with a window a ring that holds just what the newest token sees.
      const std::int64_t positions =
          has_window(model_, static_cast<std::size_t>(i)) ? std::min(model_.window, shape.positions) : shape.positions;
      const Shape extents{shape.slots, model_.kv_heads, positions, model_.head_dim};
      const auto cache = [&](const char* what) {
        return b_.declare(fmt::format("layer {}/cached {}", i, what), extents, options_.compute, Role::cache);
      };
      const ValueId keys = cache("keys"), values = cache("values");
      caches.push_back({keys, values});
    }
    d.prompt = {.tokens = input("prompt tokens", {shape.prompt}),
                .targets = {},
                .positions = input("prompt positions", {shape.prompt}),
                .doc_offsets = input("prompt offsets", {2}),
                .longest = shape.prompt,
                .caches = caches,
                .slot_documents = input("prompt of slots", {shape.slots})};
    d.last_row = input("last row of the prompt", {1});
    d.prompt_logits = b_.declare("prompt logits", {1, model_.vocab}, DType::f32, Role::output);
    d.next_input = input("next tokens and positions", {2, shape.rows});
    d.next = {.tokens = b_.view(d.next_input, "next tokens", {shape.rows}, 0),
              .targets = {},
              .positions = b_.view(d.next_input, "next positions", {shape.rows}, 4 * shape.rows),
              .doc_offsets = {},
              .longest = shape.positions,
              .caches = caches,
              .slot_documents = {}};
    d.next_logits = b_.declare("next logits", {shape.rows, model_.vocab}, DType::f32, Role::output);
    d.slot_logits = b_.view(d.next_logits, "slot logits", {shape.slots, model_.vocab}, 0);

    begin(kPrefill, {});
    const auto [hidden, head] = forward(d.prompt);
    b_.copy_logits(b_.pick_rows(d.last_row, hidden, "last row"), head, d.prompt_logits);
    end();
    begin(kDecode, {});
    copy_logits(d.next, d.next_logits);
    end();
  }

  void refresh() {
    begin(kRefresh, {});
    b_.at(program::Part::update);
    if (options_.has_copies())
      for (const Range& part : m_.pieces(m_.updated))
        b_.refresh({m_.view(b_, optim::kParameters, part), m_.view(b_, optim::kWorking, part)});
    fp8_.append_update(b_, m_, program::kAbsent);
    end();
  }

  const config::Model& model_;
  const LoweringOptions& options_;
  ops::AttentionHow attention_;
  const Family& family_;
  LoweredModel m_;
  Shards parts_;  // that ranks answer for
  Builder b_;
  NamedValues values_;
  Fp8Values fp8_;
  program::Distribution d_;
};

}  // namespace

std::vector<Range> LoweredModel::pieces(const Range& range) const {
  const auto cut = std::ranges::upper_bound(cuts, range.begin);
  if (cut != cuts.end() && *cut < range.end) {
    std::vector<Range> parts = pieces({range.begin, *cut});
    for (const Range& part : pieces({*cut, range.end})) parts.push_back(part);
    return parts;
  }
  if (piece == 0 || range.elements() <= piece) return {range};
  std::vector<Range> parts;
  for (std::int64_t at = range.begin; at < range.end; at = parts.back().end)
    parts.push_back({at, std::min(range.end, (at / piece + 1) * piece)});
  return parts;
}

ValueId LoweredModel::declare(Builder& b, optim::StateArray array, Role role) {
  const ValueId value = b.declare(array.name, {array.elements()}, array.dtype, role);
  state.push_back(std::move(array));
  state_values.push_back(value);
  return value;
}

std::size_t LoweredModel::row(std::string_view array) const {
  return static_cast<std::size_t>(std::ranges::find(state, array, &optim::StateArray::name) - state.begin());
}

ValueId LoweredModel::at(std::string_view array) const {
  const std::size_t i = row(array);
  return i < state.size() ? state_values[i] : program::kAbsent;
}

ValueId LoweredModel::view(Builder& b, std::string_view array, const Range& range) const {
  for (std::size_t i = row(array); i < state.size(); ++i) {
    const optim::StateArray& a = state[i];
    if (a.name != array || range.begin < a.range.begin || range.end > a.range.end) continue;
    REDLINE_CHECK(a.cuts_no_block(range), "elements {} to {} of {} cut a block", range.begin, range.end, a.name);
    const auto element = static_cast<std::int64_t>(size_of(a.dtype));
    const Shape shape = a.shape.rank() > 0 ? a.shape : Shape{a.elements_of(range)};
    return b.view(state_values[i], a.name, shape, a.first_of(range, a.range) * element);
  }
  // Copies that have no row. Matrices of one node may span some that have one, which it skips.
  if (array == optim::kWorking && copies.all.present())
    return b.view(copies.all, std::string(array), {range.elements()},
                  range.begin * static_cast<std::int64_t>(size_of(set.at(copies.all).dtype)));
  REDLINE_CHECK(row(array) == state.size(), "{} have no elements {} to {}", array, range.begin, range.end);
  return program::kAbsent;
}

ValueId LoweredModel::gradients(Builder& b, const Range& range) const {
  const ValueId kept = view(b, optim::kGradients, range);
  return set.at(kept).dtype == DType::bf16 ? b.widened(kept, "gradients in fp32") : kept;
}

ValueId LoweredModel::masters(Builder& b, const Range& range) const {
  const ValueId kept = view(b, optim::kParameters, range);
  return set.at(kept).dtype == DType::bf16 ? b.widened(kept, "masters in fp32") : kept;
}

void LoweredModel::keep_masters(Builder& b, ValueId masters, const Range& range) const {
  const ValueId kept = view(b, optim::kParameters, range);
  if (set.at(kept).dtype == DType::bf16)
    b.round_at_random({.x = masters,
                       .state = step_state,
                       .kept = kept,
                       .begin = range.begin,
                       .all = layout.total,
                       .what = optim::Rounded::masters},
                      "masters in bf16");
}

LoweredModel lower(const config::Model& model, const LoweringOptions& options) { return Lower(model, options).lower(); }

bool can_make_copies(const config::Model& model, const LoweringOptions& o) {
  if (!o.training || !o.has_copies() || o.average || !o.sharing.alone() || o.fp8.empty()) return false;
  if (o.optimizer->whole && is_late(o)) return false;
  const ParameterTable table = family_of(model).table(model);
  return !made_ranges(table, lay_out(table), o).empty();
}

LargestRanks largest_ranks(const config::Model& model, const LoweringOptions& options) {
  const ParameterTable table = family_of(model).table(model);
  const FlatLayout layout = lay_out(table);
  const Shards shards = shards_of(table, layout, options, options.sharing.holders());
  // Bytes on the device that an element of a part takes, beside the moments.
  const config::Placement& host = options.placement;
  const bool fsdp = options.sharing.mode == dist::Mode::fsdp, copies = options.has_copies();
  std::int64_t each = (copies && !host.masters ? 4 : 0) + (options.average && !host.averages ? 4 : 0);
  if (fsdp && !host.gradients) each += 4;
  if (fsdp && !host.weights) each += static_cast<std::int64_t>(size_of(copies ? options.compute : DType::f32));
  LargestRanks largest;
  std::pair<std::int64_t, std::int64_t> most{-1, -1};  // bytes, and where they are as many, elements
  std::int64_t most_whole = -1;
  for (int rank = 0; rank < shards.ranks; ++rank) {
    const Range part = shards.part(rank);
    std::int64_t bytes = each * part.elements(), whole = shards.whole.empty() ? part.elements() : 0;
    if (options.training && !host.moments)  // some parameters have more moments than others, or wider ones
      for (const optim::StateArray& row : options.optimizer->state(table, layout, part, options.optim))
        bytes += row.elements() * static_cast<std::int64_t>(size_of(row.dtype));
    for (const Range& range : shards.whole) whole += intersection(range, part).elements();
    if (const std::pair here{bytes, part.elements()}; here > most) most = here, largest.by_memory = rank;
    if (whole > most_whole) most_whole = whole, largest.by_update = rank;
  }
  return largest;
}

std::vector<int> fullest_ranks(const config::Model& model, const LoweringOptions& options) {
  constexpr int kMost = 32;
  const LargestRanks largest = largest_ranks(model, options);
  std::set<int> ranks = {largest.by_memory, largest.by_update};
  const int holders = options.sharing.holders();
  if (options.placement.state_on_host() || !options.fp8.empty())
    for (int i = 0; i < std::min(holders, kMost); ++i)
      ranks.insert(holders <= kMost ? i : static_cast<int>(std::int64_t{i} * (holders - 1) / (kMost - 1)));
  return {ranks.begin(), ranks.end()};
}

std::vector<StepProgram> programs_of_step(const LoweringOptions& options, std::int64_t micro_batches) {
  const bool last = micro_batches > 1 && adds_up_last(options);
  const bool only = micro_batches == 1 && adds_up_last(options) && options.single;
  const bool late = is_late(options);
  std::vector<StepProgram> programs = {{only ? kOnly : late ? kUpdateAndFirst : kFirst, 1}};
  if (const std::int64_t between = micro_batches - 1 - (last ? 1 : 0); between > 0)
    programs.push_back({kAccumulate, between});
  if (last) programs.push_back({kLast, 1});
  programs.push_back({late ? kNorm : kUpdate, 1});
  return programs;
}

double model_flops(const LoweredModel& lowered, const data::BatchShape& shape, double real_tokens,
                   const program::PairsWithin& pairs) {
  return program::model_flops(lowered.set.find(kFirst))(real_tokens / static_cast<double>(shape.tokens()), pairs);
}

}  // namespace redline::model
