// Gradients that are kept in bf16: a micro-step computes each in a value of its own, in fp32, and a node adds it to
// what is kept as soon as the last node has written it. No product rounds a sum by itself.
#include <map>
#include <vector>

#include "program/passes.h"
#include "program/program.h"

namespace redline::program {
namespace {

class RoundPass {
 public:
  RoundPass(ProgramSet& set, Program& program, const RoundedGradients& of) : set_(set), program_(program), of_(of) {}

  void run(bool accumulate) {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      Node& node = program_.nodes[i];
      std::visit(
          [&](auto& op) {
            op = op.map([&](std::string_view, ValueId id, Access) {
              return id.present() && set_.owner(id) == of_.all ? instead(id, node.place, i) : id;
            });
          },
          node.op);
    }
    std::multimap<std::size_t, const Own*> written;  // by the last node that does
    for (const auto& [view, own] : own_) written.emplace(own.last, &own);
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      nodes.push_back(std::move(program_.nodes[i]));
      const Place place = nodes.back().place;
      for (auto [it, end] = written.equal_range(i); it != end; ++it)
        nodes.push_back(round(*it->second, accumulate, place));
    }
    program_.nodes = std::move(nodes);
  }

 private:
  // A parameter's gradient in this program.
  struct Own {
    ValueId value, kept;
    std::int64_t begin = 0;  // element among all
    std::size_t last = 0;
  };

  // The value that stands for a view of all gradients, or for a view of one of these.
  ValueId instead(ValueId id, const Place& place, std::size_t index) {
    const ValueId whole = set_.at(id).alias_of;
    REDLINE_CHECK(whole.present(), "a node of {} has all gradients at once", program_.name);
    if (whole == of_.all) {
      const auto [it, fresh] = own_.try_emplace(id);
      if (fresh) it->second = declare(id, place);
      it->second.last = index;
      return it->second.value;
    }
    const ValueId other = instead(whole, place, index);
    const auto [it, fresh] = views_.try_emplace(id);
    if (fresh) {
      Value view = set_.at(id);
      view.alias_of = other;
      it->second = set_.add(std::move(view));
    }
    return it->second;
  }
  Own declare(ValueId id, const Place& place) {
    Value value = set_.at(id);
    const std::int64_t begin = value.alias_offset / static_cast<std::int64_t>(size_of(value.dtype));
    Value kept = value;
    kept.dtype = DType::bf16;
    kept.role = set_.at(of_.kept).role;
    kept.memory = set_.at(of_.kept).memory;
    kept.alias_of = of_.kept;
    kept.alias_offset = begin * static_cast<std::int64_t>(size_of(kept.dtype));
    kept.shape = {kept.shape.elements()};
    value.alias_of = {};
    value.alias_offset = 0;
    value.role = Role::activation;
    value.place = place;
    const ValueId own = set_.add(std::move(value));
    return {own, set_.add(std::move(kept)), begin};
  }
  Node round(const Own& own, bool accumulate, const Place& place) {
    Value flat = set_.at(own.value);
    flat.alias_of = own.value;
    flat.shape = {flat.shape.elements()};
    const Op op = optim::RoundAtRandom<ValueId>{.x = set_.add(std::move(flat)),
                                                .state = of_.step_state,
                                                .kept = own.kept,
                                                .begin = own.begin,
                                                .all = set_.at(of_.all).shape.elements(),
                                                .accumulate = accumulate};
    return {.op = op,
            .phase = Phase::backward,
            .cost = cost_of(op, set_.values),
            .name = fmt::format("{}/round", set_.at(own.value).name),
            .place = place};
  }

  ProgramSet& set_;
  Program& program_;
  const RoundedGradients& of_;
  std::map<ValueId, Own> own_;
  std::map<ValueId, ValueId> views_;
};

}  // namespace

void round_gradients(ProgramSet& set, Program& program, const RoundedGradients& of, bool accumulate) {
  RoundPass(set, program, of).run(accumulate);
}

}  // namespace redline::program
