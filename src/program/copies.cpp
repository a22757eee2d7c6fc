// Working copies that no product of training reads: an update's live until its casts have read them, and an evaluation
// makes those that it reads from the masters.
#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <span>
#include <vector>

#include "program/passes.h"
#include "program/program.h"

namespace redline::program {
namespace {

class CopiesPass {
 public:
  CopiesPass(ProgramSet& set, Program& program, const MadeCopies& of) : set_(set), program_(program), of_(of) {}

  void run() {
    find_uses();
    if (uses_.empty()) return;
    join();
    std::map<std::size_t, std::vector<Node>> before;
    for (Copy& copy : copies_) {
      const Node& first = program_.nodes[copy.first];
      Value value = set_.at(of_.all);
      value.name = "copies made here";
      value.shape = {copy.elements.elements()};
      value.place = first.place;
      copy.value = set_.add(std::move(value));
      if (copy.made) before[copy.first].push_back(make(copy, first));
    }
    for (Node& node : program_.nodes)
      std::visit([&](auto& op) { op = op.map([&](std::string_view, ValueId id, Access) { return instead(id); }); },
                 node.op);
    std::vector<Node> nodes;
    for (const std::size_t i : in_order()) {
      for (Node& node : before[i]) nodes.push_back(std::move(node));
      nodes.push_back(std::move(program_.nodes[i]));
    }
    program_.nodes = std::move(nodes);
  }

 private:
  struct Use {
    Range elements;
    std::size_t node = 0;
    bool reads = false, writes = false;
  };
  // What nodes of this program have back to back.
  struct Copy {
    Range elements;
    std::size_t first = 0;  // node
    bool made = false;      // from the masters, before that node
    ValueId value = {};
  };

  // Where a view lies among all of them.
  Range place_of(ValueId id) const {
    const auto element = static_cast<std::int64_t>(size_of(set_.at(of_.all).dtype));
    const std::int64_t bytes = set_.at(id).bytes();
    std::int64_t offset = 0;
    for (; set_.at(id).alias_of.present(); id = set_.at(id).alias_of) offset += set_.at(id).alias_offset;
    return {offset / element, (offset + bytes) / element};
  }

  void find_uses() {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i)
      each_operand(program_.nodes[i].op, [&](std::string_view, ValueId id, Access access) {
        if (set_.owner(id) == of_.all)
          uses_.push_back({place_of(id), i, access != Access::write, access != Access::read});
      });
  }

  // Uses that share elements are of one copy. It is made here, unless nodes of this program write all that is read.
  void join() {
    std::vector<Use> sorted = uses_;
    std::ranges::stable_sort(sorted, {}, [](const Use& u) { return u.elements.begin; });
    for (const Use& use : sorted) {
      if (copies_.empty() || copies_.back().elements.end <= use.elements.begin)
        copies_.push_back({use.elements, use.node});
      Copy& copy = copies_.back();
      copy.elements.end = std::max(copy.elements.end, use.elements.end);
      copy.first = std::min(copy.first, use.node);
    }
    for (Copy& copy : copies_) {
      std::vector<Range> written;
      for (const Use& use : uses_) {  // in the order of nodes
        if (intersection(use.elements, copy.elements).empty()) continue;
        if (!use.reads)
          written.push_back(use.elements);
        else
          copy.made = copy.made || !covers(written, use.elements);
      }
    }
  }
  // A cast of what an update writes follows it, so that copies of one piece live at a time: nothing else of an update
  // touches what casts read and write.
  std::vector<std::size_t> in_order() const {
    std::vector<std::size_t> order(program_.nodes.size()), behind(order.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    behind = order;
    for (std::size_t u = 0; u < uses_.size(); ++u) {
      const Use& use = uses_[u];
      if (use.writes || program_.nodes[use.node].phase != Phase::update) continue;
      for (const Use& writer : std::span(uses_).first(u) | std::views::reverse)
        if (writer.writes && !intersection(writer.elements, use.elements).empty()) {
          behind[use.node] = writer.node;
          break;
        }
    }
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return behind[i]; });
    return order;
  }
  static bool covers(std::vector<Range> parts, const Range& all) {
    std::ranges::sort(parts, {}, &Range::begin);
    std::int64_t at = all.begin;
    for (const Range& part : parts)
      if (part.begin <= at) at = std::max(at, part.end);
    return at >= all.end;
  }

  ValueId instead(ValueId id) {
    if (!id.present() || set_.owner(id) != of_.all) return id;
    const auto [it, fresh] = views_.try_emplace(id);
    if (!fresh) return it->second;
    const Range part = place_of(id);
    const auto copy = std::ranges::find_if(
        copies_, [&](const Copy& c) { return c.elements.begin <= part.begin && part.end <= c.elements.end; });
    REDLINE_CHECK(copy != copies_.end(), "{} is in no copy of {}", set_.at(id).name, program_.name);
    Value view = set_.at(id);
    view.alias_of = copy->value;
    view.alias_offset = (part.begin - copy->elements.begin) * static_cast<std::int64_t>(size_of(view.dtype));
    view.role = set_.at(copy->value).role;
    return it->second = set_.add(std::move(view));
  }

  Node make(const Copy& copy, const Node& first) {
    Value masters = set_.at(of_.masters);
    masters.shape = {copy.elements.elements()};
    masters.alias_of = of_.masters;
    masters.alias_offset = copy.elements.begin * static_cast<std::int64_t>(size_of(masters.dtype));
    const Op op = optim::Refresh<ValueId>{set_.add(std::move(masters)), copy.value};
    return {.op = op,
            .phase = first.phase,
            .cost = cost_of(op, set_.values),
            .name = fmt::format("{}/copy", first.name),
            .place = first.place};
  }

  ProgramSet& set_;
  Program& program_;
  const MadeCopies& of_;
  std::vector<Use> uses_;
  std::vector<Copy> copies_;  // from the first elements to the last
  std::map<ValueId, ValueId> views_;
};

}  // namespace

void make_copies(ProgramSet& set, Program& program, const MadeCopies& of) { CopiesPass(set, program, of).run(); }

}  // namespace redline::program
