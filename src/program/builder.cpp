// The writer takes the cost of a node as it is appended. The builder has one function an op: the values it makes, and
// its node.
#include "program/builder.h"

#include <algorithm>
#include <cmath>

#include "base/step_state.h"
#include "program/passes.h"

namespace redline::program {

ProgramSet::ProgramSet() = default;
ProgramSet::ProgramSet(const ProgramSet&) = default;
ProgramSet::ProgramSet(ProgramSet&&) noexcept = default;
ProgramSet& ProgramSet::operator=(const ProgramSet&) = default;
ProgramSet& ProgramSet::operator=(ProgramSet&&) noexcept = default;
ProgramSet::~ProgramSet() = default;

ValueId ProgramSet::add(Value value) {
  values.push_back(std::move(value));
  return {static_cast<std::int32_t>(values.size()) - 1};
}

const Program& ProgramSet::find(std::string_view name, ops::Documents documents, std::uint64_t step) const {
  for (const ops::Documents kind : {documents, ops::Documents::packed}) {
    const Program* found = nullptr;
    for (const Program& p : programs)
      if (p.name == name && p.documents == kind && step % static_cast<std::uint64_t>(p.every) == 0)
        if (!found || found->every < p.every) found = &p;
    if (found) return *found;
  }
  fail_machine("ProgramSet::find: no program {}", name);
}

void ProgramSet::split_by_step() {
  Program& all = programs.back();
  for (const Node& node : all.nodes) {
    REDLINE_CHECK(node.every == 1 || all.every == 1 || node.every == all.every,
                  "{}: nodes of every {} steps and of every {}", all.name, node.every, all.every);
    all.every = std::max(all.every, node.every);
  }
  if (all.every == 1) return;
  Program usual = all;
  usual.every = 1;
  std::erase_if(usual.nodes, [](const Node& node) { return node.every > 1; });
  // What a node leaves behind that seldom runs must be state: other steps would find anything there.
  std::set<ValueId> usually_made;
  for (const Node& node : usual.nodes)
    each_operand(node.op, [&](std::string_view operand, ValueId id, Access access) {
      const ValueId made = owner(id);
      if (persistent(at(made).role)) return;
      if (access == Access::write) usually_made.insert(made);
      REDLINE_CHECK(usually_made.contains(made), "{} of {} is only made every {} steps", operand, node.full_name(),
                    programs.back().every);
    });
  programs.insert(programs.end() - 1, std::move(usual));
}

ValueId ProgramSet::owner(ValueId id) const {
  while (at(id).alias_of.present()) id = at(id).alias_of;
  return id;
}

const Node& ProgramSet::node(const NodeAt& at) const { return programs[at.program].nodes[at.node]; }

std::optional<Memory> copies_to(const Op& op, const std::vector<Value>& values) {
  const auto memory = [&](ValueId id) { return values[static_cast<std::size_t>(id.index)].memory; };
  if (const auto* copy = std::get_if<ops::Copy<ValueId>>(&op))
    return memory(copy->from) == memory(copy->to) ? std::nullopt : std::optional(memory(copy->to));
  return std::nullopt;
}

Lane lane_of(const Op& op, const std::vector<Value>& values) {
  const std::optional<Memory> to = copies_to(op, values);
  return !to ? Lane::side : *to == Memory::host ? Lane::to_host : Lane::to_device;
}

Node Node::wait() const {
  Node node = *this;
  node.when = When::wait;
  node.cost = {};
  node.name += "/wait";
  return node;
}

ValueId Writer::declare(std::string name, Shape shape, DType dtype, Role role, Memory memory) {
  return set_.add(
      {.name = std::move(name), .shape = shape, .dtype = dtype, .role = role, .alias_of = {}, .memory = memory});
}

ValueId Writer::view(ValueId of, std::string name, Shape shape, std::int64_t byte_offset) {
  const Value whole = set_.at(of);
  const ValueId id = declare(std::move(name), shape, whole.dtype, whole.role, whole.memory);
  Value& v = set_.at(id);
  v.alias_of = of;
  v.alias_offset = byte_offset;
  v.place = whole.place;
  REDLINE_CHECK(byte_offset >= 0 && byte_offset + v.bytes() <= whole.bytes(), "view {} leaves {}", v.name, whole.name);
  return id;
}

void Writer::begin(std::string name, Lowering lowering) {
  program_ = {.name = std::move(name), .nodes = {}, .documents = lowering.attention.documents};
  lowering_ = lowering;
  pairs_ = 0;
  place_ = {};
  every_ = 1;
  of_activation_.clear();
  holders_.clear();
  claimed_.clear();
  read_.clear();
  latest_.clear();
}

ValueId Writer::make(std::string_view name, Shape shape, Role role, DType dtype, Memory memory) {
  const ValueId id = declare(std::string(name), shape, dtype, role, memory);
  set_.at(id).place = place_;
  return id;
}

void Writer::append(Op op, Phase phase, std::string name) {
  if (phase == Phase::forward && lowering_.training) {
    each_operand(op, [&](std::string_view operand, ValueId id, Access access) {
      REDLINE_CHECK(access == Access::read || !read_.contains(set_.owner(id)),
                    "{} overwrites {} ({}), which an earlier node has read", name, operand, at(id).full_name());
      const auto latest = latest_.find(set_.owner(id));
      REDLINE_CHECK(access == Access::write || latest == latest_.end() || latest->second == id,
                    "{} reads {} ({}), whose memory is {} by now", name, operand, at(id).full_name(),
                    at(latest->second).full_name());
    });
    each_operand(op, [&](std::string_view, ValueId id, Access access) {
      if (persistent(at(id).role)) return;
      if (access == Access::read) read_.insert(set_.owner(id));
      if (access == Access::write) latest_[set_.owner(id)] = id;
    });
  }
  if (phase == Phase::backward) name += "/backward";
  const Cost cost = cost_of(op, set_.values);
  program_.nodes.push_back({std::move(op), phase, cost, std::move(name), place_});
  program_.nodes.back().every = every_;
}

std::int32_t Writer::start(Op op, Phase phase, std::string name) {
  append(std::move(op), phase, std::move(name));
  Node& node = program_.nodes.back();
  node.when = When::start;
  node.lane = lane_of(node.op, set_.values);
  return node.pair = pairs_++;
}

void Writer::wait(std::int32_t pair) {
  const auto started = std::ranges::find(program_.nodes, pair, &Node::pair);
  REDLINE_CHECK(started != program_.nodes.end(), "nothing was started as pair {}", pair);
  program_.nodes.push_back(started->wait());
}

bool Writer::claim_sum(ValueId sum) {
  const bool first = claimed_.insert(sum).second;
  return lowering_.accumulate || !first;
}

bool Writer::claim(ValueId parameter) {
  const bool first = claimed_.insert(parameter).second;
  return (lowering_.accumulate && !lowering_.fresh_gradients) || !first;
}

ValueId Writer::gradient_of(ValueId value) const {
  const auto it = of_activation_.find(value);
  return it == of_activation_.end() ? kAbsent : it->second;
}

bool Writer::holds_alone(ValueId value) const { return holders_.at(of_activation_.at(value)) == 1; }

void Writer::hold(ValueId value, ValueId gradient) {
  release(value);
  of_activation_[value] = gradient;
  ++holders_[gradient];
}

void Writer::release(ValueId value) {
  const auto it = of_activation_.find(value);
  if (it == of_activation_.end()) return;
  --holders_[it->second];
  of_activation_.erase(it);
}

ValueId Builder::constant(std::string name, Shape shape, std::function<std::vector<float>()> make) {
  const ValueId id = declare(std::move(name), shape, DType::f32, Role::constant);
  set_.constants.push_back({id, std::move(make)});
  return id;
}

void Builder::begin(std::string name, Lowering lowering) {
  w_.begin(std::move(name), lowering);
  dropouts_ = 0;
  routers_ = 0;
  tiles_.clear();
}

ValueId Builder::embed(ValueId tokens, ValueId weight, std::int64_t padding, float scale) {
  const ValueId y = w_.activation("embedding", {w_.shape(tokens)[0], w_.shape(weight)[1]});
  w_.append(ops::Embed<ValueId>{tokens, weight, y, static_cast<std::int32_t>(padding), scale}, Phase::forward, "embed");
  return y;
}

AddNormValues Builder::add_norm(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name,
                                bool one_plus) {
  const Shape s = w_.shape(residual);
  const ValueId out = branch.present() ? w_.activation(fmt::format("{} residual", name), s) : kAbsent;
  const ValueId y = w_.activation(name, s);
  const ValueId rstd = w_.statistic(fmt::format("{} rstd", name), {s[0]});
  ops::AddNorm<ValueId> op{residual, branch, weight, out, y, rstd, eps};
  op.one_plus = one_plus;
  w_.append(op, Phase::forward, std::string(name));
  return {out.present() ? out : residual, y};
}

ValueId Builder::norm_add(ValueId residual, ValueId branch, ValueId weight, float eps, std::string_view name,
                          bool one_plus) {
  const ValueId out = w_.activation(fmt::format("{} residual", name), w_.shape(residual));
  const ValueId rstd = w_.statistic(fmt::format("{} rstd", name), {w_.shape(residual)[0]});
  w_.append(ops::NormAdd<ValueId>{residual, branch, weight, out, rstd, eps, one_plus}, Phase::forward,
            std::string(name));
  return out;
}

ValueId Builder::linear(ValueId x, ValueId weight, std::string_view name, ValueId bias) {
  const ValueId y = w_.activation(name, {w_.shape(x)[0], w_.shape(weight)[0]});
  w_.append(ops::Linear<ValueId>{x, weight, y, w_.product_workspace(), w_.lowering().products, bias}, Phase::forward,
            std::string(name));
  return y;
}

ValueId Builder::grouped_linear(ValueId x, ValueId weight, ValueId offsets, std::string_view name) {
  const ValueId y = w_.activation(name, {w_.shape(x)[0], w_.shape(weight)[1]});
  w_.append(ops::GroupedLinear<ValueId>{x, weight, offsets, y, w_.product_workspace(), w_.lowering().products},
            Phase::forward, std::string(name));
  return y;
}

RoutedValues Builder::route(ValueId x, ValueId weight, const BatchValues& batch, std::int64_t per_token,
                            bool normalise) {
  const std::int64_t n = w_.shape(x)[0], experts = w_.shape(weight)[0];
  constexpr std::int64_t kAlign = 1;  // of an expert's first row
  const auto integers = [&](std::string_view name, Shape shape) {
    return w_.make(name, shape, Role::activation, DType::i32);
  };
  ops::Route<ValueId> route{.x = x,
                            .weight = weight,
                            .doc_offsets = batch.doc_offsets,
                            .probs = w_.statistic("router probabilities", {n, experts}),
                            .lse = w_.statistic("router lse", {n}),
                            .choices = integers("experts of tokens", {n, per_token}),
                            .weights = w_.statistic("weights of experts", {n, per_token})};
  route.normalise = normalise;
  route.workspace = w_.product_workspace();
  route.how = w_.lowering().products;
  route.how.math = ops::Math::full;  // whatever else is rounded: a token that is near two experts goes to the same
  route.layer = routers_;
  w_.append(route, Phase::forward, "route");
  ops::SortByExpert<ValueId> sort{
      .choices = route.choices,
      .offsets = integers("offsets of experts", {experts + 1}),
      .rows = integers("rows of experts", {ops::expert_rows(n, per_token, experts, kAlign)}),
      .places = integers("places of tokens", {n, per_token}),
      .counts = integers("loads of experts", {experts})};
  sort.align = kAlign;
  if (w_.lowering().on_card())
    sort.temporary = w_.scratch("sort by expert", {ops::sort_scratch_bytes(n * per_token, experts)}, DType::u8);
  w_.append(sort, Phase::forward, "sort by expert");
  if (w_.lowering().training && batch.router_load.present())
    w_.append(ops::RouterLoad<ValueId>{route.probs, route.lse, sort.counts, batch.router_load,
                                       w_.scratch("load partial sums", {ops::kRowGroups, experts + 2}, DType::f64),
                                       routers_++},
              Phase::forward, "router load");
  return {route.weights, sort.offsets, sort.rows, sort.places};
}

ValueId Builder::gather_rows(ValueId x, const RoutedValues& routed) {
  const ValueId y = w_.activation("inputs of experts", {w_.shape(routed.rows)[0], w_.shape(x)[1]});
  w_.append(ops::GatherRows<ValueId>{x, routed.rows, routed.places, y}, Phase::forward, "gather rows");
  return y;
}

ValueId Builder::combine(ValueId y, const RoutedValues& routed) {
  const ValueId out = w_.activation("sum over experts", {w_.shape(routed.places)[0], w_.shape(y)[1]});
  w_.append(ops::Combine<ValueId>{y, routed.weights, routed.rows, routed.places, out}, Phase::forward, "combine");
  return out;
}

void Builder::balance_loss(const BatchValues& batch, ValueId totals, std::int64_t per_token, float coefficient,
                           float z_coefficient, bool pooled) {
  const Shape load = w_.shape(batch.router_load), all = w_.shape(totals);
  REDLINE_CHECK(routers_ == load[0] && all[0] == load[0] + 1, "{} routers, and room for the load of {}", routers_,
                load[0]);
  const bool gradient = coefficient > 0 || z_coefficient > 0;
  w_.append(ops::BalanceLoss<ValueId>{batch.router_load, batch.targets,
                                      gradient ? w_.statistic("gradient of balance", {load[0], all[1]}) : kAbsent,
                                      totals, per_token, coefficient, z_coefficient, w_.claim_sum(totals), pooled},
            Phase::forward, "balance loss");
}

ValueId Builder::rope_qk_norm(ValueId qkv, const RopeValues& rope, ops::HeadLayout layout, float eps,
                              ops::NormOver over) {
  const bool norm = rope.q_norm.present(), keep = norm && w_.lowering().training;
  const std::int64_t n = w_.shape(qkv)[0];
  const ValueId raw = keep ? w_.activation("qk before norm", {n, layout.qk_heads() * layout.head_dim}) : kAbsent;
  const ValueId rstd = keep ? w_.statistic("qk rstd", {n, ops::norms_of(layout, over)}) : kAbsent;
  w_.append(ops::RopeQkNorm<ValueId>{qkv, rope.q_norm, rope.k_norm, rope.positions, rope.table, raw, rstd, layout, eps,
                                     over, rope.one_plus},
            Phase::forward, norm ? "rope and qk-norm" : "rope");
  return qkv;
}

ValueId Builder::attention(ValueId qkv, const BatchValues& batch, std::size_t layer, ops::HeadLayout layout,
                           const AttentionForm& form) {
  const int sequence = w_.lowering().sequence;
  if (sequence > 1) {
    const ops::HeadLayout all{layout.heads, 0, layout.head_dim};
    qkv = heads_of_rank(qkv, layout, "qkv of own heads");
    layout = ops::part_of(layout, sequence);
    return tokens_of_rank(attend(qkv, batch, layer, layout, form), all, "attention of own tokens");
  }
  return attend(qkv, batch, layer, layout, form);
}

ValueId Builder::heads_of_rank(ValueId x, const ops::HeadLayout& layout, const char* name) {
  const int ranks = w_.lowering().sequence;
  const std::int64_t n = w_.shape(x)[0], width = ops::part_of(layout, ranks).qkv_width();
  const ValueId parts = w_.activation(fmt::format("{}, by rank", name), {ranks * n, width});
  const ValueId own = w_.activation(name, {ranks * n, width});
  w_.append(ops::SplitHeads<ValueId>{x, parts, layout, ranks}, Phase::forward, "split heads");
  w_.append(dist::AllToAll<ValueId>{parts, own, ranks}, Phase::forward, "heads to ranks");
  return own;
}

ValueId Builder::tokens_of_rank(ValueId x, const ops::HeadLayout& layout, const char* name) {
  const int ranks = w_.lowering().sequence;
  const ValueId parts = w_.activation(fmt::format("{}, by rank", name), w_.shape(x));
  const ValueId own = w_.activation(name, {w_.shape(x)[0] / ranks, layout.qkv_width()});
  w_.append(dist::AllToAll<ValueId>{x, parts, ranks}, Phase::forward, "tokens to ranks");
  w_.append(ops::SplitHeads<ValueId>{own, parts, layout, ranks, true}, Phase::forward, "join heads");
  return own;
}

ValueId Builder::attend(ValueId qkv, const BatchValues& batch, std::size_t layer, const ops::HeadLayout& layout,
                        const AttentionForm& form) {
  const std::int64_t n = w_.shape(qkv)[0];
  const ValueId out = w_.activation("attention", {n, layout.heads * layout.head_dim});
  const float scale = form.scale > 0 ? form.scale : 1.0f / std::sqrt(static_cast<float>(layout.head_dim));
  if (!batch.doc_offsets.present()) {
    const LayerCache& cache = batch.caches.at(layer);
    const std::int64_t slots = w_.shape(cache.keys)[0], splits = ops::key_splits(w_.shape(cache.keys)[2]);
    const ValueId partial = w_.scratch("attention splits", {slots, layout.heads, splits, layout.head_dim + 2});
    w_.append(ops::AttentionCached<ValueId>{qkv, batch.positions, cache.keys, cache.values, out, partial, layout, scale,
                                            form.window},
              Phase::forward, "attention");
    return out;
  }
  if (!batch.caches.empty()) {
    const LayerCache& cache = batch.caches.at(layer);
    w_.append(ops::CacheStore<ValueId>{qkv, batch.doc_offsets, batch.slot_documents, cache.keys, cache.values, layout,
                                       form.window},
              Phase::forward, "cache");
  }
  const ValueId lse = w_.statistic("attention lse", {layout.heads, n});
  ops::Attention<ValueId> op{qkv, batch.doc_offsets, out, lse, layout, scale, batch.longest};
  op.tiles = document_tiles(batch, n);
  if (w_.lowering().library_attention())
    op.workspace = w_.scratch("attention workspace", {ops::library_workspace_bytes(w_.shape(batch.doc_offsets)[0] - 1)},
                              DType::u8);
  op.how = w_.lowering().attention;
  op.window = form.window;
  w_.append(op, Phase::forward, "attention");
  return out;
}

ValueId Builder::document_tiles(const BatchValues& batch, std::int64_t tokens) {
  if (!w_.lowering().on_card()) return kAbsent;
  ValueId& tiles = tiles_[batch.doc_offsets];
  if (tiles.present()) return tiles;
  const Place here = w_.place();
  w_.set_place({Part::attention});
  const std::int64_t capacity = w_.shape(batch.doc_offsets)[0] - 1;
  tiles = w_.make("document tiles", {ops::tile_bytes(tokens, capacity)}, Role::activation, DType::u8);
  w_.append(ops::DocumentTiles<ValueId>{batch.doc_offsets, tiles, tokens}, Phase::forward, "document tiles");
  w_.set_place(here);
  return tiles;
}

ValueId Builder::swiglu(ValueId gate_up, ops::Gate gate) {
  const char* const name = gate == ops::Gate::silu ? "swiglu" : "geglu";
  const ValueId y = w_.activation(name, {w_.shape(gate_up)[0], w_.shape(gate_up)[1] / 2});
  ops::SwiGlu<ValueId> op{gate_up, y};
  op.gate = gate;
  w_.append(op, Phase::forward, name);
  return y;
}

ValueId Builder::pick_rows(ValueId rows, ValueId x, std::string_view name) {
  const ValueId y = w_.activation(name, {w_.shape(rows)[0], w_.shape(x)[1]});
  w_.append(ops::Embed<ValueId>{rows, x, y}, Phase::forward, std::string(name));
  return y;
}

ValueId Builder::dropout(ValueId x, float p, std::string_view name) {
  if (!w_.lowering().training || p == 0) return x;
  // In place: a linear's backward does not need its output. A new value all the same (a view), so that each has its own
  // gradient: the branch's differs from the residual stream's by the mask.
  const ValueId y = w_.view(x, std::string(name), w_.shape(x), 0);
  w_.append(ops::Dropout<ValueId>{x, step_state_, y, p, dropouts_++}, Phase::forward, std::string(name));
  return y;
}

void Builder::lm_loss(ValueId x, ValueId weight, ValueId targets, LossValues loss) {
  const Fp8Linears* const fp8 = w_.lowering().training ? w_.lowering().fp8 : nullptr;
  const bool in_fp8 = fp8 && fp8->head_weight == weight;
  const std::int64_t n = w_.shape(x)[0], vocab = w_.shape(weight)[0];
  std::int64_t chunk = std::min(n, w_.lowering().loss_chunk);
  if (in_fp8) chunk = std::max(chunk / ops::kFp8Multiple, std::int64_t{1}) * ops::kFp8Multiple;
  const ValueId logits = w_.scratch("logits chunk", {chunk, vocab}, w_.lowering().compute);
  ops::LmLoss<ValueId> op{.x = x,
                          .weight = weight,
                          .targets = targets,
                          .losses = loss.losses,
                          .loss_sum = loss.loss_sum,
                          .logits = logits,
                          .dx = {},
                          .dweight = {}};
  op.accumulate_loss = w_.claim_sum(loss.loss_sum);
  op.workspace = w_.product_workspace();
  op.how = w_.lowering().products;
  op.stored = w_.lowering().compute;
  if (w_.lowering().training) op.z_loss = w_.lowering().z_loss;
  if (in_fp8) {  // x in eight bits comes with the pass over the finished program
    op.fp8 = fp8->head;
    op.fp8.dlogits = w_.scratch("dlogits chunk", {vocab, chunk}, DType::e5m2);
  }
  if (w_.lowering().training) {
    op.dx = w_.activation("final norm gradient", w_.shape(x));
    op.dweight = w_.gradient_of_parameter(weight);
    op.accumulate_weight = w_.claim(weight);
  }
  w_.append(op, Phase::forward, "lm_loss");
}

void Builder::copy_logits(ValueId x, ValueId weight, ValueId logits) {
  w_.append(ops::Linear<ValueId>{x, weight, logits, w_.product_workspace(), w_.lowering().products}, Phase::forward,
            "logits");
}

void Builder::grad_norm(const NormOf& of, optim::GradNorm<ValueId> op) {
  op.totals = w_.make("totals", {optim::kTotals}, Role::activation, DType::f64);
  const std::int64_t slices = w_.lowering().on_card() ? optim::group_slices(of.all) : 1;
  for (const NormOf::Piece& piece : of.gradients) {
    const ValueId value =
        set_.at(piece.value).dtype == DType::bf16 ? widened(piece.value, "pieces in fp32") : piece.value;
    optim::SumSquares<ValueId> squares{
        value, of.loss_sum, of.state, op.totals, piece.begin, of.all, &piece != of.gradients.data()};
    if (slices > 1) squares.partial = w_.scratch("sums of groups", {kCutGroups, slices}, DType::f64);
    w_.append(squares, Phase::update, "sum_squares");
  }
  w_.append(op, Phase::update, "grad_norm");
}

void Builder::adamw(optim::AdamW<ValueId> op, std::string name) { w_.append(op, Phase::update, std::move(name)); }
void Builder::muon(optim::MuonMomentum<ValueId> momentum, ops::Orthogonalize<ValueId> orthogonalize,
                   optim::Muon<ValueId> update, const std::string& name) {
  const optim::Matrices& of = momentum.matrices;
  const std::int64_t side = std::min(of.rows, of.columns);
  const auto make = [&](std::string_view what, Shape shape, Role role) {
    return w_.make(fmt::format("{} {}", name, what), shape, role, muon_type());
  };
  momentum.x = orthogonalize.x = make("update", {of.count, of.rows, of.columns}, Role::activation);
  orthogonalize.y = make("next update", {of.count, of.rows, of.columns}, Role::activation);
  orthogonalize.gram = make("gram", {of.count, side, side}, Role::scratch);
  orthogonalize.square = make("square", {of.count, side, side}, Role::scratch);
  orthogonalize.workspace = w_.product_workspace();
  orthogonalize.how = w_.lowering().products;
  momentum.partial = w_.scratch("sums of squares", {of.count, optim::muon_parts(of.elements())}, DType::f64);
  update.x = orthogonalize.result();
  update.matrices = of;
  if (update.row_moments.present()) update.partial = w_.scratch("squares of rows", {2, of.count, of.rows});
  w_.append(momentum, Phase::update, name + " momentum");
  w_.append(orthogonalize, Phase::update, name + " orthogonalize");
  w_.append(update, Phase::update, name);
}

void Builder::custom(ops::Custom<ValueId> op, std::string name) { w_.append(op, Phase::update, std::move(name)); }
void Builder::refresh(optim::Refresh<ValueId> op) { w_.append(op, Phase::update, "refresh"); }
void Builder::average(optim::Average<ValueId> op) { w_.append(op, Phase::update, "average"); }
void Builder::exchange(optim::Exchange<ValueId> op) { w_.append(op, Phase::update, "exchange"); }
ValueId Builder::copy(ValueId of, std::string_view name) {
  const ValueId to = w_.statistic(name, w_.shape(of));
  w_.append(optim::Refresh<ValueId>{of, to}, Phase::update, std::string(name));
  return to;
}
ValueId Builder::widened(ValueId kept, std::string_view name) {
  const ValueId x = w_.statistic(name, w_.shape(kept));
  w_.append(optim::Widen<ValueId>{kept, x}, Phase::update, std::string(name));
  return x;
}
void Builder::round_at_random(optim::RoundAtRandom<ValueId> op, std::string name) {
  w_.append(op, Phase::update, std::move(name));
}
void Builder::copy_bytes(ValueId from, ValueId to, std::string name) {
  w_.append(ops::Copy<ValueId>{from, to}, Phase::update, std::move(name));
}
void Builder::tensor_sums(optim::TensorSums<ValueId> op, std::string name) {
  op.partial = w_.scratch("partial sums", {w_.shape(op.bounds)[0], optim::kTensorSlices}, DType::f64);
  w_.append(op, Phase::update, std::move(name));
}
void Builder::move_scales(ops::MoveScales<ValueId> op, std::string name) {
  w_.append(op, Phase::update, std::move(name));
}
void Builder::bound_scale(ops::BoundScale<ValueId> op) { w_.append(op, Phase::update, "scale of a norm"); }
void Builder::quantize_weight(ops::QuantizeWeight<ValueId> op) { w_.append(op, Phase::update, "weight to fp8"); }
void Builder::largest(ops::Largest<ValueId> op) { w_.append(op, Phase::update, "largest weight"); }
void Builder::set_scales(ops::SetScales<ValueId> op, std::string name) {
  w_.append(op, Phase::update, std::move(name));
}
void Builder::quantize(ops::Quantize<ValueId> op, std::string name) { w_.append(op, Phase::update, std::move(name)); }

void Builder::backward() {
  REDLINE_CHECK(w_.lowering().training, "backward() of a program that kept nothing for it");
  append_backward(w_);
  if (w_.lowering().fp8) products_in_fp8(w_, *w_.lowering().fp8);
  recompute(set_, w_.program(), w_.lowering().recompute, w_.lowering().recompute_layers);
  if (w_.lowering().keep_on_host) keep_on_host(set_, w_.program(), w_.lowering().recompute_layers);
}

}  // namespace redline::program
