// Places values, each memory by itself: persistent ones one after the other, transient ones by lifetime, largest first.
// Costs of nodes come from the ops' own headers where they know better than the sum of their operands.
#include "program/planner.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "program/program.h"

namespace redline::program {
namespace {

// Addresses that are taken: stretches that do not touch, in their order.
class Taken {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    const auto first = std::ranges::lower_bound(parts_, begin, {}, &Part::end);
    auto last = first;
    for (; last != parts_.end() && last->begin <= end; ++last)
      begin = std::min(begin, last->begin), end = std::max(end, last->end);
    if (first == last) {
      parts_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      parts_.erase(first + 1, last);
    }
  }
  // The lowest place from `at` on where so many bytes are free.
  std::int64_t room(std::int64_t at, std::int64_t bytes) const {
    for (auto part = std::ranges::upper_bound(parts_, at, {}, &Part::end);
         part != parts_.end() && part->begin < at + bytes; ++part)
      at = part->end;
    return at;
  }

 private:
  struct Part {
    std::int64_t begin, end;
  };
  std::vector<Part> parts_;
};

// Values that have their places, in a tree of stretches of nodes: there are tens of thousands of them, too many to
// compare each with all. A value is noted at the widest stretches through which it lives, and at those around them, to
// which it belongs some of the time. At a leaf in which it begins or ends it is noted by itself.
class Neighbours {
 public:
  explicit Neighbours(std::size_t nodes) : width_(nodes / kLeaves + 1), ends_(kLeaves) {
    std::size_t stretches = kLeaves;
    for (std::vector<Stretch>& level : levels_) level.resize(stretches), stretches /= kFan;
  }

  void add(const Lifetime& value, std::int64_t begin, std::int64_t end) {
    each_part(
        value,
        [&](Stretch& widest) {
          widest.always.add(begin, end);
          widest.sometimes.add(begin, end);
        },
        [&](Stretch& around) { around.sometimes.add(begin, end); },
        [&](std::vector<Placed>& leaf) {
          leaf.insert(std::ranges::upper_bound(leaf, begin, {}, &Placed::begin), {begin, end, value});
        });
  }

  // The lowest place where nothing is that lives at the same time.
  std::int64_t room(const Lifetime& value, std::int64_t bytes) {
    std::int64_t at = 0;
    for (std::int64_t before = -1; before != at;) {
      before = at;
      each_part(
          value, [&](const Stretch& widest) { at = widest.sometimes.room(at, bytes); },
          [&](const Stretch& around) { at = around.always.room(at, bytes); },
          [&](const std::vector<Placed>& leaf) {
            for (const Placed& other : leaf) {
              if (at + bytes <= other.begin) break;
              if (value.overlaps(other.lifetime)) at = std::max(at, other.end);
            }
          });
    }
    return at;
  }

 private:
  static constexpr std::size_t kFan = 16, kLevels = 3, kLeaves = 256;  // 16^(3-1)
  // By values that live through all of it, and by those that live in any of it. Values noted at a wider stretch around
  // it are not among them.
  struct Stretch {
    Taken always, sometimes;
  };
  struct Placed {
    std::int64_t begin, end;
    Lifetime lifetime;
  };

  template <class Widest, class Around, class Leaf>
  void each_part(const Lifetime& value, const Widest& widest, const Around& around, const Leaf& leaf) {
    const std::size_t first = value.first / width_, last = value.last / width_;
    std::size_t begin = (value.first + width_ - 1) / width_, end = (value.last + 1) / width_;  // of whole leaves
    const auto up_from = [&](std::size_t at) {
      for (std::vector<Stretch>& level : levels_) around(level[at]), at /= kFan;
    };
    const auto cut = [&](std::size_t at) {
      leaf(ends_[at]);
      up_from(at);
    };
    const auto whole = [&](std::size_t at) { return begin <= at && at < end; };
    if (!whole(first)) cut(first);
    if (last != first && !whole(last)) cut(last);
    if (begin >= end) return;
    up_from(begin);
    if (end - 1 != begin) up_from(end - 1);
    for (std::vector<Stretch>& level : levels_) {
      while (begin < end && begin % kFan != 0) widest(level[begin++]);
      while (begin < end && end % kFan != 0) widest(level[--end]);
      if (begin >= end) return;
      begin /= kFan, end /= kFan;
    }
  }

  std::size_t width_;                                 // of a leaf, in nodes
  std::array<std::vector<Stretch>, kLevels> levels_;  // from the leaves to the whole program
  std::vector<std::vector<Placed>> ends_;             // by leaf, each by where values begin
};

// Largest first, each at the lowest place where nothing that lives at the same time is. Returns the size needed.
std::int64_t place(const ProgramSet& set, std::vector<Lifetime> values, std::vector<std::int64_t>& offsets) {
  std::stable_sort(values.begin(), values.end(), [&](const Lifetime& a, const Lifetime& b) {
    return set.at(a.value).bytes() > set.at(b.value).bytes();
  });
  std::size_t nodes = 0;
  for (const Lifetime& value : values) nodes = std::max(nodes, value.last + 1);
  Neighbours placed(nodes);
  std::int64_t size = 0;
  for (const Lifetime& value : values) {
    const std::int64_t bytes = aligned(set.at(value.value).bytes()), at = placed.room(value, bytes);
    offsets[static_cast<std::size_t>(value.value.index)] = at;
    size = std::max(size, at + bytes);
    placed.add(value, at, at + bytes);
  }
  return size;
}

// Records the bytes alive at the program's fullest node, by role.
void record_peak(const ProgramSet& set, std::size_t index, const std::vector<Lifetime>& values, ArenaPlan& arena,
                 std::int64_t& peak) {
  std::vector<std::int64_t> changes(set.programs[index].nodes.size() + 1);  // of the bytes alive, from node to node
  for (const Lifetime& l : values) {
    const std::int64_t bytes = aligned(set.at(l.value).bytes());
    changes[l.first] += bytes;
    changes[l.last + 1] -= bytes;
  }
  std::int64_t alive = 0;
  std::optional<std::size_t> fullest;
  for (std::size_t i = 0; i < changes.size(); ++i)
    if ((alive += changes[i]) > peak) peak = alive, fullest = i;
  if (!fullest) return;
  arena.peak = {index, *fullest};
  for (const Role r : {Role::activation, Role::scratch}) arena.by_role[static_cast<int>(r)] = 0;
  for (const Lifetime& l : values)
    if (l.first <= *fullest && *fullest <= l.last)
      arena.by_role[static_cast<int>(set.at(l.value).role)] += aligned(set.at(l.value).bytes());
}

// `alive`: the transient values of each program.
void plan_arena(ProgramSet& set, Memory which, const std::vector<std::vector<Lifetime>>& alive) {
  std::vector<std::int64_t>& offsets = set.memory.offsets;
  ArenaPlan& arena = set.memory.of(which);
  for (std::size_t i = 0; i < set.values.size(); ++i) {
    const Value& v = set.values[i];
    if (v.memory != which || !persistent(v.role) || v.role == Role::snapshot || v.alias_of.present()) continue;
    offsets[i] = arena.persistent;
    arena.persistent += aligned(v.bytes());
    arena.by_role[static_cast<int>(v.role)] += aligned(v.bytes());
  }
  std::int64_t largest = 0, peak = 0;
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    std::vector<Lifetime> values;
    std::ranges::copy_if(alive[p], std::back_inserter(values),
                         [&](const Lifetime& l) { return set.at(l.value).memory == which; });
    const std::int64_t size = place(set, values, offsets);
    for (const Lifetime& l : values) offsets[static_cast<std::size_t>(l.value.index)] += arena.persistent;
    arena.transient_by_program.push_back(size);
    largest = std::max(largest, size);
    record_peak(set, p, values, arena, peak);
  }
  arena.total = arena.persistent + largest;
  for (std::size_t i = 0; i < set.values.size(); ++i) {
    const Value& v = set.values[i];
    if (v.memory != which || v.role != Role::snapshot || v.alias_of.present()) continue;
    offsets[i] = arena.allocated();
    arena.snapshot += aligned(v.bytes());
  }
}

}  // namespace

std::vector<Lifetime> lifetimes(const ProgramSet& set, const Program& program) {
  std::vector<Lifetime> result;
  std::vector<std::int32_t> slot(set.values.size(), -1);
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    each_operand(program.nodes[i].op, [&](std::string_view, ValueId id, Access) {
      id = set.owner(id);
      if (persistent(set.at(id).role)) return;
      std::int32_t& s = slot[static_cast<std::size_t>(id.index)];
      if (s < 0) {
        s = static_cast<std::int32_t>(result.size());
        result.push_back({id, i, i});
      }
      result[static_cast<std::size_t>(s)].last = i;
    });
  }
  return result;
}

void plan_memory(ProgramSet& set) {
  MemoryPlan& memory = set.memory = {};
  memory.offsets.assign(set.values.size(), -1);

  std::vector<std::vector<Lifetime>> alive;
  for (const Program& program : set.programs) alive.push_back(lifetimes(set, program));
  for (const Memory m : {Memory::device, Memory::host}) plan_arena(set, m, alive);

  for (std::size_t i = 0; i < set.values.size(); ++i) {  // views follow what they are views of
    std::int64_t offset = 0;
    ValueId id{static_cast<std::int32_t>(i)};
    for (; set.at(id).alias_of.present(); id = set.at(id).alias_of) offset += set.at(id).alias_offset;
    const std::int64_t base = memory.offsets[static_cast<std::size_t>(id.index)];
    if (base >= 0) memory.offsets[i] = base + offset;
  }
}

std::vector<ValueId> alive_at_peak(const ProgramSet& set) {
  std::vector<ValueId> alive;
  if (const auto& peak = set.memory.device.peak)
    for (const Lifetime& l : lifetimes(set, set.programs[peak->program]))
      if (set.at(l.value).memory == Memory::device && l.first <= peak->node && peak->node <= l.last)
        alive.push_back(l.value);
  return alive;
}

Cost cost_of(const Op& op, const std::vector<Value>& values) {
  double bytes = 0;
  auto shape_only = [&](std::string_view, ValueId id, Access access) {
    if (!id.present()) return Tensor{};
    const Value& v = values[static_cast<std::size_t>(id.index)];
    if (v.role != Role::scratch) bytes += static_cast<double>(v.bytes()) * (access == Access::update ? 2 : 1);
    return Tensor{nullptr, v.dtype, v.shape};
  };
  return std::visit(
      [&](const auto& o) {
        const auto shaped = o.map(shape_only);
        if constexpr (requires { cost(shaped); }) return cost(shaped);
        Cost c{.bytes = bytes};
        if constexpr (requires { shaped.flops(); }) c.flops = shaped.flops();
        if constexpr (requires { flops_per_pair(shaped); }) {
          c.flops_per_pair = flops_per_pair(shaped);
          c.window = shaped.window;
        }
        return c;
      },
      op);
}

ModelFlops model_flops(const Program& program) {
  ModelFlops f;
  for (const Node& node : program.nodes) {
    if (node.phase == Phase::recompute || node.phase == Phase::update) continue;
    f.per_slot_products += node.cost.flops;
    if (node.cost.flops_per_pair > 0) f.per_pair[node.cost.window] += node.cost.flops_per_pair;
  }
  return f;
}

double ModelFlops::operator()(double fill, const PairsWithin& pairs) const {
  double flops = per_slot_products * fill;
  for (const auto& [window, each] : per_pair) flops += each * pairs(window);
  return flops;
}

PairsWithin pairs_of_rows(double rows, double seq_len) {
  return [=](std::int64_t window) { return rows * kept_pairs(seq_len, window); };
}

}  // namespace redline::program
