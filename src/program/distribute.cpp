// Finds where flat arrays are first used and last written, and puts pairs of collectives there.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>

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

  // Scales of operands in eight bits follow what any rank has seen, or has of the weights: all ranks have the same. The
  // records are one array, which travels before the first of its readers.
  void take_largest_records() {
    ValueId records;
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      ValueId amax;
      if (const auto* move = std::get_if<ops::MoveScales<ValueId>>(&program_.nodes[i].op)) amax = move->amax;
      if (const auto* set = std::get_if<ops::SetScales<ValueId>>(&program_.nodes[i].op)) amax = set->amax;
      if (!amax.present()) continue;
      const ValueId all = set_.owner(amax);
      REDLINE_CHECK(!records.present() || records == all, "{} are apart from other records", set_.at(all).name);
      if (!records.present())
        put(i, node_of(dist::AllReduce<ValueId>{all, {}, true}, Phase::update, "records of all ranks"));
      records = all;
    }
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

  // zero1: every unit's weights on their way from the program's beginning, one after the other, each waited for at its
  // first use. Those that are needed first go first: in the flat layout the small ones that every layer needs stand
  // last, and the first norm would wait for everything (205 ms of a step of 8 billion parameters on 1024 planned
  // H200s). Where ranks share rows, an exchange would wait for all of them: each leaves when the one before is first
  // used.
  void gather_ahead(bool all) {
    struct Gather {
      std::size_t until;
      dist::GatherShards<ValueId> op;
    };
    std::vector<Gather> gathers;
    for (const Distribution::Unit& unit : d_.units)
      for (const Distribution::Array& array : arrays_of_weights()) {
        const Touch touch = touches(array, unit, [](const Node&) { return true; });
        const Range part = all ? static_cast<const Range&>(unit) : touch.hull;
        if (part.empty()) continue;
        const ValueId data = part_of(array, "weights of all ranks", part);
        gathers.push_back({std::min(touch.first, program_.nodes.size()), {{}, data, d_.shards, part.begin}});
        if (all) break;  // those in eight bits are made from these
      }
    std::ranges::stable_sort(gathers, {}, &Gather::until);
    std::size_t from = 0;
    for (const Gather& gather : gathers) {
      start_and_wait(gather.op, Phase::forward, "gather", from, gather.until);
      if (d_.sharing.sequence > 1) from = gather.until;
    }
  }

  // ddp and zero1: buckets of units from the last to the first, as the backward pass completes them.
  void reduce_in_buckets() {
    struct Bucket : Range {
      std::size_t complete;
    };
    std::vector<Bucket> buckets;
    std::int64_t end = d_.shards.elements, begin = end;
    for (std::size_t i = d_.units.size(); i-- > 0;) {
      begin = d_.units[i].begin;
      if (i > 0 && end - begin < bucket_elements(d_.sharing.ranks)) continue;
      const Touch touch = touches(d_.gradients, {begin, end}, [](const Node&) { return true; });
      buckets.push_back({{begin, end}, touch.first == kNever ? 0 : touch.last + 1});
      end = begin;
    }
    std::ranges::stable_sort(buckets, {}, &Bucket::complete);
    for (const Bucket& bucket : buckets) {
      const ValueId data = part_of(d_.gradients, "bucket of gradients", bucket);
      if (d_.sharing.mode == Mode::ddp)
        start_and_wait(dist::AllReduce<ValueId>{data, on_the_wire(bucket.elements())}, Phase::backward, "add up",
                       bucket.complete, program_.nodes.size());
      else if (d_.sharing.copies() == 1)
        start_and_wait(to_owners(data, kAbsent, bucket, false, true), Phase::backward, "add up", bucket.complete,
                       program_.nodes.size());
      else
        add_up_next(bucket.complete, {between_copies(to_owners(data, kAbsent, bucket, false, true))});
    }
    finish_sums();
  }

  // fsdp: a unit's weights for its forward pass, and again for its way back, on their way from where the unit before is
  // first used.
  void gather_around_uses() {
    struct Use {
      const Distribution::Unit* unit;
      bool forward;
      const Distribution::Array* array;
      Touch touch;
    };
    std::vector<Use> uses;
    const std::vector<Distribution::Array> arrays = arrays_of_weights();
    for (const Distribution::Unit& unit : d_.units) {
      for (const Distribution::Array& array : arrays) {
        const auto add = [&](bool forward, auto counts) {
          Touch touch = touches(array, unit, counts);
          if (touch.first != kNever) uses.push_back({&unit, forward, &array, std::move(touch)});
        };
        if (unit.kept) {
          add(true, [](const Node&) { return true; });
        } else {
          add(true, [](const Node& n) { return n.phase == Phase::forward; });
          add(false, [](const Node& n) { return n.phase != Phase::forward; });
        }
      }
    }
    std::ranges::stable_sort(uses, {}, [](const Use& u) { return u.touch.first; });
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const auto& [unit, forward, array, touch] = uses[i];
      const auto of_another =
          std::find_if(std::make_reverse_iterator(uses.begin() + static_cast<std::ptrdiff_t>(i)), uses.rend(),
                       [&, u = unit, f = forward](const Use& other) { return other.unit != u || other.forward != f; });
      const Node& first = program_.nodes[touch.first];
      const Range& part = touch.hull;
      const ValueId data =
          declare("weights of all ranks", {part.elements()}, set_.at(array->all).dtype, Role::activation, first.place);
      replace(touch, *array, part, data);
      dist::GatherShards<ValueId> op{own_part(*array, part), data, d_.shards, part.begin, false};
      start_and_wait(op, first.phase, "gather", of_another == uses.rend() ? 0 : of_another->touch.first, touch.first);
    }
  }

  // fsdp: a unit's gradients into the shards of their owners, one unit under way beside the next.
  void reduce_units(bool accumulate, bool complete) {
    std::vector<UnitTouch> written;
    for (const Distribution::Unit& unit : d_.units)
      if (const Touch t = touches(d_.gradients, unit, [](const Node&) { return true; }); t.first != kNever)
        written.push_back({&unit, t});
    std::ranges::stable_sort(written, {}, [](const UnitTouch& w) { return w.touch.last; });
    for (const auto& [unit, touch] : written) {
      const std::vector<Range> parts = parts_of(touch, d_.gradients, *unit);
      const ValueId data = declare("gradients of a unit", {unit->elements()}, DType::f32, Role::activation,
                                   program_.nodes[touch.last].place);
      replace(touch, d_.gradients, *unit, data);
      std::vector<Steps> sums;
      for (const Range& part : parts) {
        const ValueId piece = view_of(data, "gradients", part.begin - unit->begin, part.elements());
        const auto sum = to_owners(piece, own_part(d_.gradients, part), part, accumulate, false);
        sums.push_back(complete && d_.sharing.copies() > 1 ? between_copies(sum) : Steps{sum});
      }
      add_up_next(touch.last + 1, std::move(sums));
    }
    finish_sums();
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
    Range hull = {};  // from the first element that is touched to the last
  };
  struct UnitTouch {
    const Distribution::Unit* unit;
    Touch touch;
  };
  // What is done to a stretch of gradients, one thing after the other.
  using Steps = std::deque<Op>;
  struct UnderWay {
    Steps rest;
    std::optional<Node> wait = {};  // for the one that was started
  };

  dist::ReduceShards<ValueId> to_owners(ValueId data, ValueId mine, const Range& part, bool accumulate, bool in_place) {
    return {data, mine, on_the_wire(part.elements()), d_.shards, part.begin, accumulate, in_place};
  }

  // Gradients that the copies of the state add up, too. A shard is one stretch of the layout, so a layer has one or two
  // owners: would these add up between copies, one or two network cards of a machine would carry all of it (0.18 s of a
  // step of 1.6 s, of 8 billion parameters on 1024 planned H200s). Instead every holder of a copy takes an even
  // slice of the sum, adds it up with those that have the same slice, and the owners take theirs from all slices.
  Steps between_copies(const dist::ReduceShards<ValueId>& sum) {
    const std::int64_t n = set_.at(sum.data).shape.elements();
    const Shards even{n, d_.sharing.holders()};
    const Range slice = even.part(d_.sharing.holder());
    const ValueId sliced = slice.empty() ? kAbsent : view_of(sum.data, "own slice", slice.begin, slice.elements());
    const Range own = owned_part(sum.shards, d_.sharing.holder(), sum.begin, sum.begin + n);
    const ValueId whole =
        sum.shard.present() ? view_of(sum.data, "own part", own.begin - sum.begin, own.elements()) : kAbsent;
    Steps steps;
    if (sum.accumulate && whole.present())  // what the owner has of micro-steps before goes with its own
      steps.emplace_back(ops::Add<ValueId>{whole, sum.shard, whole});
    steps.emplace_back(dist::ReduceShards<ValueId>{sum.data, {}, sum.wire, even});
    const ValueId wire = slice.empty() ? kAbsent : on_the_wire(slice.elements());
    steps.emplace_back(dist::AllReduce<ValueId>{sliced, wire, false, d_.sharing.holders()});
    steps.emplace_back(dist::GatherShards<ValueId>{{}, sum.data, even});
    if (whole.present()) steps.emplace_back(ops::Copy<ValueId>{whole, sum.shard});
    return steps;
  }

  // Starts sums before a node, and the next step of each that is under way.
  void add_up_next(std::size_t at, std::vector<Steps> sums) {
    for (UnderWay& sum : under_way_) put(at, std::move(*sum.wait));
    std::vector<UnderWay> before = std::exchange(under_way_, {});
    for (Steps& steps : sums) start_next(at, {std::move(steps)});
    for (UnderWay& sum : before) start_next(at, std::move(sum));
  }
  void finish_sums() {
    while (!under_way_.empty()) add_up_next(program_.nodes.size(), {});
  }
  void start_next(std::size_t at, UnderWay sum) {
    for (; !sum.rest.empty(); sum.rest.pop_front()) {
      const Op& op = sum.rest.front();
      const bool gathers = std::holds_alternative<dist::GatherShards<ValueId>>(op);
      Node node = node_of(op, Phase::backward, gathers ? "gather sums" : "add up");
      if (!is_collective(op)) {
        put(at, std::move(node));
        continue;
      }
      node.when = When::start;
      node.pair = pairs_++;
      sum.wait = node.wait();
      put(at, std::move(node));
      sum.rest.pop_front();
      under_way_.push_back(std::move(sum));
      return;
    }
  }

  // As evaluation reads them, and in eight bits.
  std::vector<Distribution::Array> arrays_of_weights() const {
    if (!d_.fp8_weights.all.present()) return {d_.weights};
    return {d_.weights, d_.fp8_weights};
  }

  // Where a value lies in a flat array, in elements of the parameters; nothing where it is no view of it.
  std::optional<Range> place_in(ValueId id, const Distribution::Array& flat) const {
    std::int64_t offset = 0;
    const std::int64_t bytes = set_.at(id).bytes();
    const auto element = static_cast<std::int64_t>(size_of(set_.at(flat.all).dtype));
    for (; id != flat.all; id = set_.at(id).alias_of) {
      if (!set_.at(id).alias_of.present()) return {};
      offset += set_.at(id).alias_offset;
    }
    return Range{flat.range.begin + offset / element, flat.range.begin + (offset + bytes) / element};
  }

  template <class Counts>
  Touch touches(const Distribution::Array& flat, const Range& where, const Counts& counts) const {
    Touch touch;
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      if (!counts(program_.nodes[i])) continue;
      bool here = false;
      each_operand(program_.nodes[i].op, [&](std::string_view, ValueId id, Access) {
        const std::optional<Range> at = place_in(id, flat);
        const Range part = at ? intersection(*at, where) : Range{};
        if (part.empty()) return;
        here = true;
        touch.hull = touch.hull.empty()
                         ? part
                         : Range{std::min(touch.hull.begin, part.begin), std::max(touch.hull.end, part.end)};
      });
      if (!here) continue;
      touch.first = std::min(touch.first, i);
      touch.last = i;
      touch.nodes.push_back(i);
    }
    return touch;
  }

  // The stretches of a unit that these nodes touch, joined where they meet: gaps between parameters hold nothing.
  std::vector<Range> parts_of(const Touch& touch, const Distribution::Array& flat, const Range& unit) const {
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
  void replace(const Touch& touch, const Distribution::Array& flat, const Range& unit, ValueId by) {
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

  ValueId part_of(const Distribution::Array& flat, std::string name, const Range& part) {
    return view_of(flat.all, std::move(name), part.begin - flat.range.begin, part.elements());
  }
  // This rank's part of a range, in its shard; absent where it has none.
  ValueId own_part(const Distribution::Array& flat, const Range& of) {
    const Range own = owned_part(d_.shards, d_.sharing.holder(), of.begin, of.end);
    if (own.empty()) return kAbsent;
    const Range kept = intersection(flat.range, d_.shards.part(d_.sharing.holder()));
    return view_of(flat.shard, "own part", own.begin - kept.begin, own.elements());
  }
  ValueId on_the_wire(std::int64_t elements) {
    if (!d_.sharing.bf16_wire) return kAbsent;
    return declare("gradients on the wire", {elements}, DType::bf16, Role::scratch);
  }

  Node node_of(const Op& op, Phase phase, std::string name) {
    return {.op = op,
            .phase = phase,
            .cost = cost_of(op, set_.values),
            .name = std::move(name),
            .place = {Part::communication}};
  }
  void start_and_wait(const Op& op, Phase phase, std::string name, std::size_t from, std::size_t until) {
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
  std::vector<UnderWay> under_way_;
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
    if (collectives.reduce_gradients) pass.reduce_units(collectives.accumulate, collectives.complete);
  } else {
    if (d.sharing.mode == Mode::zero1 && collectives.gather_weights) pass.gather_ahead(!d.fp8_weights.all.present());
    if (collectives.reduce_gradients) pass.reduce_in_buckets();
  }
  pass.finish();
}

Program gather_weights(ProgramSet& set, std::string name, const Distribution& d) {
  Program program{.name = std::move(name), .nodes = {}};
  DistributePass pass(set, program, d);
  pass.gather_ahead(true);
  pass.finish();
  return program;
}

}  // namespace redline::program
