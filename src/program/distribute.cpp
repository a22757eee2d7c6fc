// Finds where flat arrays are first used and last written, and puts pairs of collectives there.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "program/passes.h"
#include "program/program.h"

namespace redline::program {
namespace {

using dist::Mode;

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

class DistributePass {
 public:
  DistributePass(ProgramSet& set, Program& program, const Distribution& d) : set_(set), program_(program), d_(d) {
    for (const Node& node : program.nodes) pairs_ = std::max(pairs_, node.pair + 1);
  }

  // The sum over ranks of all totals, after each node that makes any whole.
  void add_up_totals() {
    const auto squares = [&](std::size_t i) {
      return i < program_.nodes.size() ? std::get_if<optim::SumSquares<ValueId>>(&program_.nodes[i].op) : nullptr;
    };
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      if (const auto* sums = squares(i); sums && !(squares(i + 1) && squares(i + 1)->more)) {
        put(i + 1, node_of(dist::AllReduce<ValueId>{sums->totals}, Phase::update, "totals of all ranks"));
        if (!sums->loss_sum.present()) continue;  // not the step's own
        for (const ValueId sum : d_.sums)
          put(i + 1, node_of(dist::AllReduce<ValueId>{sum}, Phase::update, "sums of all ranks"));
      }
      if (const auto* sums = std::get_if<optim::TensorSums<ValueId>>(&program_.nodes[i].op))
        put(i + 1, node_of(dist::AllReduce<ValueId>{sums->sums}, Phase::update, "sums of all ranks"));
    }
  }

  // Scales of operands in eight bits follow what any rank has seen: all ranks have the same.
  void take_largest_records() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i)
      if (const auto* move = std::get_if<ops::MoveScales<ValueId>>(&program_.nodes[i].op))
        put(i, node_of(dist::AllReduce<ValueId>{move->amax, {}, true}, Phase::update, "records of all ranks"));
  }

  // Blocks that ranks of a row change places of travel where all that travels does, one after the other.
  void pair_exchanges() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      Node& node = program_.nodes[i];
      if (!std::holds_alternative<dist::AllToAll<ValueId>>(node.op)) continue;
      node.when = When::start;
      node.pair = pairs_++;
      put(i + 1, node.wait());
    }
  }

  // zero1: every unit's weights on their way from the program's beginning, each waited for at its first use. Where
  // ranks share rows, an exchange would wait for all of them: each unit's leave when the one before is first used.
  void gather_ahead() {
    std::vector<UnitTouch> uses;
    for (const Distribution::Unit& unit : d_.units)
      uses.push_back({&unit, touches(d_.weights, unit, [](const Node&) { return true; })});
    if (d_.sharing.sequence > 1) std::ranges::stable_sort(uses, {}, [](const UnitTouch& u) { return u.touch.first; });
    std::size_t from = 0;
    for (const auto& [unit, touch] : uses) {
      const ValueId data = view_of(d_.weights, "weights of all ranks", unit->begin, unit->elements());
      const std::size_t until = std::min(touch.first, program_.nodes.size());
      start_and_wait(dist::GatherShards<ValueId>{{}, data, d_.shards, unit->begin}, Phase::forward, "gather", from,
                     until);
      if (d_.sharing.sequence > 1) from = until;
    }
  }

  // ddp and zero1: buckets of units from the last to the first, as the backward pass completes them.
  void reduce_in_buckets() {
    std::int64_t end = d_.shards.elements, begin = end;
    for (std::size_t i = d_.units.size(); i-- > 0;) {
      begin = d_.units[i].begin;
      if (i > 0 && end - begin < bucket_elements(d_.sharing.ranks)) continue;
      const Touch touch = touches(d_.gradients, {begin, end}, [](const Node&) { return true; });
      const ValueId data = view_of(d_.gradients, "bucket of gradients", begin, end - begin);
      const ValueId wire = on_the_wire(end - begin);
      const std::size_t complete = touch.first == kNever ? 0 : touch.last + 1;
      if (d_.sharing.mode == Mode::ddp)
        start_and_wait(dist::AllReduce<ValueId>{data, wire}, Phase::backward, "add up", complete,
                       program_.nodes.size());
      else
        start_and_wait(dist::ReduceShards<ValueId>{data, {}, wire, d_.shards, begin}, Phase::backward, "add up",
                       complete, program_.nodes.size());
      end = begin;
    }
  }

  // fsdp: a unit's weights for its forward pass, and again for its way back.
  void gather_around_uses() {
    std::vector<UnitTouch> uses;
    for (const Distribution::Unit& unit : d_.units) {
      const auto add = [&](auto counts) {
        const Touch touch = touches(d_.weights, unit, counts);
        if (touch.first != kNever) uses.push_back({&unit, touch});
      };
      if (unit.kept) {
        add([](const Node&) { return true; });
      } else {
        add([](const Node& n) { return n.phase == Phase::forward; });
        add([](const Node& n) { return n.phase != Phase::forward; });
      }
    }
    std::ranges::stable_sort(uses, {}, [](const UnitTouch& u) { return u.touch.first; });
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const auto& [unit, touch] = uses[i];
      const Node& first = program_.nodes[touch.first];
      const ValueId data =
          declare("weights of all ranks", {unit->elements()}, set_.at(d_.weights).dtype, Role::activation, first.place);
      replace(touch, d_.weights, *unit, data);
      dist::GatherShards<ValueId> op{own_part(d_.weight_shard, *unit), data, d_.shards, unit->begin, false};
      start_and_wait(op, first.phase, "gather", i == 0 ? 0 : uses[i - 1].touch.first, touch.first);
    }
  }

  // fsdp: a unit's gradients into the shards of their owners, one unit under way beside the next.
  void reduce_units(bool accumulate) {
    std::vector<UnitTouch> written;
    for (const Distribution::Unit& unit : d_.units)
      if (const Touch t = touches(d_.gradients, unit, [](const Node&) { return true; }); t.first != kNever)
        written.push_back({&unit, t});
    std::ranges::stable_sort(written, {}, [](const UnitTouch& w) { return w.touch.last; });
    std::vector<Node> waits;
    for (const auto& [unit, touch] : written) {
      const std::vector<Range> parts = parts_of(touch, d_.gradients, *unit);
      const ValueId data = declare("gradients of a unit", {unit->elements()}, DType::f32, Role::activation,
                                   program_.nodes[touch.last].place);
      replace(touch, d_.gradients, *unit, data);
      for (Node& wait : waits) put(touch.last + 1, std::move(wait));
      waits.clear();
      for (const Range& part : parts) {
        const ValueId piece = view_of(data, "gradients", part.begin - unit->begin, part.elements());
        const dist::ReduceShards<ValueId> op{
            piece, own_part(d_.gradient_shard, part), on_the_wire(part.elements()), d_.shards, part.begin, accumulate,
            false};
        Node node = node_of(op, Phase::backward, "add up");
        node.pair = pairs_++;
        node.when = When::start;
        waits.push_back(node.wait());
        put(touch.last + 1, std::move(node));
      }
    }
    for (Node& wait : waits) put(program_.nodes.size(), std::move(wait));
  }

  void finish() {
    std::vector<Node> nodes;
    for (std::size_t i = 0; i <= program_.nodes.size(); ++i) {
      if (const auto it = before_.find(i); it != before_.end())
        for (Node& node : it->second) nodes.push_back(std::move(node));
      if (i < program_.nodes.size()) nodes.push_back(std::move(program_.nodes[i]));
    }
    program_.nodes = std::move(nodes);
  }

 private:
  struct Touch {
    std::size_t first = kNever, last = 0;
    std::vector<std::size_t> nodes = {};
  };
  struct UnitTouch {
    const Distribution::Unit* unit;
    Touch touch;
  };

  // Where a value lies in a flat array, in elements; nothing where it is no view of it.
  std::optional<Range> place_in(ValueId id, ValueId flat) const {
    std::int64_t offset = 0;
    const std::int64_t bytes = set_.at(id).bytes(), element = static_cast<std::int64_t>(size_of(set_.at(flat).dtype));
    for (; id != flat; id = set_.at(id).alias_of) {
      if (!set_.at(id).alias_of.present()) return {};
      offset += set_.at(id).alias_offset;
    }
    return Range{offset / element, (offset + bytes) / element};
  }

  template <class Counts>
  Touch touches(ValueId flat, const Range& where, const Counts& counts) const {
    Touch touch;
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      if (!counts(program_.nodes[i])) continue;
      bool here = false;
      each_operand(program_.nodes[i].op, [&](std::string_view, ValueId id, Access) {
        const std::optional<Range> at = place_in(id, flat);
        here = here || (at && !intersection(*at, where).empty());
      });
      if (!here) continue;
      touch.first = std::min(touch.first, i);
      touch.last = i;
      touch.nodes.push_back(i);
    }
    return touch;
  }

  // The stretches of a unit that these nodes touch, joined where they meet: gaps between parameters hold nothing.
  std::vector<Range> parts_of(const Touch& touch, ValueId flat, const Range& unit) const {
    std::map<std::int64_t, std::int64_t> found;
    for (const std::size_t i : touch.nodes)
      each_operand(program_.nodes[i].op, [&](std::string_view, ValueId id, Access) {
        const std::optional<Range> at = place_in(id, flat);
        if (at && at->begin >= unit.begin && at->end <= unit.end)
          found[at->begin] = std::max(found[at->begin], at->end);
      });
    std::vector<Range> parts;
    for (const auto& [begin, end] : found) {
      if (parts.empty() || parts.back().end < begin) parts.push_back({begin, begin});
      parts.back().end = std::max(parts.back().end, end);
    }
    return parts;
  }

  // Views of a flat array become views of what stands for one unit of it.
  void replace(const Touch& touch, ValueId flat, const Range& unit, ValueId by) {
    std::map<ValueId, ValueId> views;
    for (const std::size_t i : touch.nodes)
      std::visit(
          [&](auto& op) {
            op = op.map([&](std::string_view, ValueId id, Access) {
              const std::optional<Range> at = id.present() ? place_in(id, flat) : std::nullopt;
              if (!at || at->begin >= unit.end || unit.begin >= at->end) return id;
              REDLINE_CHECK(unit.begin <= at->begin && at->end <= unit.end, "{} is cut by a unit", set_.at(id).name);
              const auto [it, fresh] = views.try_emplace(id);
              if (fresh) {
                it->second = view_of(by, set_.at(id).name, at->begin - unit.begin, at->elements());
                set_.at(it->second).shape = set_.at(id).shape;
                set_.at(it->second).parameter = set_.at(id).parameter;
              }
              return it->second;
            });
          },
          program_.nodes[i].op);
  }

  ValueId declare(std::string name, Shape shape, DType dtype, Role role, Place place = {}) {
    return set_.add(
        {.name = std::move(name), .shape = shape, .dtype = dtype, .role = role, .alias_of = {}, .place = place});
  }
  ValueId view_of(ValueId of, std::string name, std::int64_t first, std::int64_t elements) {
    const Value whole = set_.at(of);
    const ValueId id = declare(std::move(name), {elements}, whole.dtype, whole.role, whole.place);
    Value& v = set_.at(id);
    v.alias_of = of;
    v.alias_offset = first * static_cast<std::int64_t>(size_of(whole.dtype));
    v.memory = whole.memory;
    return id;
  }

  // This rank's part of a range, in its shard; absent where it has none.
  ValueId own_part(ValueId shard, const Range& of) {
    const Range own = owned_part(d_.shards, d_.sharing.rank, of.begin, of.end);
    if (own.empty()) return kAbsent;
    return view_of(shard, "own part", own.begin - d_.shards.begin(d_.sharing.rank), own.elements());
  }
  ValueId on_the_wire(std::int64_t elements) {
    if (!d_.sharing.bf16_wire) return kAbsent;
    return declare("gradients on the wire", {elements}, DType::bf16, Role::scratch);
  }

  template <class Collective>
  Node node_of(const Collective& op, Phase phase, std::string name) {
    const Op any = op;
    return {.op = any,
            .phase = phase,
            .cost = cost_of(any, set_.values),
            .name = std::move(name),
            .place = {Part::communication}};
  }
  template <class Collective>
  void start_and_wait(const Collective& op, Phase phase, std::string name, std::size_t from, std::size_t until) {
    Node node = node_of(op, phase, std::move(name));
    node.when = When::start;
    node.pair = pairs_++;
    Node wait = node.wait();
    put(from, std::move(node));
    put(until, std::move(wait));
  }
  // Before the node of that index; what was put there earlier stands earlier.
  void put(std::size_t index, Node node) { before_[index].push_back(std::move(node)); }

  ProgramSet& set_;
  Program& program_;
  const Distribution& d_;
  std::int32_t pairs_ = 0;
  std::map<std::size_t, std::vector<Node>> before_;
};

}  // namespace

void distribute(ProgramSet& set, Program& program, const Distribution& d, const Collectives& collectives) {
  if (d.sharing.alone()) return;
  DistributePass pass(set, program, d);
  pass.add_up_totals();
  pass.take_largest_records();
  pass.pair_exchanges();
  if (d.sharing.mode == Mode::fsdp) {
    pass.gather_around_uses();
    if (collectives.reduce_gradients) pass.reduce_units(collectives.accumulate);
  } else {
    if (d.sharing.mode == Mode::zero1 && collectives.gather_weights) pass.gather_ahead();
    if (collectives.reduce_gradients) pass.reduce_in_buckets();
  }
  pass.finish();
}

Program gather_weights(ProgramSet& set, std::string name, const Distribution& d) {
  Program program{.name = std::move(name), .nodes = {}};
  DistributePass pass(set, program, d);
  pass.gather_ahead();
  pass.finish();
  return program;
}

}  // namespace redline::program
